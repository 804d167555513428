//! Managed gateways with a real API server: they are deployed, follow their Gateway and its ConfigMap, come back when they
//! are deleted, and leave alone what belongs to others.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::kubernetes::ApiServer;
use testkit::{client, wait};

use crate::cluster::{definitions, is_left_out};

pub(crate) const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways";
const SERVICES: &str = "/api/v1/namespaces/shop/services";
const ACCOUNTS: &str = "/api/v1/namespaces/shop/serviceaccounts";
pub(crate) const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/shop/deployments";
const AUTOSCALERS: &str = "/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers";
const CONFIG_MAPS: &str = "/api/v1/namespaces/shop/configmaps";
const PATIENCE: Duration = Duration::from_secs(120);
/// Gateways that are created at once.
const MANY: usize = 100;

struct Stage {
    api: ApiServer,
    server: DiscoveryProcess,
}

impl Stage {
    async fn start(before: &[(&str, Value)]) -> Stage {
        let api = ApiServer::start().await;
        api.define(&definitions()).await;
        for name in ["istio-system", "shop"] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            api.create("/api/v1/namespaces", &namespace).await.unwrap();
        }
        create_injector(&api).await;
        for (collection, object) in before {
            api.create(collection, object).await.unwrap();
        }
        let args = ["--registries=Kubernetes".to_owned(), format!("--kubeconfig={}", api.kubeconfig().display())];
        let env = vec![("ENABLE_LEADER_ELECTION".to_owned(), "false".to_owned())];
        let options = DiscoveryOptions { args: args.to_vec(), env, ..DiscoveryOptions::default() };
        let server = DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), options).await;
        Stage { api, server }
    }

    /// The object, once it fulfils the condition.
    async fn object(&self, path: &str, what: &str, is_met: impl Fn(&Value) -> bool) -> Value {
        wait::until_within(PATIENCE, what, async || {
            let object = self.api.get(path).await?;
            if is_met(&object) { Ok(object) } else { Err(object.to_string()) }
        })
        .await
    }

    /// Waits for a problem of this Gateway that has this text.
    async fn problem(&self, gateway: &str, text: &str) {
        wait::until_within(PATIENCE, text, async || {
            let page = client::get(self.server.http(), "discovery", "/debug/problems").await?.json();
            let is_meant = |problem: &Value| {
                let text_of = |field: &str| problem[field].as_str().unwrap_or_default().to_owned();
                text_of("about").ends_with(&format!(" shop/{gateway}")) && text_of("message").contains(text)
            };
            if page.as_array().is_some_and(|all| all.iter().any(is_meant)) { Ok(()) } else { Err(page.to_string()) }
        })
        .await;
    }

    async fn deployed(&self, name: &str) {
        for collection in [SERVICES, ACCOUNTS, DEPLOYMENTS] {
            self.object(&format!("{collection}/{name}-istio"), "an object of the gateway", |_| true).await;
        }
    }
}

/// The injector's settings, which name the proxy's image.
pub(crate) async fn create_injector(api: &ApiServer) {
    create_injector_named(api, "istio-sidecar-injector").await;
}

pub(crate) async fn create_injector_named(api: &ApiServer, name: &str) {
    let values = "{global: {hub: example.com, tag: '1', proxy: {image: proxyv2}}}";
    let injector = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        "data": {"config": "policy: enabled", "values": values},
    });
    api.create("/api/v1/namespaces/istio-system/configmaps", &injector).await.unwrap();
}

pub(crate) fn gateway(name: &str, ports: &[u16]) -> Value {
    let listener = |port: &u16| json!({"name": format!("p{port}"), "port": port, "protocol": "HTTP"});
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"gatewayClassName": "istio", "listeners": ports.iter().map(listener).collect::<Vec<_>>()},
    })
}

fn ports(service: &Value) -> Vec<i64> {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    ports.filter_map(|port| port["port"].as_i64()).collect()
}

