//! The permissions in `deploy/manifest.yaml` are sufficient: with the token of its ServiceAccount everything works and the
//! API server denies nothing. Without permission to write statuses everything else works.

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::envoy::config::core::v3::Node;
use api::{Struct, TypeUrl, Value, value};
use serde_json::{Value as Json, json};
use testkit::certificates::Authority;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::kubectl::Kubectl;
use testkit::kubernetes::ApiServer;
use testkit::{client, wait};
use tonic::transport::Endpoint;
use xds::client::SotwClient;

use crate::cluster::{cluster, create, definitions, is_left_out, made, path};
use crate::secrets::entries;
use crate::serving::{CLUSTER, SLICE, endpoints, follow, web};

const PATIENCE: Duration = Duration::from_secs(60);
const GATEWAY: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways/edge";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/shop/deployments";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/istiod-status-istio-system";
const DEPLOYING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/istiod-gateways-istio-system";
const PARAMETERS: &str = "/api/v1/namespaces/shop/configmaps/edge";
/// Objects that a Gateway has on request only.
const ON_REQUEST: [&str; 2] = [
    "/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers/edge-istio",
    "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/edge-istio",
];

pub(crate) fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// Objects that are read and written: Gateways of both kinds with a certificate, a route, a rule.
fn objects() -> Vec<Json> {
    let certificate = Authority::new().host("a.example");
    let listener = json!({"name": "https", "port": 443, "protocol": "HTTPS", "hostname": "a.example",
        "tls": {"mode": "Terminate", "certificateRefs": [{"name": "cert"}]}});
    let mut objects = web(&["10.4.0.1"]);
    objects.extend([
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": "cert", "namespace": "shop"}, "data": entries(&certificate)}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "edge", "namespace": "shop"},
            "spec": {"gatewayClassName": "istio", "listeners": [listener],
                "infrastructure": {"parametersRef": {"group": "", "kind": "ConfigMap", "name": "edge"}}}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "edge", "namespace": "shop"},
            "data": {"horizontalPodAutoscaler": "spec: {maxReplicas: 4}",
                "podDisruptionBudget": "spec: {minAvailable: 1}"}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"parentRefs": [{"name": "edge"}], "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]}}),
        json!({"apiVersion": "networking.istio.io/v1", "kind": "Gateway",
            "metadata": {"name": "edge", "namespace": "shop"},
            "spec": {"selector": {"app": "edge"}, "servers": [{"hosts": ["b.example"],
                "port": {"number": 443, "name": "https", "protocol": "HTTPS"},
                "tls": {"mode": "SIMPLE", "credentialName": "cert"}}]}}),
        json!({"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
            "metadata": {"name": "web", "namespace": "shop"}, "spec": {"host": "web"}}),
    ]);
    objects
}

/// A replica with the chart's flags and these credentials.
async fn replica(kubeconfig: &Path, name: &str) -> DiscoveryProcess {
    // Without a file the mesh config comes from the ConfigMap.
    let mut args = ["--registries=Kubernetes", "--meshConfig=none", "--networksConfig=none"].map(String::from).to_vec();
    args.push(format!("--kubeconfig={}", kubeconfig.display()));
    let env = [("POD_NAME", name), ("POD_NAMESPACE", "istio-system"), ("PILOTAGE_TRUST_PLAINTEXT", "true")];
    let env = env.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    DiscoveryProcess::start(
        env!("CARGO_BIN_EXE_pilot-discovery"),
        DiscoveryOptions { args, env, ..DiscoveryOptions::default() },
    )
    .await
}

async fn has_status(api_server: &ApiServer) -> Result<(), String> {
    let gateway = api_server.get(GATEWAY).await?;
    let conditions = gateway["status"]["conditions"].as_array();
    let ours = |c: &Json| c["type"] == "Accepted" && c["status"] == "True" && c["observedGeneration"].is_number();
    if conditions.is_some_and(|all| all.iter().any(ours)) { Ok(()) } else { Err(gateway["status"].to_string()) }
}

fn refused(api_server: &ApiServer) -> Vec<String> {
    let all = api_server.requests_by("istio-system", "istiod");
    all.into_iter().filter(|(_, is_refused)| *is_refused).map(|(what, _)| what).collect()
}

