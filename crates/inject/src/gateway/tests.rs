//! Tables of gateways and ConfigMaps, and the objects made from them.

use std::collections::BTreeMap;

use model::config::mesh::default_mesh;
use model::snapshot::gateway_api::managed::{GatewayParameters, GatewayPort, ManagedGateway};
use serde_json::{Value, json};

use super::{GatewayInputs, gateway_objects};
use crate::config::InjectorConfig;
use crate::injection::MeshInputs;
use crate::values::ChartValues;

const VALUES: &str =
    "{global: {hub: example.com, tag: '1.2', proxy: {image: proxyv2, resources: {limits: {cpu: '2'}}}}}";

fn gateway() -> ManagedGateway {
    let port = |name: &str, number| GatewayPort { name: name.to_owned(), number, app_protocol: "http".to_owned() };
    ManagedGateway {
        namespace: "shop".into(),
        name: "front".into(),
        class: "istio".into(),
        deployment: "front-istio".into(),
        account: "front-istio".into(),
        account_is_given: false,
        labels: [("team".into(), "a".into())].into(),
        annotations: [("note".into(), "b".into())].into(),
        service_type: "LoadBalancer".into(),
        address: None,
        ports: vec![port("status-port", 15021), port("web", 80)],
        parameters: GatewayParameters::None,
        takes_over: false,
    }
}

type Overlay = BTreeMap<String, String>;

fn made(
    gateway: &ManagedGateway,
    defaults: Option<&Overlay>,
    parameters: Option<&Overlay>,
) -> Result<Vec<Value>, String> {
    let (config, mesh, environment) = (InjectorConfig::default(), default_mesh(), BTreeMap::new());
    let values = ChartValues::parse(VALUES).map_err(|error| error.to_string())?;
    let shared = MeshInputs {
        config: &config,
        values: &values,
        mesh: &mesh,
        revision: "default",
        compliance_policy: "",
        environment: &environment,
    };
    let inputs = GatewayInputs {
        shared,
        proxy_configs: &[],
        cluster: "east",
        controller: "istio.io/gateway-controller",
        class_defaults: defaults,
        parameters,
    };
    gateway_objects(gateway, &inputs).map_err(|error| error.to_string())
}

fn overlay(entries: &[(&str, &str)]) -> Overlay {
    entries.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or(&Value::Null)
}

fn kinds(objects: &[Value]) -> Vec<&str> {
    objects.iter().filter_map(|object| object["kind"].as_str()).collect()
}

#[test]
fn service_has_the_ports_and_selects_the_pods() {
    let objects = made(&gateway(), None, None).expect("objects");
    assert_eq!(kinds(&objects), ["ServiceAccount", "Service", "Deployment"]);
    let expected = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "front-istio", "namespace": "shop", "annotations": {"note": "b"},
            "labels": {
                "team": "a",
                "gateway.networking.k8s.io/gateway-name": "front",
                "gateway.networking.k8s.io/gateway-class-name": "istio",
                "gateway.istio.io/managed": "istio.io-gateway-controller",
            },
        },
        "spec": {
            "type": "LoadBalancer", "ipFamilyPolicy": "PreferDualStack",
            "selector": {"gateway.networking.k8s.io/gateway-name": "front"},
            "ports": [
                {"name": "status-port", "port": 15021, "protocol": "TCP", "appProtocol": "http"},
                {"name": "web", "port": 80, "protocol": "TCP", "appProtocol": "http"},
            ],
        },
    });
    assert_eq!(of_kind(&objects, "Service"), &expected);
}

#[test]
fn only_a_load_balancer_asks_for_the_address() {
    for (service_type, expected) in [("LoadBalancer", json!("10.1.2.3")), ("ClusterIP", Value::Null)] {
        let gateway =
            ManagedGateway { address: Some("10.1.2.3".into()), service_type: service_type.into(), ..gateway() };
        let objects = made(&gateway, None, None).expect("objects");
        assert_eq!(of_kind(&objects, "Service")["spec"]["loadBalancerIP"], expected, "{service_type}");
    }
}