fn image(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]["image"]
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_is_deployed_and_kept() {
    if is_left_out(&[]) {
        return;
    }
    let stage = Stage::start(&[(GATEWAYS, gateway("front", &[80]))]).await;
    stage.deployed("front").await;
    let annotated = |object: &Value| object["metadata"]["annotations"]["gateway.istio.io/controller-version"] == "5";
    let front = stage.object(&format!("{GATEWAYS}/front"), "our version", annotated).await;
    let deployment = format!("{DEPLOYMENTS}/front-istio");
    let found = stage.api.get(&deployment).await.unwrap();
    assert_eq!(image(&found), "example.com/proxyv2:1");
    let owner = &found["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Gateway"), &front["metadata"]["uid"]));

    // Deleted objects come back.
    for path in [deployment.clone(), format!("{SERVICES}/front-istio"), format!("{ACCOUNTS}/front-istio")] {
        let old = stage.api.get(&path).await.unwrap()["metadata"]["uid"].clone();
        stage.api.delete(&path).await.unwrap();
        stage.object(&path, "a deleted object", |object| object["metadata"]["uid"] != old).await;
    }

    // A field that another writer changes is left to it; everything else follows the Gateway.
    let found = stage.api.get(&deployment).await.unwrap();
    let mut containers = found["spec"]["template"]["spec"]["containers"].clone();
    containers[0]["image"] = json!("own:2");
    let edit = json!({"spec": {"template": {"spec": {"containers": containers}}}});
    stage.api.patch(&deployment, &edit).await.unwrap();
    let service = json!({"spec": {"ports": [
        {"name": "status-port", "port": 15021, "protocol": "TCP", "appProtocol": "tcp"}]}});
    stage.api.patch(&format!("{SERVICES}/front-istio"), &service).await.unwrap();
    let wanted = |object: &Value| ports(object) == [15021, 80];
    stage.object(&format!("{SERVICES}/front-istio"), "the removed port", wanted).await;
    let changed = json!({"spec": gateway("front", &[80, 8080])["spec"], "metadata": {"labels": {"team": "a"}}});
    stage.api.patch(&format!("{GATEWAYS}/front"), &changed).await.unwrap();
    let wanted = |object: &Value| ports(object) == [15021, 80, 8080];
    stage.object(&format!("{SERVICES}/front-istio"), "the new port", wanted).await;
    let labelled = |object: &Value| object["metadata"]["labels"]["team"] == "a";
    let found = stage.object(&deployment, "the new label", labelled).await;
    assert_eq!(image(&found), "own:2");
}

#[tokio::test(flavor = "multi_thread")]
async fn config_map_of_a_gateway_is_followed() {
    if is_left_out(&[]) {
        return;
    }
    let mut front = gateway("front", &[80]);
    front["spec"]["infrastructure"] = json!({"parametersRef": {"group": "", "kind": "ConfigMap", "name": "own"}});
    let stage = Stage::start(&[(GATEWAYS, front)]).await;
    stage.problem("front", "ConfigMap shop/own of parametersRef does not exist").await;
    assert!(stage.api.get(&format!("{DEPLOYMENTS}/front-istio")).await.is_err(), "deployed without its ConfigMap");
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"},
        "data": {"deployment": "spec: {replicas: 3}", "horizontalPodAutoscaler": "spec: {maxReplicas: 4}"},
    });
    stage.api.create(CONFIG_MAPS, &map).await.unwrap();
    let replicas = |object: &Value| object["spec"]["replicas"] == 3;
    stage.object(&format!("{DEPLOYMENTS}/front-istio"), "the replicas", replicas).await;
    let most = |object: &Value| object["spec"]["maxReplicas"] == 4;
    stage.object(&format!("{AUTOSCALERS}/front-istio"), "the autoscaler", most).await;

    // Without the key the autoscaler is deleted. A mistake leaves everything as it is.
    let data = json!({"data": {"deployment": "spec: {replicas: 2}", "horizontalPodAutoscaler": null}});
    stage.api.patch(&format!("{CONFIG_MAPS}/own"), &data).await.unwrap();
    let replicas = |object: &Value| object["spec"]["replicas"] == 2;
    stage.object(&format!("{DEPLOYMENTS}/front-istio"), "the replicas", replicas).await;
    wait::until_within(PATIENCE, "the end of the autoscaler", async || {
        let found = stage.api.get(&format!("{AUTOSCALERS}/front-istio")).await;
        found.err().map(drop).ok_or("it exists".to_owned())
    })
    .await;
    let data = json!({"data": {"deployment": "metadata: {name: other}"}});
    stage.api.patch(&format!("{CONFIG_MAPS}/own"), &data).await.unwrap();
    stage.problem("front", "metadata.name must not be changed").await;
    let found = stage.api.get(&format!("{DEPLOYMENTS}/front-istio")).await.unwrap();
    assert_eq!(found["spec"]["replicas"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_others_are_left_alone() {
    if is_left_out(&[]) {
        return;
    }
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "taken-istio"},
        "spec": {"selector": {"app": "mine"}, "ports": [{"name": "http", "port": 81}]}});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    let mut named = gateway("named", &[80]);
    named["metadata"]["annotations"] = json!({"gateway.istio.io/service-account": "robot"});
    let mut manual = gateway("manual", &[80]);
    manual["spec"]["addresses"] = json!([{"type": "Hostname", "value": "elsewhere.example.com"}]);
    let mut newer = gateway("newer", &[80]);
    newer["metadata"]["annotations"] = json!({"gateway.istio.io/controller-version": "6"});
    let listeners: Vec<u16> = (1000..1064).collect();
    let before = [
        (SERVICES, service),
        (ACCOUNTS, account),
        (GATEWAYS, gateway("taken", &[80])),
        (GATEWAYS, named),
        (GATEWAYS, manual),
        (GATEWAYS, newer),
        (GATEWAYS, gateway("wide", &listeners)),
    ];
    let stage = Stage::start(&before).await;
    stage.problem("taken", "could not write Service shop/taken-istio: it exists and was not made for a Gateway").await;
    let found = stage.api.get(&format!("{SERVICES}/taken-istio")).await.unwrap();
    assert_eq!((ports(&found), &found["spec"]["selector"]), (vec![81], &json!({"app": "mine"})));
    assert!(found["metadata"]["ownerReferences"].is_null());

    let named = stage.object(&format!("{DEPLOYMENTS}/named-istio"), "the Deployment", |_| true).await;
    assert_eq!(named["spec"]["template"]["spec"]["serviceAccountName"], "robot");
    let account = stage.api.get(&format!("{ACCOUNTS}/robot")).await.unwrap();
    assert!(account["metadata"]["ownerReferences"].is_null(), "{account}");
    let page = client::get(stage.server.http(), "discovery", "/debug/problems").await.unwrap().body;
    assert!(!page.contains("shop/named"), "{page}");
    stage.deployed("wide").await;
    let wide = stage.api.get(&format!("{SERVICES}/wide-istio")).await.unwrap();
    assert_eq!(ports(&wide).len(), 65);
    for name in ["manual", "newer"] {
        assert!(stage.api.get(&format!("{DEPLOYMENTS}/{name}-istio")).await.is_err(), "{name} was deployed");
    }

    // The Service is made once it is free.
    stage.api.delete(&format!("{SERVICES}/taken-istio")).await.unwrap();
    stage.object(&format!("{SERVICES}/taken-istio"), "the Service", |found| ports(found) == [15021, 80]).await;
}

