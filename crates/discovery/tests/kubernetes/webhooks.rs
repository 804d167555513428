//! The admission webhooks with a real API server and kubectl: pods come back injected, settings are followed, invalid
//! configuration is rejected and doubtful configuration warned about, hostile requests are refused, and nothing is admitted
//! while the server is away.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::kubectl::Kubectl;
use testkit::kubernetes::ApiServer;
use testkit::tls::TlsClient;
use testkit::{ports, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::cluster::{definitions, is_left_out};

const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1";
const INJECTOR: &str = "/api/v1/namespaces/istio-system/configmaps/istio-sidecar-injector";
const MESH: &str = "/api/v1/namespaces/istio-system/configmaps/istio";
/// Generous: the goal for an edit is one second, on a machine that does nothing else.
const EDIT_LIMIT: Duration = Duration::from_secs(10);
/// Time for a refusal by a debug build on a busy machine; the goal is a second.
const REFUSAL_LIMIT: Duration = Duration::from_secs(10);
/// Upstream's time for headers is 30 s.
const SLOW_LIMIT: Duration = Duration::from_secs(30);
/// Growth of the server's memory by hostile requests.
const GROWTH_KIB: u64 = 32 << 10;

struct Stage {
    api: ApiServer,
    kubectl: Kubectl,
    server: DiscoveryProcess,
    https: SocketAddr,
}

impl Stage {
    async fn start() -> Stage {
        let api = ApiServer::start().await;
        api.define(&definitions()).await;
        for (name, labels) in [("istio-system", json!({})), ("shop", json!({"istio-injection": "enabled"}))] {
            let namespace =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
            api.create("/api/v1/namespaces", &namespace).await.unwrap();
        }
        let https = SocketAddr::from(([127, 0, 0, 1], ports::free()));
        let args = [
            "--registries=Kubernetes".to_owned(),
            format!("--kubeconfig={}", api.kubeconfig().display()),
            // Without files the mesh config comes from its ConfigMap.
            "--meshConfig=none".to_owned(),
            "--networksConfig=none".to_owned(),
            format!("--httpsAddr={https}"),
        ];
        let env = [
            ("ISTIOD_CUSTOM_HOST", "127.0.0.1"),
            ("ENABLE_LEADER_ELECTION", "false"),
            ("ENABLE_NATIVE_SIDECARS", "false"),
            ("ROOT_CA_DIR", "/nonexistent"),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let options = DiscoveryOptions { args: args.to_vec(), env, ..DiscoveryOptions::default() };
        let server = DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), options).await;
        Stage { kubectl: Kubectl::new(&api), api, server, https }
    }

    async fn register(&self, kind: &str, webhook: &str, path: &str, policy: &str, rules: Value) {
        let object = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": "test", "labels": {"istio.io/rev": "default"}},
            "webhooks": [{
                "name": webhook, "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": policy,
                "clientConfig": {"url": format!("https://{}{path}", self.https)}, "rules": [rules],
            }],
        });
        let plural = format!("{HOOKS}/{}s", kind.to_lowercase());
        self.api.create(&plural, &object).await.unwrap();
    }

    /// `kubectl create` as a dry run of the server; returns the object with kubectl's warnings, or kubectl's error.
    async fn create(&self, object: &Value) -> Result<(Value, String), String> {
        let args = ["create", "--namespace=shop", "--dry-run=server", "-o", "json", "-f", "-"];
        let (made, warnings) = self.kubectl.try_run(&args, &object.to_string()).await?;
        Ok((serde_json::from_str(&made).map_err(|error| format!("{error}: {made}"))?, warnings))
    }

    async fn create_pod(&self) -> Result<Value, String> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cart", "labels": {"app": "cart"}},
            "spec": {"serviceAccountName": "default", "containers": [{"name": "cart", "image": "cart:1",
                "readinessProbe": {"httpGet": {"port": 8080}}}]},
        });
        self.create(&pod).await.map(|(pod, _)| pod)
    }

    /// Waits until a created pod has a proxy like this, and returns how long it took.
    async fn injected_with(&self, what: &str, is_expected: impl Fn(&Value) -> bool) -> Duration {
        let begun = Instant::now();
        wait::until_within(Duration::from_secs(60), what, async || {
            let pod = self.create_pod().await?;
            let containers = pod["spec"]["containers"].as_array().unwrap();
            let proxy = containers.iter().find(|container| container["name"] == "istio-proxy");
            match proxy {
                Some(proxy) if is_expected(proxy) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        begun.elapsed()
    }

    async fn create_route(&self, name: &str, route: Value) -> Result<String, String> {
        let object = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": name},
            "spec": {"hosts": ["cart"], "http": [route]},
        });
        self.create(&object).await.map(|(_, warnings)| warnings)
    }

    /// Sends a request as it is; returns the status of the response, its text and how long it took.
    async fn raw(&self, client: &TlsClient, head: &str, body: &[u8]) -> (u16, String, Duration) {
        let mut stream = client.connect(self.https, "istiod.istio-system.svc").await.unwrap();
        let begun = Instant::now();
        stream.write_all(format!("{head}\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
        // The server may close before it has read everything.
        let _ = stream.write_all(body).await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        let text = String::from_utf8_lossy(&answer).into_owned();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("{head}: {text:?}"));
        (status, text, begun.elapsed())
    }

    /// Has a pod reviewed as the API server does; it must be admitted with a proxy.
    async fn honest_review(&self, client: &TlsClient, meanwhile: &str) {
        let body = review("v1", "Pod", json!({"containers": [{"name": "a", "image": "a"}]})).to_string();
        let head = format!("POST /inject HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}", body.len());
        let (status, text, time) = self.raw(client, &head, body.as_bytes()).await;
        assert!(
            status == 200 && text.contains("\"allowed\":true") && text.contains("\"patch\""),
            "{meanwhile}: {text}"
        );
        assert!(time < REFUSAL_LIMIT, "an honest review next to {meanwhile} took {time:?}");
    }
}

fn settings(tag: &str) -> Value {
    let values = json!({"global": {"hub": "h", "tag": tag}, "sidecarInjectorWebhook": {"rewriteAppHTTPProbe": true}});
    json!({"config": "policy: enabled\n", "values": values.to_string()})
}

fn has_image(image: &str) -> impl Fn(&Value) -> bool {
    move |proxy| proxy["image"] == image
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_inject_and_validate() {
    if is_left_out(&["kubectl"]) {
        return;
    }
    let mut stage = Stage::start().await;
    injection_follows_its_settings(&stage).await;
    validation_becomes_mandatory(&stage).await;
    hostile_requests(&mut stage).await;
    stage.injected_with("injection after hostile requests", has_image("h/proxyv2:2")).await;
    // Nothing is admitted while the server is away.
    stage.server.process().terminate().await;
    let away = stage.create_pod().await.unwrap_err();
    assert!(away.contains("failed calling webhook"), "{away}");
    let away = stage.create_route("away", route(100)).await.unwrap_err();
    assert!(away.contains("failed calling webhook"), "{away}");
}

async fn injection_follows_its_settings(stage: &Stage) {
    let pods = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
        "scope": "*"});
    stage
        .register("MutatingWebhookConfiguration", "namespace.sidecar-injector.istio.io", "/inject", "Fail", pods)
        .await;
    // The injector's settings come late; until then pods are refused, not admitted without a proxy.
    let refused = stage.create_pod().await.unwrap_err();
    assert!(refused.contains("webhook"), "{refused}");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "istio-sidecar-injector"},
        "data": settings("1")});
    stage.api.create("/api/v1/namespaces/istio-system/configmaps", &map).await.unwrap();
    stage.injected_with("an injected pod", has_image("h/proxyv2:1")).await;

    stage.api.patch(INJECTOR, &json!({"data": settings("2")})).await.unwrap();
    let values = stage.injected_with("an edit of the values", has_image("h/proxyv2:2")).await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "istio"}, "data": {"mesh": "{}"}});
    stage.api.create("/api/v1/namespaces/istio-system/configmaps", &map).await.unwrap();
    stage.api.patch(MESH, &json!({"data": {"mesh": "defaultConfig: {concurrency: 7}"}})).await.unwrap();
    let has_concurrency = |proxy: &Value| {
        let env = proxy["env"].as_array().unwrap();
        let config = env.iter().find(|variable| variable["name"] == "PROXY_CONFIG");
        config.is_some_and(|config| config["value"].as_str().unwrap().contains("\"concurrency\":7"))
    };
    let mesh = stage.injected_with("an edit of the mesh config", has_concurrency).await;
    eprintln!("with kubectl's start: an edit of the injector took {values:?}, of the mesh config {mesh:?}");
    assert!(values < EDIT_LIMIT && mesh < EDIT_LIMIT, "{values:?} {mesh:?}");
    // A configuration that cannot be parsed leaves the last good one.
    stage.api.patch(INJECTOR, &json!({"data": {"config": "policy: [", "values": "{"}})).await.unwrap();
    wait::until("a word on the bad configuration", async || {
        let output = stage.server.output();
        if output.contains("keeping the last good one") { Ok(()) } else { Err(output) }
    })
    .await;
    stage.injected_with("injection with the last good settings", has_image("h/proxyv2:2")).await;
}

