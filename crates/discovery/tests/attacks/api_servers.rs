//! An API server with wrong responses: empty, malformed or endless lists, watches that end at once, endless bodies. Known
//! objects stay served, each wrong response is a problem with cluster and collection, and memory, CPU and requests stay
//! bounded.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::TypeUrl;
use serde_json::{Value, json};
use testkit::discovery::DiscoveryProcess;
use testkit::fake_api::{FakeApi, FakeResponse, full, list, plural, repeated};
use testkit::scripted::ScriptedRequest;
use testkit::{client, wait};

use crate::honest::{Honest, channel, fetch, server, until_problem};

const SERVICES: usize = 20;

type Script = Box<dyn Fn(&ScriptedRequest) -> Option<FakeResponse> + Send>;

/// An API server with some services, whose responses a script can falsify.
struct FalsifiedApi {
    api: FakeApi,
    script: Arc<Mutex<Option<Script>>>,
}

impl FalsifiedApi {
    async fn start() -> FalsifiedApi {
        let script = Arc::new(Mutex::new(None::<Script>));
        let asked_of = script.clone();
        let api = FakeApi::start(move |asked| asked_of.lock().unwrap().as_ref().and_then(|script| script(asked))).await;
        api.set("services", (0..SERVICES).map(service).collect());
        api.set("endpointslices", (0..SERVICES).map(slice).collect());
        FalsifiedApi { api, script }
    }

    async fn server(&self, env: &[(&str, &str)]) -> DiscoveryProcess {
        let kubeconfig = format!("--kubeconfig={}", self.api.kubeconfig().display());
        let server = server(&["--registries=Kubernetes", &kubeconfig], env).await;
        wait::until("all services", async || match clusters(&server).await {
            SERVICES => Ok(()),
            some => Err(some.to_string()),
        })
        .await;
        server
    }

    /// Sets the script and makes clients list again.
    fn turn(&self, script: impl Fn(&ScriptedRequest) -> Option<FakeResponse> + Send + 'static) {
        *self.script.lock().unwrap() = Some(Box::new(script));
        self.api.expire_watches();
    }

    fn heal(&self) {
        *self.script.lock().unwrap() = None;
    }

    /// Requests for services so far.
    fn requests(&self) -> usize {
        self.api.requests().iter().filter(|asked| plural(asked) == "services").count()
    }
}

fn service(number: usize) -> Value {
    json!({"metadata": {"name": format!("s{number}"), "namespace": "shop", "resourceVersion": "1"},
        "spec": {"clusterIP": format!("10.96.1.{number}"), "ports": [{"name": "http", "port": 80}]}})
}

fn slice(number: usize) -> Value {
    json!({"addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "metadata": {"name": format!("s{number}-1"), "namespace": "shop", "resourceVersion": "1",
            "labels": {"kubernetes.io/service-name": format!("s{number}")}},
        "endpoints": [{"addresses": [format!("10.5.1.{number}")], "conditions": {"ready": true}}]})
}

fn is_list(asked: &ScriptedRequest) -> bool {
    asked.parameter("watch").is_none() && ["services", "endpointslices"].contains(&plural(asked))
}

/// Number of service clusters that a new client gets, including invented ones.
async fn all_clusters(server: &DiscoveryProcess) -> usize {
    let bytes = fetch(channel(server).await, &TypeUrl::CLUSTER, &[]).await.expect("clusters");
    let text = String::from_utf8_lossy(&bytes);
    let names = text.split("outbound|80||s").skip(1).filter_map(|rest| rest.split('.').next());
    names.filter(|name| name.parse::<usize>().is_ok()).collect::<BTreeSet<_>>().len()
}

/// Number of real services for which a new client gets a cluster.
async fn clusters(server: &DiscoveryProcess) -> usize {
    clusters_of(server, 0..SERVICES).await
}

async fn clusters_of(server: &DiscoveryProcess, numbers: Range<usize>) -> usize {
    let bytes = fetch(channel(server).await, &TypeUrl::CLUSTER, &[]).await.expect("clusters");
    let is_there = |number: &usize| {
        let name = format!("outbound|80||s{number}.shop.svc.cluster.local");
        bytes.windows(name.len()).any(|window| window == name.as_bytes())
    };
    numbers.filter(is_there).count()
}