/// Metadata of an object that another controller applied.
fn applied_by(manager: &str, labels: &Value, uid: &Value) -> Value {
    json!({"name": "front-istio", "namespace": "shop", "labels": labels,
        "ownerReferences": [{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "front", "uid": uid}],
        "managedFields": [{"manager": manager, "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:externalTrafficPolicy": {}, "f:type": {}}}}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_another_controller_are_taken_over() {
    if is_left_out(&[]) {
        return;
    }
    let mut front = gateway("front", &[80]);
    front["metadata"]["annotations"] = json!({"gateway.istio.io/controller-version": "next"});
    let stage = Stage::start(&[(GATEWAYS, front)]).await;
    let front = stage.api.get(&format!("{GATEWAYS}/front")).await.unwrap();
    let labels = json!({"gateway.istio.io/managed": "istio.io-gateway-controller",
        "gateway.networking.k8s.io/gateway-name": "front"});
    let metadata = applied_by("istio.io/gateway-controller", &labels, &front["metadata"]["uid"]);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"name": "p80", "port": 80}]}});
    stage.api.create(SERVICES, &service).await.unwrap();
    // An older version hands over.
    let older = json!({"metadata": {"annotations": {"gateway.istio.io/controller-version": "1"}}});
    stage.api.patch(&format!("{GATEWAYS}/front"), &older).await.unwrap();
    let wanted = |object: &Value| ports(object).contains(&15021);
    let found = stage.object(&format!("{SERVICES}/front-istio"), "our ports", wanted).await;
    let managers = found["metadata"]["managedFields"].as_array().into_iter().flatten();
    let managers: Vec<&Value> = managers.map(|entry| &entry["manager"]).collect();
    assert!(!managers.contains(&&json!("istio.io/gateway-controller")), "{managers:?}");
    assert!(managers.contains(&&json!("pilotage-gateway-controller")), "{managers:?}");
    let annotated = |object: &Value| object["metadata"]["annotations"]["gateway.istio.io/controller-version"] == "5";
    stage.object(&format!("{GATEWAYS}/front"), "our version", annotated).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_gateways_are_deployed_at_once() {
    if is_left_out(&[]) {
        return;
    }
    let number = std::env::var("PILOTAGE_TEST_GATEWAYS").ok().and_then(|text| text.parse().ok()).unwrap_or(MANY);
    let stage = Stage::start(&[]).await;
    let object = |index: usize| {
        let mut object = gateway(&format!("g{index}"), &[80]);
        let uid = format!("00000000-0000-4000-8000-{index:012}");
        object["metadata"]["uid"] = json!(uid);
        object["metadata"]["generation"] = json!(1);
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        (format!("gateway.networking.k8s.io/gateways/shop/g{index}"), object)
    };
    let objects: Vec<(String, Value)> = (0..number).map(object).collect();
    let begun = Instant::now();
    stage.api.put(&objects).await;
    let created = begun.elapsed();
    wait::until_within(Duration::from_secs(300), "all Deployments", async || {
        let list = stage.api.get(&format!("{DEPLOYMENTS}?limit=1")).await?;
        let rest = list["metadata"]["remainingItemCount"].as_u64().unwrap_or_default();
        let found = list["items"].as_array().map_or(0, Vec::len) + usize::try_from(rest).unwrap();
        if found == number { Ok(()) } else { Err(format!("{found} of {number}")) }
    })
    .await;
    eprintln!("{number} Gateways: created in {created:?}, deployed in {:?}", begun.elapsed());
}
