//! A user with kubectl and two real Envoys: applied objects take effect on requests. `shop.yaml` has every kind that is
//! read; effects that requests cannot show are checked in the Envoys' configuration.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use discovery::startup::Server;
use model::config::Kind;
use serde_json::{Value, json};
use testkit::backend::{HttpBackend, TcpBackend};
use testkit::certificates::Authority;
use testkit::client::{self, Reply};
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::kubectl::Kubectl;
use testkit::kubernetes::ApiServer;
use testkit::{ports, wait};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

use crate::cluster::{definitions, is_left_out};
use crate::serving::serve;

const WEB: &str = "web.shop.svc.cluster.local";
const DOCUMENTS: &str = include_str!("shop.yaml");

/// The smallest Wasm module that Envoy accepts: memory, ABI version and an allocator.
const MODULE: &[u8] = b"\0asm\x01\0\0\0\x01\x09\x02\x60\0\0\x60\x01\x7f\x01\x7f\x03\x03\x02\0\x01\
    \x05\x03\x01\0\x01\x07\x3f\x03\x06memory\x02\0\x17proxy_abi_version_0_2_1\0\0\x18proxy_on_memory_allocate\0\x01\
    \x0a\x09\x02\x02\0\x0b\x04\0\x41\0\x0b";

/// Parts of `shop.yaml` with the addresses of this test.
struct Documents(Vec<(&'static str, String)>);

impl Documents {
    fn part(&self, name: &str) -> String {
        let begin = format!("# part: {name}\n");
        let (_, rest) = DOCUMENTS.split_once(&begin).unwrap_or_else(|| panic!("no part {name}"));
        let part = rest.split("# part: ").next().unwrap_or_default();
        // Longer placeholders first: some are prefixes of others.
        self.0.iter().fold(part.to_owned(), |text, (word, value)| text.replace(&format!("${word}"), value))
    }
}

/// The parts in the order in which they are applied.
const PARTS: &[&str] = &["settings", "services", "routing", "policies", "gateways", "grant"];

/// A non-loopback address of this machine: an API server rejects loopback addresses in slices.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    // Nothing is sent: `connect` on UDP only selects the source address.
    let found = socket.connect((Ipv4Addr::new(198, 51, 100, 1), 9)).and_then(|()| socket.local_addr());
    found.unwrap_or_else(|e| panic!("this machine has no address but loopback: {e}")).ip()
}

struct Stage {
    kubectl: Kubectl,
    documents: Documents,
    server: Server,
    sidecar: Envoy,
    gateway: Envoy,
    /// By placeholder in the documents.
    ports: Vec<(&'static str, u16)>,
    _backends: (HttpBackend, HttpBackend, HttpBackend, TcpBackend),
    _api_server: ApiServer,
}

impl Stage {
    /// An API server with our CustomResourceDefinitions, a control plane and two Envoys.
    async fn start() -> Stage {
        let api_server = ApiServer::start().await;
        let kubectl = Kubectl::new(&api_server);
        let printed = Command::new(env!("CARGO_BIN_EXE_pilot-discovery")).arg("crds").output().unwrap().stdout;
        kubectl.run_with(&["apply", "--server-side", "-f", "-"], &String::from_utf8(printed).unwrap()).await;
        let foreign = definitions().into_iter().filter(|(group, ..)| !is_ours(group));
        api_server.define(&foreign.collect::<Vec<_>>()).await;

        let ip = own_address();
        let (v1, v2) = (HttpBackend::start_at("v1", (ip, 0).into()), HttpBackend::start_at("v2", (ip, 0).into()));
        let (v1, v2, app) = (v1.await, v2.await, HttpBackend::start("app").await);
        let store = TcpBackend::start_at("store", (ip, 0).into()).await;
        let words = ["WEB", "STORE", "ENTRY", "INGRESS", "IN", "EDGE", "FRONT", "TCP", "TLS"];
        let mut ports: Vec<(&'static str, u16)> = words.map(|word| (word, ports::free())).to_vec();
        ports.extend([("V1", v1.port()), ("V2", v2.port()), ("APP", app.port()), ("STORED", store.port())]);
        let documents = documents(&api_server, ip, &ports);
        kubectl.apply(&documents.part("settings")).await;
        let env = [("PILOT_ENABLE_ALPHA_GATEWAY_API", "true"), ("PILOTAGE_TRUST_PLAINTEXT", "true")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let server = serve(api_server.kubeconfig(), None, &env).await;
        let ads = server.addresses.grpc.unwrap().port();
        let sidecar = Bootstrap::sidecar(ads, XdsTransport::Delta, "client", "shop", json!({"app": "client"}));
        let labels = json!({"istio": "ingressgateway"});
        let gateway = Bootstrap::router(ads, XdsTransport::Sotw, "gateway", "istio-system", labels);
        let (sidecar, gateway) = (Envoy::start(&sidecar).await, Envoy::start(&gateway).await);
        Stage {
            kubectl,
            documents,
            server,
            sidecar,
            gateway,
            ports,
            _backends: (v1, v2, app, store),
            _api_server: api_server,
        }
    }

    async fn apply(&self, part: &str) {
        self.kubectl.apply(&self.documents.part(part)).await;
    }

    /// Patches a slice of the shop.
    async fn patch(&self, slice: &str, part: &Value) {
        let patch = ["patch", "endpointslice", slice, "-n", "shop", "--type=json", "-p", &part.to_string()];
        self.kubectl.run(&patch).await;
    }

    fn address(&self, word: &str) -> SocketAddr {
        let (_, port) = self.ports.iter().find(|(name, _)| *name == word).unwrap();
        (Ipv4Addr::LOCALHOST, *port).into()
    }

    /// Waits until a request to the port of this placeholder gets this response.
    async fn until(
        &self,
        word: &str,
        host: &str,
        path: &str,
        headers: &[(&str, &str)],
        is_so: impl Fn(&Reply) -> bool,
    ) {
        wait::until_within(Duration::from_secs(60), &format!("{host}{path} at {word} {headers:?}"), async || {
            let reply = client::get_with(self.address(word), host, path, headers).await?;
            let text = || format!("{} {} {}", reply.status, reply.backend(), reply.body);
            if is_so(&reply) { Ok(()) } else { Err(text()) }
        })
        .await;
    }

    async fn answered(&self, word: &str, host: &str, path: &str, backend: &str) {
        self.until(word, host, path, &[], |reply| reply.backend() == backend).await;
    }
}

fn is_ours(group: &str) -> bool {
    Kind::ALL.iter().any(|kind| kind.group() == group && kind.message().is_some())
}

fn documents(api_server: &ApiServer, ip: IpAddr, ports: &[(&'static str, u16)]) -> Documents {
    let module = api_server.folder().join("module.wasm");
    std::fs::write(&module, MODULE).unwrap();
    let authority = Authority::new().root().trim_end().replace('\n', "\n    ");
    let mut words: Vec<(&'static str, String)> = ports.iter().map(|(word, port)| (*word, port.to_string())).collect();
    words.extend([("IP", ip.to_string()), ("MODULE", module.display().to_string()), ("AUTHORITY", authority)]);
    words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
    Documents(words)
}

#[test]
fn every_kind_is_among_the_documents() {
    let is_there = |kind: &&Kind| {
        kind.versions().iter().any(|version| {
            DOCUMENTS.contains(&format!("apiVersion: {}/{version}\nkind: {}\n", kind.group(), kind.as_str()))
        })
    };
    let missing: Vec<&Kind> = Kind::ALL.iter().filter(|kind| !is_there(kind)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let split = DOCUMENTS.matches("# part: ").count() - 1;
    assert_eq!(split, PARTS.len(), "each part is applied");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_applied_with_kubectl_take_effect_on_requests() {
    if is_left_out(&["envoy", "kubectl"]) {
        return;
    }
    let stage = Stage::start().await;
    services(&stage).await;
    routing(&stage).await;
    policies(&stage).await;
    gateways(&stage).await;
    statuses(&stage).await;
    held(&stage);
    for (name, envoy) in [("sidecar", &stage.sidecar), ("gateway", &stage.gateway)] {
        envoy.admin().assert_settled().await;
        println!("updates that the {name} refused: 0");
    }
    stage.server.stop(Duration::ZERO).await;
}

/// Services, slices and nodes.
async fn services(stage: &Stage) {
    stage.apply("services").await;
    stage.answered("WEB", WEB, "/", "v1").await;
    let locality = json!({"region": "north", "zone": "north-1"});
    until_hosts(stage, "||web", |hosts| hosts.len() == 1 && hosts[0]["locality"] == locality).await;
    // The application moves to another port and back.
    for backend in ["V2", "V1"] {
        let part = json!([{"op": "replace", "path": "/ports/0/port", "value": stage.address(backend).port()}]);
        stage.patch("web-v1", &part).await;
        stage.answered("WEB", WEB, "/", &backend.to_lowercase()).await;
    }
}

/// Istio's routing, and pods, whose labels select subsets.
async fn routing(stage: &Stage) {
    stage.apply("routing").await;
    let beta = [("x-beta", "on")];
    stage.until("WEB", WEB, "/", &beta, |reply| reply.backend() == "v2").await;
    // The other pod, which only the other subset selects, does not respond.
    stage.patch("web-v2", &json!([{"op": "replace", "path": "/endpoints/0/conditions/ready", "value": true}])).await;
    until_hosts(stage, "||web", |hosts| hosts.len() == 2).await;
    let is_at = |hosts: &[Value], ip: &str| hosts.len() == 1 && hosts[0]["address"].to_string().contains(ip);
    until_hosts(stage, "|v2|web", |hosts| is_at(hosts, "10.4.0.2")).await;
    until_hosts(stage, "|v1|web", |hosts| !hosts.is_empty() && !is_at(hosts, "10.4.0.2")).await;
    for _ in 0..8 {
        let reply = client::get(stage.address("WEB"), WEB, "/").await.unwrap();
        assert_eq!(reply.backend(), "v1", "{}", reply.body);
    }
    stage.until("EDGE", "shop.example", "/", &beta, |reply| reply.backend() == "v2").await;
    stage.answered("EDGE", "shop.example", "/", "v1").await;
    stage.answered("ENTRY", "api.example", "/", "v1").await;
    stage.answered("ENTRY", "fleet.example", "/", "v2").await;
    // The Sidecar accepts calls for the workload and limits egress to its namespace.
    stage.answered("IN", "client", "/", "app").await;
    until_dump(&stage.sidecar, "the Sidecar", |dump| !dump.contains("unseen.hidden")).await;
    until_dump(&stage.gateway, "a service of another namespace", |dump| dump.contains("unseen.hidden")).await;
}

/// Waits until the sidecar has these hosts in the cluster of a service of the shop.
async fn until_hosts(stage: &Stage, cluster: &str, is_so: impl Fn(&[Value]) -> bool) {
    let name = format!("outbound|{}{cluster}.shop.svc.cluster.local", stage.address("WEB").port());
    wait::until(&name, async || {
        let clusters = stage.sidecar.admin().clusters().await?;
        let all = clusters["cluster_statuses"].as_array().cloned().unwrap_or_default();
        let found = all.iter().find(|c| c["name"] == name.as_str()).map(|c| c["host_statuses"].clone());
        let hosts = found.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
        if is_so(&hosts) { Ok(()) } else { Err(format!("{hosts:?}")) }
    })
    .await;
}

async fn policies(stage: &Stage) {
    stage.apply("policies").await;
    stage.until("IN", "client", "/admin", &[], |reply| reply.status == 403).await;
    stage.until("IN", "client", "/", &[("authorization", "Bearer no.token.here")], |reply| reply.status == 401).await;
    stage.until("IN", "client", "/", &[], |reply| reply.header("x-stamp") == "lua" && reply.backend() == "app").await;
    for (what, text) in [
        ("the EnvoyFilter", "\"of-the-filter\""),
        ("the Telemetry", "\"/dev/stdout\""),
        ("the WasmPlugin", "module.wasm"),
    ] {
        until_dump(&stage.sidecar, what, |dump| dump.contains(text)).await;
    }
}

async fn gateways(stage: &Stage) {
    stage.apply("gateways").await;
    stage.answered("FRONT", "more.example", "/", "v1").await;
    stage.answered("FRONT", "grpc.front.example", "/shop.Cart/Add", "v1").await;
    stage.answered("INGRESS", "old.example", "/", "v1").await;
    // A backend in another namespace needs a ReferenceGrant.
    stage.until("FRONT", "web.front.example", "/", &[], |reply| reply.status == 500).await;
    stage.apply("grant").await;
    stage.answered("FRONT", "web.front.example", "/", "v1").await;
    wait::until("the TCPRoute", async || {
        let stream = TcpStream::connect(stage.address("TCP")).await.map_err(|e| e.to_string())?;
        let line = BufReader::new(stream).lines().next_line().await.map_err(|e| e.to_string())?;
        if line.as_deref() == Some("store") { Ok(()) } else { Err(format!("{line:?}")) }
    })
    .await;
    for (what, text) in [
        ("the TLSRoute", "\"tls.example\""),
        ("the BackendTLSPolicy", "\"vault.internal.example\""),
        ("the XBackendTrafficPolicy", "\"retry_budget\""),
    ] {
        until_dump(&stage.gateway, what, |dump| dump.contains(text)).await;
    }
}

/// Statuses that users read with kubectl.
async fn statuses(stage: &Stage) {
    let waits = [
        ["gatewayclass/ours", "condition=Accepted", "default"],
        ["gateway.gateway.networking.k8s.io/front", "condition=Programmed", "istio-system"],
        ["listenerset/more", "condition=Accepted", "shop"],
    ];
    for [object, condition, namespace] in waits {
        stage.kubectl.run(&["wait", object, &format!("--for={condition}"), "-n", namespace, "--timeout=60s"]).await;
    }
    for (object, namespace) in [
        ("httproute/web", "istio-system"),
        ("httproute/more", "shop"),
        ("grpcroute/calls", "shop"),
        ("tcproute/store", "shop"),
        ("tlsroute/store", "shop"),
    ] {
        let accepted = r#"--for=jsonpath={.status.parents[0].conditions[?(@.type=="Accepted")].status}=True"#;
        stage.kubectl.run(&["wait", object, accepted, "-n", namespace, "--timeout=60s"]).await;
    }
    let described = stage.kubectl.run(&["describe", "httproute", "web", "-n", "istio-system"]).await;
    for part in ["Controller Name:", "istio.io/gateway-controller", "Route was valid", "ResolvedRefs"] {
        assert!(described.contains(part), "no {part:?} in\n{described}");
    }
    for (kind, headings) in [
        ("vs", "NAMESPACE NAME GATEWAYS HOSTS AGE"),
        ("dr", "NAMESPACE NAME HOST AGE"),
        ("se", "NAMESPACE NAME HOSTS LOCATION RESOLUTION AGE"),
        ("pa", "NAMESPACE NAME MODE AGE"),
    ] {
        let listed = stage.kubectl.run(&["get", kind, "-A"]).await;
        let first = listed.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(first, headings, "{listed}");
    }
    let policy = stage.kubectl.run(&["get", "backendtlspolicy", "vault", "-n", "shop", "-o", "json"]).await;
    let policy: Value = serde_json::from_str(&policy).unwrap();
    let ancestors = policy["status"]["ancestors"].as_array().cloned().unwrap_or_default();
    let kinds: Vec<&Value> = ancestors.iter().map(|ancestor| &ancestor["ancestorRef"]["kind"]).collect();
    assert_eq!(kinds, ["Service", "Gateway"], "{policy}");
}

/// Kinds without effect on these Envoys must at least be known to the server.
fn held(stage: &Stage) {
    let published = stage.server.pilot.world().now();
    let objects = &published.snapshot.objects;
    let missing: Vec<&Kind> = Kind::ALL.iter().filter(|kind| objects.of(**kind).count() == 0).collect();
    assert!(missing.is_empty(), "not read: {missing:?}");
    println!("{} kinds applied with kubectl", Kind::ALL.len());
}

async fn until_dump(envoy: &Envoy, what: &str, is_so: impl Fn(&str) -> bool) {
    wait::until(what, async || {
        let dump = envoy.admin().get("/config_dump?include_eds").await?;
        if is_so(&dump) { Ok(()) } else { Err("not in the configuration".to_owned()) }
    })
    .await;
}
