//! Properties of injection over random pods.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use inject::{
    ChartValues, Decision, InjectionInput, InjectorConfig, MeshInputs, NativeMode, ReviewInputs, ReviewOutcome,
    Workload, decide, difference, effective, inject, review,
};
use model::config::mesh::default_mesh;
use proptest::option::of;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::sample::select;
use serde_json::{Value, json};

const VALUES: &str = "{global: {hub: h, tag: t, proxy: {statusPort: 15020}, network: n1}, \
    sidecarInjectorWebhook: {rewriteAppHTTPProbe: true}, pilot: {cni: {enabled: false}}}";

const CONFIG: &str = "{policy: enabled, templates: {extra: \"spec: {containers: [{name: a, env: [{name: X, value: why}]}, \
    {name: scribe, image: s}]}\"}}";

fn probes() -> impl Strategy<Value = Value> {
    prop_oneof![
        (select(vec![json!(80), json!("http"), json!("unknown")]), select(vec!["HTTP", "HTTPS"]))
            .prop_map(|(port, scheme)| json!({"httpGet": {"port": port, "scheme": scheme, "path": "/r"}})),
        Just(json!({"tcpSocket": {"port": "http"}, "timeoutSeconds": 3})),
        Just(json!({"grpc": {"port": 9}})),
        Just(json!({"exec": {"command": ["true"]}})),
    ]
}

fn containers() -> impl Strategy<Value = Value> {
    let container = |name: &'static str| {
        (of(probes()), of(probes()), any::<bool>()).prop_map(move |(readiness, liveness, env)| {
            let mut container = json!({"name": name, "image": "i", "resources": {}});
            container["ports"] = json!([{"containerPort": 80, "name": "http"}]);
            if let Some(probe) = readiness {
                container["readinessProbe"] = probe;
            }
            if let Some(probe) = liveness {
                container["livenessProbe"] = probe;
            }
            if env {
                container["env"] = json!([{"name": "E", "value": "1"}]);
            }
            container
        })
    };
    let proxy = of(select(vec![
        json!({"name": "istio-proxy", "image": "auto", "env": [{"name": "CA_ADDR", "value": "x"}]}),
        json!({"name": "istio-proxy", "image": "own", "securityContext": {"runAsUser": 5}}),
    ]));
    (container("a"), of(container("b")), proxy)
        .prop_map(|(a, b, proxy)| [Some(a), b, proxy].into_iter().flatten().collect::<Vec<_>>().into())
}

fn pods() -> impl Strategy<Value = Value> {
    let annotations = proptest::sample::subsequence(
        vec![
            ("prometheus.io/port", "9102"),
            ("prometheus-io/path", "/m"),
            ("sidecar.istio.io/nativeSidecar", "true"),
            ("proxy.istio.io/config", "holdApplicationUntilProxyStarts: true"),
            ("sidecar.istio.io/interceptionMode", "TPROXY"),
            ("status.sidecar.istio.io/port", "15999"),
            ("inject.istio.io/templates", "sidecar, extra"),
        ],
        0..=7,
    );
    let labels = proptest::sample::subsequence(vec![("app", "x"), ("topology.istio.io/network", "n2")], 0..=2);
    (annotations, labels, containers(), any::<bool>()).prop_map(|(annotations, labels, containers, init)| {
        let annotations: BTreeMap<&str, &str> = annotations.into_iter().collect();
        let labels: BTreeMap<&str, &str> = labels.into_iter().collect();
        let mut pod = json!({
            "metadata": {"name": "p", "annotations": annotations, "labels": labels},
            "spec": {"containers": containers},
        });
        if init {
            pod["spec"]["initContainers"] = json!([{"name": "fetch", "image": "i"}]);
        }
        pod
    })
}