/// Waits until no problem has this part.
async fn until_no_problem(server: &DiscoveryProcess, part: &str) {
    wait::until(&format!("no problem with {part:?}"), async || {
        let page = client::get(server.http(), "pilot", "/debug/problems").await?.body;
        if page.contains(part) { Err(page) } else { Ok(()) }
    })
    .await;
}

/// Serves each wrong list once and then the real one: a problem is reported and no service is lost.
async fn check_wrong_lists(answers: &[(&str, &str)]) {
    let api = FalsifiedApi::start().await;
    let server = api.server(&[]).await;
    let honest = Honest::start(&server).await;
    for (problem, answer) in answers {
        let text = format!("{{\"metadata\": {{\"resourceVersion\": \"8\"}}, {answer}}}");
        api.turn(move |asked| {
            let (kind, first) = match plural(asked) {
                "services" => ("Service", service(0)),
                _ => ("EndpointSlice", slice(0)),
            };
            let text = text.replace("KIND", kind).replace("FIRST", &first.to_string());
            is_list(asked).then(|| full(text))
        });
        for collection in [" Service", " EndpointSlice"] {
            until_problem(&server, &["cluster Kubernetes", collection, problem]).await;
        }
        assert_eq!(clusters(&server).await, SERVICES, "{problem}");
        api.heal();
        until_no_problem(&server, problem).await;
        assert_eq!(clusters(&server).await, SERVICES, "{problem}, and then all was well");
    }
    eprintln!("services after {} wrong lists: {SERVICES} of {SERVICES}", answers.len());
    honest.assert_served("wrong lists of an API server").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_07_a_malformed_list_removes_nothing() {
    check_wrong_lists(&[
        ("the list has no items", r#""kind": "KINDList""#),
        ("the list has no items", r#""kind": "KINDList", "items": null"#),
        ("the response has the wrong kind", r#""kind": "PodList", "items": []"#),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_07_one_empty_list_removes_nothing() {
    check_wrong_lists(&[
        ("lacks 20 of 20 known objects", r#""kind": "KINDList", "items": []"#),
        ("lacks 19 of 20 known objects", r#""kind": "KINDList", "items": [FIRST]"#),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_07_a_lasting_loss_is_applied() {
    let api = FalsifiedApi::start().await;
    let server = api.server(&[("PILOTAGE_KUBERNETES_HOLD_LOSSES", "3s")]).await;
    let begun = Instant::now();
    api.turn(|asked| is_list(asked).then(|| full(list(plural(asked), &[]).to_string())));
    until_problem(&server, &["cluster Kubernetes", " Service", "lacks 20 of 20"]).await;
    wait::until("the loss", async || match clusters(&server).await {
        0 => Ok(()),
        left => Err(left.to_string()),
    })
    .await;
    assert!(begun.elapsed() >= Duration::from_secs(3), "believed after {:?}", begun.elapsed());
    until_no_problem(&server, "lacks 20 of 20").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_07_deletions_of_a_watch_are_applied_at_once() {
    let api = FalsifiedApi::start().await;
    let server = api.server(&[]).await;
    let events: String =
        (0..SERVICES).map(|number| format!("{}\n", json!({"type": "DELETED", "object": service(number)}))).collect();
    let begun = Instant::now();
    api.turn(move |asked| {
        let is_watch = asked.parameter("watch").is_some() && asked.parameter("sendInitialEvents").is_none();
        (is_watch && plural(asked) == "services").then(|| full(events.clone()))
    });
    wait::until("the deletions", async || match clusters(&server).await {
        0 => Ok(()),
        left => Err(left.to_string()),
    })
    .await;
    eprintln!("{SERVICES} deletions of a watch were served after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_07_watches_that_end_at_once_are_retried_later_each_time() {
    let api = FalsifiedApi::start().await;
    let server = api.server(&[]).await;
    let honest = Honest::start(&server).await;
    let (begun, before) = (Instant::now(), api.requests());
    api.turn(|asked| {
        let is_watch = asked.parameter("watch").is_some() && asked.parameter("sendInitialEvents").is_none();
        is_watch.then(|| full(""))
    });
    until_problem(&server, &["cluster Kubernetes", "could not watch Service", "watches in a row ended"]).await;
    // A rate can only be measured over time.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (asked, took) = (api.requests() - before, begun.elapsed());
    let rate = asked as f64 / took.as_secs_f64();
    eprintln!("{asked} requests for services in {took:?} ({rate:.1}/s)");
    assert!(asked < 20, "{asked} requests in {took:?}");
    honest.assert_served("watches that end at once").await;
    assert_eq!(clusters(&server).await, SERVICES);
    api.heal();
    until_no_problem(&server, "watches in a row ended").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_07_endless_lists_are_aborted() {
    let api = FalsifiedApi::start().await;
    let env = [("PILOTAGE_KUBERNETES_MAX_OBJECTS", "2000"), ("PILOTAGE_KUBERNETES_HOLD_LOSSES", "3s")];
    let server = api.server(&env).await;
    let honest = Honest::start(&server).await;
    let page = Mutex::new(0_usize);
    api.turn(move |asked| {
        let mut page = page.lock().unwrap();
        *page += 1;
        let (token, items): (String, Vec<Value>) = match plural(asked) {
            "services" => (page.to_string(), (0..500).map(|at| service(SERVICES + *page * 500 + at)).collect()),
            _ => ("the same".to_owned(), vec![slice(0)]),
        };
        let mut answer = list(plural(asked), &items);
        answer["metadata"]["continue"] = token.into();
        is_list(asked).then(|| full(answer.to_string()))
    });
    until_problem(&server, &["cluster Kubernetes", "could not watch Service", "more than 2000 objects"]).await;
    until_problem(&server, &["cluster Kubernetes", "could not watch EndpointSlice", "pages of the list repeat"]).await;
    // Objects of aborted lists are known too, up to the limit.
    until_problem(&server, &["cluster Kubernetes", "2000 objects of Service: further ones are ignored"]).await;
    assert_eq!(clusters(&server).await, SERVICES);
    honest.assert_served("endless lists").await;

    // Invented services are removed, and a service that did not fit is added.
    api.api.set("services", (0..=SERVICES).map(service).collect());
    api.heal();
    wait::until("the truth", async || {
        let (true_ones, all) = (clusters_of(&server, 0..SERVICES + 1).await, all_clusters(&server).await);
        if (true_ones, all) == (SERVICES + 1, SERVICES + 1) { Ok(()) } else { Err(format!("{true_ones} of {all}")) }
    })
    .await;
    until_no_problem(&server, "2000 objects").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_07_endless_bodies_are_cut() {
    let api = FalsifiedApi::start().await;
    let mut server = api.server(&[]).await;
    let before = server.process().memory_kib().expect("a running process");
    let honest = Honest::start(&server).await;
    api.turn(|asked| {
        if asked.parameter("sendInitialEvents").is_some() {
            return None;
        }
        let is_endless = match plural(asked) {
            "services" => asked.parameter("watch").is_some(),
            "endpointslices" | "pods" | "nodes" | "namespaces" => asked.parameter("watch").is_none(),
            _ => false,
        };
        is_endless.then(|| repeated(vec![b' '; 1 << 20].into(), None))
    });
    until_problem(&server, &["could not watch Service", "a watch event has more than 8 MiB"]).await;
    until_problem(&server, &["could not watch EndpointSlice", " MiB"]).await;
    assert_eq!(clusters(&server).await, SERVICES);
    let peak = server.process().peak_memory_kib().expect("a running process");
    eprintln!("RSS before {} MiB, at most {} MiB", before >> 10, peak >> 10);
    assert!(peak < before + (600 << 10), "{before} KiB before, {peak} KiB at most");
    honest.assert_served("endless bodies").await;
    api.heal();
    until_no_problem(&server, "could not watch Service").await;
}