fn route(weight: i64) -> Value {
    json!({"route": [{"destination": {"host": "cart"}, "weight": weight}]})
}

async fn validation_becomes_mandatory(stage: &Stage) {
    let kinds = json!({"operations": ["CREATE", "UPDATE"], "apiGroups": ["networking.istio.io"], "apiVersions": ["*"],
        "resources": ["*"], "scope": "*"});
    let begun = Instant::now();
    stage.register("ValidatingWebhookConfiguration", "rev.validation.istio.io", "/validate", "Ignore", kinds).await;
    wait::until_within(Duration::from_secs(60), "mandatory validation", async || {
        let found = stage.api.get(&format!("{HOOKS}/validatingwebhookconfigurations/test")).await?;
        match &found["webhooks"][0]["failurePolicy"] {
            policy if *policy == "Fail" => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    eprintln!("validation became mandatory after {:?}", begun.elapsed());
    assert!(begun.elapsed() < EDIT_LIMIT, "{:?}", begun.elapsed());
    assert_eq!(stage.create_route("good", route(100)).await.unwrap(), "");
    let rejected = stage.create_route("bad", route(-1)).await.unwrap_err();
    assert!(rejected.contains("denied the request") && rejected.contains("weight"), "{rejected}");
    let mut doubtful = route(100);
    doubtful["mirror"] = json!({"host": "cart"});
    doubtful["mirrorPercent"] = json!(50);
    let warned = stage.create_route("doubtful", doubtful).await.unwrap();
    assert!(warned.contains("Warning") && warned.contains("mirrorPercentage"), "{warned}");
}

/// Requests that are none, too large or too deep are refused at once, and cost no memory.
async fn hostile_requests(stage: &mut Stage) {
    let roots = stage.api.get("/api/v1/namespaces/shop/configmaps/istio-ca-root-cert").await.unwrap();
    let client = TlsClient::trusting(roots["data"]["root-cert.pem"].as_str().unwrap(), None, &["http/1.1"]);
    let before = stage.server.process().owned_kib().unwrap();
    let mut slowest = (Duration::ZERO, "");
    for (what, path, kind, body, expected) in attempts() {
        // Declared, but never sent in full.
        let length = if what == "1 GB" { 1 << 30 } else { body.len() };
        let head = format!("POST {path} HTTP/1.1\r\nContent-Type: {kind}\r\nContent-Length: {length}");
        let (hostile, ()) =
            tokio::join!(stage.raw(&client, &head, body.as_bytes()), stage.honest_review(&client, what));
        let (status, _, time) = hostile;
        assert_eq!(status, expected, "{what}");
        slowest = slowest.max((time, what));
        assert!(time < REFUSAL_LIMIT, "{what} took {time:?}");
        stage.server.process().check_alive();
    }
    slow_headers(stage, &client).await;
    let grown = stage.server.process().owned_kib().unwrap().saturating_sub(before);
    eprintln!("hostile requests: the server grew by {grown} KiB, the slowest was {slowest:?}");
    assert!(grown < GROWTH_KIB, "the server grew by {grown} KiB");
}

/// Clients that never end their headers are disconnected, and others are served meanwhile.
async fn slow_headers(stage: &Stage, client: &TlsClient) {
    const CLIENTS: usize = 50;
    let mut slow = JoinSet::new();
    for _ in 0..CLIENTS {
        let stream = client.connect(stage.https, "istiod.istio-system.svc").await.unwrap();
        slow.spawn(async move {
            let begun = Instant::now();
            let (mut reader, mut writer) = tokio::io::split(stream);
            let drip = async {
                let mut pace = tokio::time::interval(Duration::from_millis(200));
                let mut is_open = writer.write_all(b"POST /inject HTTP/1.1\r\nHost: x\r\nX-Slow: ").await.is_ok();
                while is_open {
                    pace.tick().await;
                    is_open = writer.write_all(b"a").await.is_ok();
                }
            };
            let mut sink = tokio::io::sink();
            // The server answers or closes the connection, whatever the client still sends.
            tokio::select! {
                () = drip => {}
                _ = tokio::io::copy(&mut reader, &mut sink) => {}
            }
            begun.elapsed()
        });
    }
    let mut longest = Duration::ZERO;
    while !slow.is_empty() {
        stage.honest_review(client, "slow headers").await;
        while let Some(ended) = slow.try_join_next() {
            longest = longest.max(ended.unwrap());
        }
        assert!(longest < SLOW_LIMIT, "slow headers were read for {longest:?}");
    }
    eprintln!("slow headers were read for {longest:?} at most");
}

/// What is wrong, path, content type, body, expected status. A rejected review has status 200.
fn attempts() -> Vec<(&'static str, &'static str, &'static str, String, u16)> {
    let json = "application/json";
    let matching = |regex: &str| {
        let rule = json!({"match": [{"uri": {"regex": regex}}], "route": [{"destination": {"host": "a"}}]});
        review("networking.istio.io/v1", "VirtualService", json!({"hosts": ["a"], "http": [rule]})).to_string()
    };
    let nested = format!("{}a{}", "(".repeat(100_000), ")*".repeat(100_000));
    // Nine levels of aliases, nine each.
    let lists = (b'b'..=b'j').map(|name| {
        let (name, before) = (char::from(name), char::from(name - 1));
        format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 9].join(","))
    });
    let yaml = format!("a: &a [x,x,x,x,x,x,x,x,x]\n{}", lists.collect::<String>());
    let mut bomb = review("v1", "Pod", json!({"containers": [{"name": "a", "image": "a"}]}));
    bomb["request"]["object"]["metadata"]["annotations"] = json!({"proxy.istio.io/config": yaml});
    let mut version = bomb.clone();
    version["apiVersion"] = json!("admission.k8s.io/v9");
    vec![
        ("1 GB", "/inject", json, "{".to_owned(), 400),
        ("nothing", "/inject", json, String::new(), 400),
        ("another content type", "/inject", "text/plain", "{}".to_owned(), 415),
        ("a deep body", "/inject", json, "[".repeat(100_000), 200),
        ("a wide body", "/inject", json, format!("[{}1]", "1,".repeat(1_000_000)), 400),
        ("no review", "/inject", json, "{}".to_owned(), 200),
        ("no JSON", "/validate", json, "nonsense".to_owned(), 200),
        ("an unknown version", "/inject", json, version.to_string(), 200),
        ("a YAML bomb", "/inject", json, bomb.to_string(), 200),
        ("a long regex", "/validate", json, matching("(a{1000}){1000}"), 200),
        ("a deep regex", "/validate", json, matching(&nested), 200),
        ("an unknown path", "/nothing", json, "{}".to_owned(), 404),
    ]
}

fn review(version: &str, kind: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "u", "operation": "CREATE", "namespace": "shop",
            "object": {"apiVersion": version, "kind": kind, "metadata": {"name": "hostile", "namespace": "shop"},
                "spec": spec}},
    })
}
