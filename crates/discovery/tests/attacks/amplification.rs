//! Configuration of one namespace that would grow by a factor of thousands or take a minute to translate: output and work
//! are bounded, a problem names the object, and clients of other namespaces are served meanwhile. Each attack has a small
//! form with lower limits, and the full form at default limits.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use testkit::discovery::DiscoveryProcess;
use testkit::{client, wait};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use xds::client::SotwClient;

use crate::honest::{CART, CART_CLUSTER, Honest, ask, channel, server};

/// The namespace with the excessive configuration.
const GREEDY: &str = "sidecar~10.0.0.2~client.greedy~greedy.svc.cluster.local";
/// Ports, and so listeners and clusters, of the greedy namespace's own service.
const PORTS: usize = 100;
const GREEDY_CLIENTS: usize = 3;
/// Time until all of them are answered.
const GREEDY_ANSWERS: Duration = Duration::from_secs(60);
/// Peak of a debug build; each attack took gigabytes before.
const MOST_MEMORY_KIB: u64 = 400 * 1024;
/// Time until the next good file is served, in a debug build on a busy machine.
const NEXT_FILE: Duration = Duration::from_secs(10);

/// One service with many ports, for the greedy namespace alone.
fn many_ports() -> String {
    let mut text =
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: wide, namespace: greedy}\n\
                    spec:\n  hosts: [wide.greedy.svc.cluster.local]\n  exportTo: ['.']\n  location: MESH_INTERNAL\n  \
                    resolution: STATIC\n  endpoints: [{address: 10.0.0.8}]\n  ports:\n"
            .to_owned();
    for i in 0..PORTS {
        let _ = writeln!(text, "  - {{name: http-{i}, number: {}, protocol: HTTP}}", 8000 + i);
    }
    text
}

fn filter(name: &str, patch: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{name: {name}, namespace: greedy}}\n\
         spec: {{configPatches: [{patch}]}}\n---\n"
    )
}

/// A Lua filter with a script of this size before all others of every listener.
fn lua(name: &str, bytes: usize) -> String {
    let script = "x".repeat(bytes);
    filter(
        name,
        &format!(
            "{{applyTo: HTTP_FILTER, match: {{listener: {{filterChain: {{filter: {{name: \
             envoy.filters.network.http_connection_manager}}}}}}}}, patch: {{operation: INSERT_FIRST, value: {{name: lua, \
             typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, \
             default_source_code: {{inline_string: '--{script}'}}}}}}}}}}"
        ),
    )
}

/// A VirtualService of the greedy namespace with this many routes, each written by `route`.
fn virtual_service(name: &str, hosts: &[String], routes: usize, route: impl Fn(usize) -> String) -> String {
    let mut text = format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: greedy}}\n\
         spec:\n  exportTo: ['.']\n  hosts: [{}]\n  http:\n",
        hosts.join(", ")
    );
    for i in 0..routes {
        let _ = writeln!(text, "  - {{{}}}", route(i));
    }
    text
}

/// Type and names that clients of the greedy namespace subscribe to.
type Asked<'a> = (&'a TypeUrl, &'a [&'a str]);

/// Clients of the greedy namespace that acknowledge everything.
struct GreedyClients {
    streams: Vec<JoinHandle<()>>,
    answers: watch::Receiver<usize>,
}

impl GreedyClients {
    async fn connect(server: &DiscoveryProcess, asked: Asked<'_>) -> GreedyClients {
        let (mut streams, (answered, answers)) = (Vec::new(), watch::channel(0));
        for _ in 0..GREEDY_CLIENTS {
            let node = Node { id: GREEDY.to_owned(), ..Node::default() };
            let mut stream = SotwClient::open(channel(server).await, node, asked.0, asked.1).await.expect("a stream");
            let answered = answered.clone();
            streams.push(tokio::spawn(async move {
                while let Ok(Some(response)) = stream.next().await {
                    stream.ack(&response);
                    answered.send_modify(|count| *count += 1);
                }
            }));
        }
        GreedyClients { streams, answers }
    }

    /// Waits until there were as many answers as clients.
    async fn answered(&mut self) {
        let done = self.answers.wait_for(|count| *count >= GREEDY_CLIENTS);
        let done = tokio::time::timeout(GREEDY_ANSWERS, done).await;
        done.expect("answers for the greedy clients in time").expect("open streams");
    }
}