/// The autoscaler and the disruption budget of a Gateway are made, and deleted when it no longer asks for them.
async fn objects_on_request_come_and_go(api_server: &ApiServer) {
    for path in ON_REQUEST {
        wait::until_within(PATIENCE, path, async || Ok(api_server.get(path).await.map(drop)?)).await;
    }
    let nothing = json!({"data": {"horizontalPodAutoscaler": null, "podDisruptionBudget": null}});
    api_server.patch(PARAMETERS, &nothing).await.unwrap();
    for path in ON_REQUEST {
        wait::until_within(PATIENCE, path, async || {
            api_server.get(path).await.err().map(drop).ok_or("it exists".to_owned())
        })
        .await;
    }
}

/// A proxy with one label.
fn router(label: &str, value: &str) -> Node {
    let text = |text: &str| Value { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let of = |fields: [(&str, Value); 1]| Struct { fields: fields.map(|(key, value)| (key.to_owned(), value)).into() };
    let labels = of([(label, text(value))]);
    let metadata = of([("LABELS", Value { kind: Some(value::Kind::StructValue(labels)) })]);
    let id = "router~10.4.9.9~edge.shop~shop.svc.cluster.local".to_owned();
    Node { id, metadata: Some(metadata), ..Node::default() }
}

/// Subscribes to the certificate as a proxy of the Gateway does.
async fn has_certificate(server: &DiscoveryProcess) {
    let node = router("app", "edge");
    let channel = Endpoint::from_shared(format!("http://{}", server.grpc())).unwrap().connect_lazy();
    let mut client = SotwClient::open(channel, node, &TypeUrl::SECRET, &["kubernetes://cert"]).await.unwrap();
    let response = tokio::time::timeout(PATIENCE, client.next()).await.expect("no answer").unwrap().unwrap();
    assert_eq!(response.resources.len(), 1, "no certificate");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manifest_grants_all_needed_permissions() {
    if is_left_out(&["kubectl"]) {
        return;
    }
    let api_server = cluster().await;
    let kubectl = Kubectl::new(&api_server);
    let manifest = deploy().join("manifest.yaml").display().to_string();
    kubectl.run(&["apply", "--server-side", "-f", &manifest]).await;
    // Removed afterwards, because other tests share the API server.
    made("/api/v1/namespaces/istio-system/services/istiod");
    made("/api/v1/namespaces/istio-system/configmaps/istio");
    made("/api/v1/namespaces/istio-system/configmaps/istio-sidecar-injector");
    for collection in ["/api/v1/namespaces/shop/services", "/api/v1/namespaces/shop/serviceaccounts", DEPLOYMENTS] {
        made(&format!("{collection}/edge-istio"));
    }
    create(&api_server, &objects()).await;
    let account = api_server.account("istio-system", "istiod").await;

    let mut server = replica(&account, "istiod-1").await;
    let pushes = follow(server.grpc(), CLUSTER).await;
    pushes.until(&["10.4.0.1"]).await;
    has_certificate(&server).await;
    wait::until_within(PATIENCE, "a status", async || has_status(&api_server).await).await;
    let lease =
        api_server.get("/apis/coordination.k8s.io/v1/namespaces/istio-system/leases/istio-gateway-status-leader");
    let holder = lease.await.unwrap()["spec"]["holderIdentity"].clone();
    assert!(holder.as_str().is_some_and(|holder| holder.starts_with("istiod-1")), "{holder}");
    for class in ["istio", "istio-remote"] {
        let path = format!("/apis/gateway.networking.k8s.io/v1/gatewayclasses/{class}");
        wait::until_within(PATIENCE, "the class", async || Ok(api_server.get(&path).await.map(drop)?)).await;
    }
    wait::until_within(PATIENCE, "the gateway's Deployment", async || {
        Ok(api_server.get(&format!("{DEPLOYMENTS}/edge-istio")).await.map(drop)?)
    })
    .await;
    objects_on_request_come_and_go(&api_server).await;
    assert_eq!(refused(&api_server), [""; 0], "rights are missing");
    server.process().terminate().await;

    // Without permission to write statuses a new status is not written.
    api_server.delete(BINDING).await.unwrap();
    api_server.patch(&format!("{GATEWAY}/status"), &json!({"status": null})).await.unwrap();
    let mut server = replica(&account, "istiod-2").await;
    let pushes = follow(server.grpc(), CLUSTER).await;
    pushes.until(&["10.4.0.1"]).await;
    api_server.patch(SLICE, &endpoints(&["10.4.0.2"])).await.unwrap();
    pushes.until(&["10.4.0.2"]).await;
    wait::until_within(PATIENCE, "a word on the missing right", async || {
        let said = server.process().output();
        let line =
            said.lines().find(|l| l.contains("permission is missing") && l.contains("update of gateways/status"));
        line.map(drop).ok_or(said)
    })
    .await;
    assert!(has_status(&api_server).await.is_err(), "a status was written without a right");
    let refused = refused(&api_server);
    assert!(refused.iter().all(|what| what.ends_with("/status")), "more than statuses was refused: {refused:?}");
}

/// Listeners of a proxy that the Gateway's Service selects.
async fn listeners(server: &DiscoveryProcess) -> Vec<String> {
    let node = router("gateway.networking.k8s.io/gateway-name", "edge");
    let channel = Endpoint::from_shared(format!("http://{}", server.grpc())).unwrap().connect_lazy();
    let mut client = SotwClient::open(channel, node, &TypeUrl::LISTENER, &[]).await.unwrap();
    let response = tokio::time::timeout(PATIENCE, client.next()).await.expect("no answer").unwrap().unwrap();
    response.resources.iter().map(|any| String::from_utf8_lossy(&any.value).into_owned()).collect()
}

async fn is_served(server: &DiscoveryProcess) {
    wait::until_within(PATIENCE, "a listener of the Gateway", async || {
        let found = listeners(server).await;
        if found.iter().any(|listener| listener.contains("0.0.0.0_443")) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_are_served_without_the_right_to_deploy_them() {
    if is_left_out(&["kubectl"]) {
        return;
    }
    // Requests that are refused here must not count elsewhere.
    let api_server = ApiServer::start().await;
    api_server.define(&definitions()).await;
    let manifest = deploy().join("manifest.yaml").display().to_string();
    Kubectl::new(&api_server).run(&["apply", "--server-side", "-f", &manifest]).await;
    let shop = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    api_server.create("/api/v1/namespaces", &shop).await.unwrap();
    for object in objects().iter().filter(|object| object["kind"] != "Namespace") {
        api_server.create(&path(object).0, object).await.unwrap();
    }
    let account = api_server.account("istio-system", "istiod").await;
    let mut server = replica(&account, "istiod-1").await;
    let deployed = async |name: &str| {
        wait::until_within(Duration::from_secs(120), name, async || {
            Ok(api_server.get(&format!("{DEPLOYMENTS}/{name}-istio")).await.map(drop)?)
        })
        .await;
    };
    deployed("edge").await;
    is_served(&server).await;

    // The right is removed while the server runs: what is deployed is served, also by the next server.
    let mut binding = api_server.get(DEPLOYING).await.unwrap();
    api_server.delete(DEPLOYING).await.unwrap();
    let late = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "late"},
        "spec": {"gatewayClassName": "istio", "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]}});
    api_server.create("/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways", &late).await.unwrap();
    let named = async |server: &DiscoveryProcess| {
        wait::until_within(PATIENCE, "the missing right", async || {
            let page = client::get(server.http(), "discovery", "/debug/problems").await?.body;
            let is_named = page.contains("could not write Deployment shop/late-istio") && page.contains("forbidden");
            if is_named { Ok(()) } else { Err(page) }
        })
        .await;
    };
    named(&server).await;
    is_served(&server).await;
    server.process().terminate().await;
    let server = replica(&account, "istiod-2").await;
    named(&server).await;
    is_served(&server).await;
    assert!(api_server.get(&format!("{DEPLOYMENTS}/late-istio")).await.is_err(), "deployed without the right");

    binding["metadata"] = json!({"name": binding["metadata"]["name"]});
    api_server.create(BINDINGS, &binding).await.unwrap();
    deployed("late").await;
}