fn with_inputs<T>(run: impl FnOnce(&MeshInputs<'_>) -> T) -> T {
    let values = ChartValues::parse(VALUES).unwrap();
    let (config, problems) = InjectorConfig::parse(CONFIG).unwrap();
    assert_eq!(problems, Vec::<String>::new());
    let (mesh, environment) = (default_mesh(), BTreeMap::new());
    let (config, values, mesh) = (&config, &values, &mesh);
    run(&MeshInputs { config, values, mesh, revision: "r", compliance_policy: "", environment: &environment })
}

fn injected(shared: &MeshInputs<'_>, pod: &Value) -> Value {
    let input = InjectionInput {
        shared: *shared,
        pod,
        workload: Workload::of_pod(pod, "shop"),
        proxy_config: effective(shared.mesh, &[], pod, "shop"),
        native: false,
        variables: BTreeMap::new(),
        by_hand: false,
    };
    inject(&input).unwrap().pod
}

/// Applies a JSON patch of the operations that the injector writes.
fn apply(mut value: Value, operations: &[Value]) -> Value {
    for operation in operations {
        let (parent, key) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
        let key = key.replace("~1", "/").replace("~0", "~");
        match (value.pointer_mut(parent).unwrap(), operation["op"].as_str().unwrap()) {
            (Value::Object(map), "add" | "replace") => drop(map.insert(key, operation["value"].clone())),
            (Value::Object(map), "remove") => drop(map.shift_remove(&key).unwrap()),
            (Value::Array(list), "add") => list.insert(key.parse().unwrap(), operation["value"].clone()),
            (Value::Array(list), "replace") => list[key.parse::<usize>().unwrap()] = operation["value"].clone(),
            (Value::Array(list), "remove") => drop(list.remove(key.parse().unwrap())),
            other => panic!("{other:?}"),
        }
    }
    value
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn injecting_twice_equals_injecting_once(pod in pods()) {
        with_inputs(|shared| {
            let once = injected(shared, &pod);
            let twice = injected(shared, &once);
            assert_eq!(difference(&once, &twice), Vec::<Value>::new(), "{pod}");
        });
    }

    #[test]
    fn the_patch_applied_gives_the_injected_pod(pod in pods()) {
        with_inputs(|shared| {
            let after = injected(shared, &pod);
            assert_eq!(apply(pod.clone(), &difference(&pod, &after)), after);
        });
    }

    #[test]
    fn the_users_own_fields_stay(pod in pods()) {
        with_inputs(|shared| {
            let after = injected(shared, &pod);
            for list in ["containers", "initContainers"] {
                for own in pod["spec"][list].as_array().into_iter().flatten().filter(|c| c["name"] != "istio-proxy") {
                    let kept = after["spec"][list].as_array().unwrap().iter().find(|c| c["name"] == own["name"]).unwrap();
                    for field in ["image", "ports", "resources"].iter().filter(|field| !own[**field].is_null()) {
                        assert_eq!(kept[*field], own[*field]);
                    }
                }
            }
            for (name, value) in pod["metadata"]["labels"].as_object().unwrap() {
                assert_eq!(after["metadata"]["labels"][name], *value);
            }
        });
    }

    #[test]
    fn a_pod_that_must_not_be_injected_is_untouched(
        pod in pods(),
        namespace in select(vec!["kube-system", "kube-public", "shop"]),
        host in any::<bool>(),
        label in select(vec!["false", "true", "maybe"]),
    ) {
        with_inputs(|shared| {
            let mut pod = pod.clone();
            pod["spec"]["hostNetwork"] = host.into();
            pod["metadata"]["labels"]["sidecar.istio.io/inject"] = label.into();
            let expected = !host && namespace == "shop" && label != "false";
            assert_eq!(decide(shared.config, &pod, namespace) == Decision::Inject, expected);
            let inputs = ReviewInputs { shared: *shared, proxy_configs: &[], native: NativeMode::Disabled, nodes: None };
            let request = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                "request": {"uid": "u", "namespace": namespace, "object": pod}});
            let answer = review(request.to_string().as_bytes(), "/inject", &inputs);
            assert_eq!(matches!(answer.outcome, ReviewOutcome::Injected(_)), expected);
            assert_eq!(answer.body["response"]["patch"].is_string(), expected);
            assert_eq!(answer.body["response"]["allowed"], true);
        });
    }

    #[test]
    fn random_bytes_are_refused_without_a_panic(body in proptest::collection::vec(any::<u8>(), 0..200), path in "\\PC{0,20}") {
        with_inputs(|shared| {
            let inputs = ReviewInputs { shared: *shared, proxy_configs: &[], native: NativeMode::Auto, nodes: None };
            let answer = review(&body, &path, &inputs);
            assert_eq!(answer.body["response"]["allowed"], false);
        });
    }
}