impl Drop for GreedyClients {
    fn drop(&mut self) {
        self.streams.iter().for_each(JoinHandle::abort);
    }
}

/// Runs the attack while an honest client connects: clients of the greedy namespace subscribe, those of route tables
/// also before the configuration arrives, the problem names the object, and the next good file reaches clients of other namespaces.
async fn attack(name: &str, mut server: DiscoveryProcess, files: &[(&str, String)], asked: Asked<'_>, object: &str) {
    ask(channel(&server).await).await.expect("the cart");
    let honest = Honest::start(&server).await;
    let [(ports, text), excess @ ..] = files else { panic!("the ports come first") };
    server.write(ports, text);
    wait::until("the attack to begin", async || contains(&server, "/debug/registryz", "wide.greedy").await).await;
    // A route table is computed when it is asked for: clients that hold one ask for the next at the same time.
    let mut earlier = None;
    if *asked.0 == TypeUrl::ROUTE {
        earlier.insert(GreedyClients::connect(&server, asked).await).answered().await;
    }
    for (file, text) in excess {
        server.write(file, text);
    }
    let mut later = GreedyClients::connect(&server, asked).await;
    let begun = Instant::now();
    server.write("next.yaml", &CART.replace("cart", "next").replace("10.96.0.1", "10.96.0.2"));
    wait::until("the next good file", async || next_is_served(&server).await).await;
    let next = begun.elapsed();
    let problem = format!("a problem about {object}");
    wait::until(&problem, async || contains(&server, "/debug/problems", object).await).await;
    // The greedy clients get what is within the limits; only then all work of the attack is done.
    later.answered().await;
    drop((earlier, later));
    let peak = server.process().peak_memory_kib().expect("a running process");
    let all = begun.elapsed();
    eprintln!("{name}: peak {} MiB, {all:?}, next file after {next:?}", peak / 1024);
    assert!(peak < MOST_MEMORY_KIB, "{} MiB", peak / 1024);
    assert!(next < NEXT_FILE, "the next good file was served after {next:?}");
    honest.assert_served(name).await;
}

async fn contains(server: &DiscoveryProcess, page: &str, text: &str) -> Result<(), String> {
    let page = client::get(server.http(), "pilot", page).await?;
    if page.body.contains(text) { Ok(()) } else { Err("not there".to_owned()) }
}

/// Whether a new client of another namespace gets the cluster of the next good file.
async fn next_is_served(server: &DiscoveryProcess) -> Result<(), String> {
    let node = Node { id: "sidecar~10.0.0.3~client.other~other.svc.cluster.local".to_owned(), ..Node::default() };
    let mut stream =
        SotwClient::open(channel(server).await, node, &TypeUrl::CLUSTER, &[]).await.map_err(|s| s.to_string())?;
    let response = stream.next().await.map_err(|status| status.to_string())?.ok_or("the stream ended")?;
    let name = String::from_utf8_lossy(CART_CLUSTER).replace("cart", "next");
    let is_next = |value: &[u8]| value.windows(name.len()).any(|window| window == name.as_bytes());
    response.resources.iter().any(|any| is_next(&any.value)).then_some(()).ok_or("not there".to_owned())
}