#[test]
fn pod_is_a_complete_gateway() {
    let objects = made(&gateway(), None, None).expect("objects");
    let template = &of_kind(&objects, "Deployment")["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    assert_eq!(labels["sidecar.istio.io/inject"], "false");
    assert_eq!(labels["service.istio.io/canonical-name"], "front-istio");
    assert_eq!(labels["gateway.networking.k8s.io/gateway-name"], "front");
    let annotations = template["metadata"]["annotations"].as_object().expect("annotations");
    let names: Vec<&str> = annotations.keys().map(String::as_str).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    let expected = ["istio.io/rev", "note", "prometheus.io/path", "prometheus.io/port", "prometheus.io/scrape"];
    assert_eq!(sorted, expected);
    let spec = &template["spec"];
    assert_eq!(spec["serviceAccountName"], "front-istio");
    let [proxy] = spec["containers"].as_array().expect("containers").as_slice() else { panic!("{spec}") };
    assert_eq!(proxy["image"], "example.com/proxyv2:1.2");
    assert_eq!(proxy["args"][1], "router");
    assert_eq!(proxy["resources"]["limits"]["cpu"], "2");
    assert_eq!(proxy["securityContext"]["runAsNonRoot"], true);
    assert_eq!(proxy["readinessProbe"]["httpGet"]["port"], 15021);
    assert_eq!(proxy["startupProbe"]["httpGet"]["port"], 15021);
    let ports: Vec<i64> =
        proxy["ports"].as_array().expect("ports").iter().filter_map(|p| p["containerPort"].as_i64()).collect();
    assert_eq!(ports, [15090, 15020, 15021]);
    let variable = |name: &str| {
        let env = proxy["env"].as_array().expect("env");
        let found: Vec<&Value> = env.iter().filter(|entry| entry["name"] == name).collect();
        assert_eq!(found.len(), 1, "{name} in {env:?}");
        found[0]["value"].clone()
    };
    assert_eq!(variable("ISTIO_META_CLUSTER_ID"), "east");
    assert_eq!(variable("ISTIO_META_POD_PORTS"), "[]");
    assert_eq!(variable("ISTIO_META_WORKLOAD_NAME"), "front-istio");
    let owner = "kubernetes://apis/apps/v1/namespaces/shop/deployments/front-istio";
    assert_eq!(variable("ISTIO_META_OWNER"), owner);
}

#[test]
fn gateway_of_a_network_is_sent_endpoints_of_that_network_only() {
    let view = |labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let objects = made(&ManagedGateway { labels, ..gateway() }, None, None).expect("objects");
        let env = &of_kind(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"];
        let env = env.as_array().expect("env").clone();
        env.into_iter()
            .find(|entry| entry["name"] == "ISTIO_META_REQUESTED_NETWORK_VIEW")
            .map(|entry| entry["value"].clone())
    };
    assert_eq!(view(&[("topology.istio.io/network", "west")]), Some(json!("west")));
    assert_eq!(view(&[("topology.istio.io/network", "")]), None);
    assert_eq!(view(&[("team", "a")]), None);
}

#[test]
fn overlays_of_the_gateway_win_over_defaults_of_the_class() {
    let defaults = overlay(&[
        ("deployment", "spec: {replicas: 2, template: {spec: {containers: [{name: istio-proxy, image: own}]}}}"),
        ("horizontalPodAutoscaler", "spec: {minReplicas: 2, maxReplicas: 5}"),
    ]);
    let parameters = overlay(&[
        ("deployment", "spec: {replicas: 3}"),
        ("service", "spec: {ports: [{port: 80, nodePort: 30080}], externalTrafficPolicy: Local}"),
        ("podDisruptionBudget", "spec: {minAvailable: 1}"),
    ]);
    let gateway = ManagedGateway { parameters: GatewayParameters::ConfigMap("p".into()), ..gateway() };
    let objects = made(&gateway, Some(&defaults), Some(&parameters)).expect("objects");
    let all = ["ServiceAccount", "Service", "Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget"];
    assert_eq!(kinds(&objects), all);
    let deployment = &of_kind(&objects, "Deployment")["spec"];
    assert_eq!(deployment["replicas"], 3);
    let proxy = &deployment["template"]["spec"]["containers"][0];
    assert_eq!((&proxy["image"], &proxy["args"][1]), (&json!("own"), &json!("router")));
    let service = &of_kind(&objects, "Service")["spec"];
    assert_eq!(service["ports"][1]["nodePort"], 30080);
    assert_eq!(service["ports"][1]["name"], "web");
    assert_eq!(service["ports"].as_array().map(Vec::len), Some(2));
    let autoscaler = &of_kind(&objects, "HorizontalPodAutoscaler")["spec"];
    assert_eq!((&autoscaler["minReplicas"], &autoscaler["maxReplicas"]), (&json!(2), &json!(5)));
    assert_eq!(autoscaler["scaleTargetRef"]["name"], "front-istio");
}

#[test]
fn bad_parameters_are_reported() {
    let refers = |parameters| ManagedGateway { parameters, ..gateway() };
    let named = refers(GatewayParameters::ConfigMap("p".into()));
    assert_eq!(made(&named, None, None), Err("ConfigMap shop/p of parametersRef does not exist".to_owned()));
    let other = refers(GatewayParameters::Unsupported("x/Y".to_owned()));
    assert_eq!(made(&other, None, None), Err("parametersRef has kind x/Y: only a ConfigMap is supported".to_owned()));
    for (key, text, expected) in [
        ("deploymint", "", "\"deploymint\" is not an object that can be changed"),
        ("service", "[1]", "could not apply service of the ConfigMap: expected a map"),
        ("service", "{", "could not apply service of the ConfigMap: could not parse the overlay"),
        ("service", "{kind: Pod}", "kind must not be changed"),
        ("service", "{metadata: {name: x}}", "metadata.name must not be changed"),
        ("service", "{metadata: {ownerReferences: []}}", "metadata.ownerReferences must not be changed"),
        ("service", "{metadata: {finalizers: [x]}}", "metadata.finalizers must not be changed"),
        ("service", "{metadata: null}", "metadata must be a map"),
        ("service", "{metadata: {$patch: delete}}", "metadata.$patch must not be changed"),
    ] {
        let error = made(&named, None, Some(&overlay(&[(key, text)]))).expect_err(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn overlays_cannot_hide_an_object_from_us() {
    let parameters = overlay(&[("service", "{metadata: {labels: {gateway.istio.io/managed: null, x: z}}}")]);
    let gateway = ManagedGateway { parameters: GatewayParameters::ConfigMap("p".into()), ..gateway() };
    let objects = made(&gateway, None, Some(&parameters)).expect("objects");
    let labels = &of_kind(&objects, "Service")["metadata"]["labels"];
    assert_eq!(
        (&labels["gateway.istio.io/managed"], &labels["x"]),
        (&json!("istio.io-gateway-controller"), &json!("z"))
    );
}

#[test]
fn a_top_level_directive_does_not_replace_the_object() {
    let parameters = overlay(&[("service", "{$patch: delete}")]);
    let gateway = ManagedGateway { parameters: GatewayParameters::ConfigMap("p".into()), ..gateway() };
    assert!(made(&gateway, None, Some(&parameters)).is_err());
}

#[test]
fn gateway_with_64_listeners_has_a_service_with_all_ports() {
    let port = |number: u16| GatewayPort { name: format!("p{number}"), number, app_protocol: "http".to_owned() };
    let gateway = ManagedGateway { ports: (1..=64).map(port).collect(), ..gateway() };
    let objects = made(&gateway, None, None).expect("objects");
    assert_eq!(of_kind(&objects, "Service")["spec"]["ports"].as_array().map(Vec::len), Some(64));
}

#[test]
fn bad_annotation_is_reported_with_its_name() {
    let annotations = [("proxy.istio.io/config".into(), "{concurrency: x".into())].into();
    let error = made(&ManagedGateway { annotations, ..gateway() }, None, None).expect_err("bad annotation");
    assert!(error.starts_with("could not render the pod: invalid annotations: "), "{error}");
}
