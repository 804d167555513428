//! Workloads that register themselves, as a client plays them: with a server without Kubernetes, with two replicas and a
//! real API server. `registration_agent` has the same with a real agent and its Envoy.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use api::envoy::config::core::v3::Node;
use api::envoy::service::discovery::v3::DiscoveryRequest;
use api::wire::google::rpc::Status as ErrorDetail;
use api::{Struct, Value as ProtoValue, value};
use serde_json::{Value, json};
use testkit::ca_client::CaClient;
use testkit::kubernetes::ApiServer;
use testkit::tls::TlsClient;
use testkit::{client, wait};
use tokio::net::TcpStream;
use tonic::Code;

use crate::fixture::Mesh;
use crate::kubernetes::{cluster, replica, roots, token};
use crate::streams::{AdsStream, open_as, secured};

pub(crate) const GRACE: (&str, &str) = ("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "2s");
/// Time until a connected workload is registered, and until one whose probe failed is out of EDS.
pub(crate) const SOON: Duration = Duration::from_secs(1);
/// When the entry of a killed workload is gone, with the default grace.
pub(crate) const GONE: std::ops::RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(15);
/// CustomResourceDefinitions that registration needs.
pub(crate) const DEFINITIONS: [testkit::kubernetes::CrdSpec<'static>; 3] = [
    ("networking.istio.io", &["v1"], "WorkloadGroup", "workloadgroups", true),
    ("networking.istio.io", &["v1"], "WorkloadEntry", "workloadentries", true),
    ("networking.istio.io", &["v1"], "ServiceEntry", "serviceentries", true),
];

/// A group whose workloads are of service account `front`, and a service that selects them.
pub(crate) fn objects() -> [Value; 2] {
    [
        json!({"apiVersion": "networking.istio.io/v1", "kind": "WorkloadGroup",
            "metadata": {"name": "cart", "namespace": "shop"},
            "spec": {"metadata": {"labels": {"app": "cart"}}, "template": {"serviceAccount": "front"}}}),
        json!({"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
            "metadata": {"name": "cart", "namespace": "shop"},
            "spec": {"hosts": ["cart.example"], "location": "MESH_INTERNAL", "resolution": "STATIC",
                "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}],
                "workloadSelector": {"labels": {"app": "cart"}}}}),
    ]
}

fn text(text: &str) -> ProtoValue {
    ProtoValue { kind: Some(value::Kind::StringValue(text.to_owned())) }
}

/// A node that registers with a group, whose agent has a probe.
fn node(group: &str) -> Node {
    let fields = |pairs: Vec<(&str, ProtoValue)>| Struct {
        fields: pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    };
    let inner = |pairs| ProtoValue { kind: Some(value::Kind::StructValue(fields(pairs))) };
    let probe = inner(vec![("readinessProbe", inner(vec![("periodSeconds", text("1"))]))]);
    let metadata = fields(vec![("AUTO_REGISTER_GROUP", text(group)), ("PROXY_CONFIG", probe)]);
    let id = "sidecar~10.0.0.7~vm.shop~shop.svc.cluster.local".to_owned();
    Node { id, metadata: Some(metadata), ..Node::default() }
}

/// Reports health as an agent does.
async fn report(stream: &AdsStream, error: Option<&str>) {
    let error_detail =
        error.map(|message| ErrorDetail { code: 13, message: message.to_owned(), ..ErrorDetail::default() });
    let type_url = "type.googleapis.com/istio.v1.HealthInformation".to_owned();
    stream.send(&DiscoveryRequest { type_url, error_detail, ..DiscoveryRequest::default() }).await;
}

/// The WorkloadEntry of the group; `None` if there is none.
pub(crate) async fn entry(monitoring: SocketAddr) -> Option<Value> {
    let page = client::get(monitoring, "discovery", "/debug/configz").await.unwrap().json();
    page.as_array().unwrap().iter().find(|object| object["kind"] == "WorkloadEntry").cloned()
}

/// Waits until the service has this many endpoints, and returns how long it took.
pub(crate) async fn until_endpoints(monitoring: SocketAddr, count: usize) -> Duration {
    let begun = Instant::now();
    wait::until(&format!("{count} endpoints"), async || {
        let page = client::get(monitoring, "discovery", "/debug/endpointz").await.unwrap();
        let found = page.body.matches("10.0.0.7").count().min(1);
        if found == count { Ok(()) } else { Err(page.body) }
    })
    .await;
    begun.elapsed()
}

pub(crate) async fn until_gone(monitoring: SocketAddr) -> Duration {
    let begun = Instant::now();
    wait::until_within(Duration::from_secs(60), "the end of the entry", async || match entry(monitoring).await {
        None => Ok(()),
        Some(entry) => Err(entry.to_string()),
    })
    .await;
    begun.elapsed()
}

pub(crate) async fn mesh(env: &[(&str, &str)]) -> Mesh {
    let mesh = Mesh::start(env).await;
    for (name, object) in ["group.yaml", "entry.yaml"].iter().zip(objects()) {
        mesh.server.write(name, &object.to_string());
    }
    wait::until("the objects", async || {
        let page = mesh.page("/debug/configz").await;
        if page.contains("WorkloadGroup") && page.contains("ServiceEntry") { Ok(()) } else { Err(page) }
    })
    .await;
    mesh
}

#[tokio::test]
async fn a_workload_is_registered_while_it_is_connected() {
    let mesh = mesh(&[GRACE]).await;
    let monitoring = mesh.server.monitoring();
    let good = mesh.token("front");
    let begun = Instant::now();
    let stream = open_as(secured(&mesh, None).await, Some(&good), node("cart")).await;
    let made = wait::until("the entry", async || entry(monitoring).await.ok_or("no entry".to_owned())).await;
    let registered = begun.elapsed();
    assert!(registered <= SOON, "registered after {registered:?}");
    assert_eq!((&made["metadata"]["name"], &made["spec"]["address"]), (&json!("cart-10.0.0.7"), &json!("10.0.0.7")));
    let annotations = &made["metadata"]["annotations"];
    assert_eq!(annotations["istio.io/autoRegistrationGroup"], "cart");
    assert!(annotations["istio.io/connectedAt"].is_string() && annotations["istio.io/workloadController"].is_string());
    // It is not used before its first good probe, and not after a bad one.
    until_endpoints(monitoring, 0).await;
    report(&stream, None).await;
    let first = until_endpoints(monitoring, 1).await;
    report(&stream, Some("no response of the application")).await;
    let out = until_endpoints(monitoring, 0).await;
    report(&stream, None).await;
    until_endpoints(monitoring, 1).await;
    // A second stream takes over; the end of the first changes nothing.
    let second = open_as(secured(&mesh, None).await, Some(&good), node("cart")).await;
    drop(stream);
    wait::until("the end of the first stream", async || {
        let page = mesh.page("/debug/connections").await;
        if page.matches("vm.shop").count() == 1 { Ok(()) } else { Err(page) }
    })
    .await;
    assert!(entry(monitoring).await.is_some());
    drop(second);
    let gone = until_gone(monitoring).await;
    eprintln!("healthy after {first:?}, out of EDS after {out:?}, gone after {gone:?}");
    assert!(first <= SOON && out <= SOON, "healthy after {first:?}, out of EDS after {out:?}");
    assert!(gone > Duration::from_millis(1500), "{gone:?}");
    assert_eq!(mesh.metric("auto_registration_success_total").await, 1.0);
    assert_eq!(mesh.metric("auto_registration_deletes_total").await, 1.0);
}

/// The WorkloadEntries in the storage, without a namespace: that of the group is made for them.
#[tokio::test]
async fn without_kubernetes_entries_are_in_the_configuration_api_and_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let storage = folder.path().join("config.redb").display().to_string();
    let socket = folder.path().join("config.sock").display().to_string();
    let args = vec![format!("--configAPI=unix://{socket}"), format!("--configStorage={storage}")];
    let files = ["group.yaml", "entry.yaml"].iter().zip(objects());
    let files = files.map(|(name, object)| ((*name).to_owned(), object.to_string())).collect();
    let mut mesh = Mesh::start_with_args(folder, &[("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "60s")], files, args).await;
    mesh.certified().await;
    let monitoring = mesh.server.monitoring();
    let good = mesh.token("front");
    let stream = open_as(secured(&mesh, None).await, Some(&good), node("cart")).await;
    report(&stream, None).await;
    until_endpoints(monitoring, 1).await;
    let stored = entry(monitoring).await.expect("an entry");
    // The process is killed; what was registered is there at once after the start, with its health.
    mesh.server.restart().await;
    until_endpoints(monitoring, 1).await;
    mesh.certified().await;
    let kept = entry(monitoring).await.expect("the entry");
    assert_eq!((&kept["metadata"]["name"], &kept["spec"]), (&stored["metadata"]["name"], &stored["spec"]));
    drop(stream);
    // The workload connects again, takes its entry over and reports.
    let stream = open_as(secured(&mesh, None).await, Some(&good), node("cart")).await;
    report(&stream, Some("no response of the application")).await;
    until_endpoints(monitoring, 0).await;
    report(&stream, None).await;
    until_endpoints(monitoring, 1).await;
    assert_eq!(mesh.metric("auto_registration_errors_total").await, 0.0);
}

#[tokio::test]
async fn only_the_account_of_the_group_may_register() {
    let mesh = mesh(&[]).await;
    let limit = Duration::from_secs(20);
    for (what, account, group, expected) in [
        ("another account", "thief", "cart", Code::PermissionDenied),
        ("an unknown group", "front", "none", Code::FailedPrecondition),
    ] {
        let token = mesh.token(account);
        let mut stream = open_as(secured(&mesh, None).await, Some(&token), node(group)).await;
        assert_eq!(stream.end(limit).await, (false, Some(expected)), "{what}");
    }
    let plain = TcpStream::connect(mesh.server.grpc()).await.unwrap();
    let mut stream = open_as(plain, None, node("cart")).await;
    assert_eq!(stream.end(limit).await, (false, Some(Code::PermissionDenied)), "without proof");
    assert_eq!(entry(mesh.server.monitoring()).await, None);
    mesh.serves_an_honest_caller().await;
}

pub(crate) const ENTRY: &str = "/apis/networking.istio.io/v1/namespaces/shop/workloadentries/cart-10.0.0.7";

pub(crate) async fn stored(api: &ApiServer) -> Result<Value, String> {
    api.get(ENTRY).await.map_err(|error| error.to_string())
}

async fn until_controller(api: &ApiServer, name: &str, is_connected: bool) -> Value {
    wait::until_within(Duration::from_secs(60), &format!("the entry of {name}"), async || {
        let entry = stored(api).await?;
        let annotations = &entry["metadata"]["annotations"];
        let found = (&annotations["istio.io/workloadController"], annotations["istio.io/connectedAt"].is_string());
        if found == (&json!(name), is_connected) { Ok(entry) } else { Err(entry.to_string()) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_moves_with_its_workload_between_replicas() {
    let Some((api, account)) = cluster().await else { return };
    api.define(&DEFINITIONS).await;
    let groups = "/apis/networking.istio.io/v1/namespaces/shop/workloadgroups";
    let mut group = objects()[0].clone();
    group["spec"]["template"]["serviceAccount"] = json!("keeper");
    let group = api.create(groups, &group).await.unwrap();
    let ((mut one, first), (_two, second)) = tokio::join!(replica(&account, "one"), replica(&account, "two"));
    let (roots, token) = (roots(&api).await, token(&api, "keeper", Some("istio-ca")).await);
    let connect = async |address: SocketAddr| {
        wait::until_within(Duration::from_secs(60), "a certificate", async || {
            let client = CaClient::new(address, &roots, None, Some(&token));
            client.certificate("", 0).await.map_err(|refusal| format!("{refusal:?}"))
        })
        .await;
        let tls = TlsClient::trusting(&roots, None, &["h2"]);
        let stream = tls.connect(address, "istiod.istio-system.svc").await.unwrap();
        open_as(stream, Some(&token), node("cart")).await
    };
    let stream = connect(first).await;
    let begun = Instant::now();
    let made = until_controller(&api, "one", true).await;
    eprintln!("registered after {:?}", begun.elapsed());
    assert!(begun.elapsed() <= SOON, "registered after {:?}", begun.elapsed());
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], group["metadata"]["uid"]);
    report(&stream, Some("starting")).await;
    let healthy = async |status: &str| {
        wait::until("the health", async || {
            let condition = stored(&api).await?["status"]["conditions"][0].clone();
            let is_expected = condition["type"] == "Healthy" && condition["status"] == status;
            if is_expected { Ok(()) } else { Err(condition.to_string()) }
        })
        .await;
    };
    healthy("False").await;
    report(&stream, None).await;
    healthy("True").await;
    // The workload moves; the end of its old stream does not touch the entry.
    let moved = connect(second).await;
    until_controller(&api, "two", true).await;
    drop(stream);
    // It moves back, and that replica is killed: the entry stays until the workload is known to be gone.
    let back = connect(first).await;
    until_controller(&api, "one", true).await;
    drop(moved);
    one.process().kill();
    drop(back);
    let last = connect(second).await;
    until_controller(&api, "two", true).await;
    drop(last);
    let begun = Instant::now();
    until_controller(&api, "two", false).await;
    wait::until_within(Duration::from_secs(60), "the end of the entry", async || match stored(&api).await {
        Err(_) => Ok(()),
        Ok(entry) => Err(entry.to_string()),
    })
    .await;
    eprintln!("gone after {:?}", begun.elapsed());
    assert!(GONE.contains(&begun.elapsed()), "gone after {:?}", begun.elapsed());
    let refused = api.requests_by("istio-system", "istiod").into_iter().filter(|(_, is_refused)| *is_refused);
    assert_eq!(refused.map(|(what, _)| what).collect::<Vec<_>>(), [""; 0], "permissions are missing");
}