/// A VirtualService with routes to a delegate, and the delegate with as many routes.
fn delegates(routes: usize) -> [(&'static str, String); 3] {
    let hosts = ["wide.greedy.svc.cluster.local".to_owned()];
    let root = virtual_service("root", &hosts, routes, |i| {
        format!("name: r{i}, match: [{{headers: {{x: {{exact: r{i}}}}}}}], delegate: {{name: leaf}}")
    });
    let leaf = virtual_service("leaf", &[], routes, |i| {
        format!(
            "name: l{i}, match: [{{uri: {{prefix: /{i}/}}}}], \
             route: [{{destination: {{host: wide.greedy.svc.cluster.local}}}}]"
        )
    });
    [("ports.yaml", many_ports()), ("root.yaml", root), ("leaf.yaml", leaf)]
}

/// Filters that each merge another field into every cluster.
fn merges(filters: usize) -> [(&'static str, String); 2] {
    let merge = |i| {
        let value = format!("{{metadata: {{filter_metadata: {{f{i}: {{x: 1}}}}}}}}");
        filter(&format!("m{i:04}"), &format!("{{applyTo: CLUSTER, patch: {{operation: MERGE, value: {value}}}}}"))
    };
    [("ports.yaml", many_ports()), ("filters.yaml", (0..filters).map(merge).collect())]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_04_delegates_are_not_multiplied() {
    let server = server(&[], &[("PILOTAGE_DELEGATED_ROUTES", "2000")]).await;
    let asked: Asked = (&TypeUrl::ROUTE, &["8000"]);
    attack("delegates", server, &delegates(400), asked, "VirtualService greedy/root").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_04_a_million_delegated_routes_are_bounded_by_default() {
    let server = server(&[], &[]).await;
    let asked: Asked = (&TypeUrl::ROUTE, &["8000"]);
    attack("a million delegated routes", server, &delegates(1000), asked, "VirtualService greedy/root").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_04_a_script_is_not_copied_into_a_hundred_listeners() {
    let files = [("ports.yaml", many_ports()), ("lua.yaml", lua("script", 1_000_000) + &lua("giant", 5_000_000))];
    let server = server(&[], &[]).await;
    attack("a script in every listener", server, &files, (&TypeUrl::LISTENER, &[]), "EnvoyFilter greedy/script").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_04_five_megabytes_of_scripts_are_bounded_by_default() {
    let scripts: String = (0..5).map(|number| lua(&format!("script-{number}"), 1_000_000)).collect();
    let files = [("ports.yaml", many_ports()), ("lua.yaml", scripts)];
    let (server, asked) = (server(&[], &[]).await, (&TypeUrl::LISTENER, &[][..]));
    attack("5 MB of scripts in every listener", server, &files, asked, "EnvoyFilter greedy/script-").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_04_thousands_of_merges_into_every_cluster_are_bounded() {
    let server = server(&[], &[("PILOTAGE_PATCH_APPLICATIONS", "50000")]).await;
    let asked: Asked = (&TypeUrl::CLUSTER, &[]);
    attack("merges into every cluster", server, &merges(1000), asked, "EnvoyFilter greedy/m0550").await;
}

/// Below the default limit: two hundred thousand merges are done, and nothing is left out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_04_two_thousand_merges_delay_no_other_namespace() {
    let server = server(&[], &[]).await;
    let asked: Asked = (&TypeUrl::CLUSTER, &[]);
    attack("two thousand merges into every cluster", server, &merges(2000), asked, "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_04_many_hosts_with_many_routes_are_bounded() {
    let hosts: Vec<String> = (0..500).map(|i| format!("h{i}.example.com")).collect();
    let routes = virtual_service("table", &hosts, 500, |i| {
        format!(
            "name: r{i}, match: [{{uri: {{prefix: /{i}/}}}}], \
             route: [{{destination: {{host: wide.greedy.svc.cluster.local}}}}]"
        )
    });
    let files = [("ports.yaml", many_ports()), ("routes.yaml", routes)];
    let server = server(&[], &[("PILOTAGE_RESOURCE_BYTES", "4000000")]).await;
    attack("many hosts with many routes", server, &files, (&TypeUrl::ROUTE, &["80"]), "VirtualService greedy/table")
        .await;
}

/// Objects that all conflict with each other: the analysis would report every pair, with the names of all in each report.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_04_findings_about_all_pairs_of_objects_are_bounded() {
    let gateway = |i| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g{i}, namespace: greedy}}\nspec: \
             {{selector: {{a: b}}, servers: [{{port: {{number: 443, name: https, protocol: HTTPS}}, hosts: ['*.example'], \
             tls: {{mode: SIMPLE, credentialName: wildcard}}}}]}}\n---\n"
        )
    };
    let hosts = ["wide.greedy.svc.cluster.local".to_owned()];
    let route = |i: usize| {
        let to = "route: [{destination: {host: wide.greedy.svc.cluster.local, port: {number: 8000}}}]";
        virtual_service(&format!("v{i}"), &hosts, 1, |_| to.to_owned()) + "---\n"
    };
    let (gateways, routes) = ((0..2000).map(gateway).collect(), (0..2000).map(route).collect());
    let files = [("ports.yaml", many_ports()), ("gateways.yaml", gateways), ("routes.yaml", routes)];
    let (server, asked) = (server(&[], &[]).await, (&TypeUrl::CLUSTER, &[][..]));
    attack("conflicts of all pairs", server, &files, asked, "further findings are listed").await;
}
