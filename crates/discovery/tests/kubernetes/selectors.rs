//! Which pods are injected: the chart's webhook configurations in a real API server, for a default installation, one that
//! injects all namespaces, and a revision. Six kinds of namespace and six kinds of pod are compared with upstream's answers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::kubernetes::ApiServer;
use testkit::{ports, wait};

use crate::chart::{objects, rendered};
use crate::cluster::is_left_out;

const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const MAPS: &str = "/api/v1/namespaces/istio-system/configmaps";
const CANARY: (&str, &str) = ("istio.io/rev", "canary");
const NAMESPACES: [(&str, &[(&str, &str)]); 6] = [
    ("plain", &[]),
    ("enabled", &[("istio-injection", "enabled")]),
    ("disabled", &[("istio-injection", "disabled")]),
    ("rev-default", &[("istio.io/rev", "default")]),
    ("rev-canary", &[CANARY]),
    ("enabled-and-canary", &[("istio-injection", "enabled"), CANARY]),
];
const PODS: [(&str, &[(&str, &str)]); 6] = [
    ("plain", &[]),
    ("true", &[("sidecar.istio.io/inject", "true")]),
    ("false", &[("sidecar.istio.io/inject", "false")]),
    ("rev-default", &[("istio.io/rev", "default")]),
    ("rev-canary", &[CANARY]),
    ("true-and-canary", &[("sidecar.istio.io/inject", "true"), CANARY]),
];

/// An installation: its recording, values of the chart, and a namespace and pod that no earlier row injects.
struct Installation {
    name: &'static str,
    values: &'static [&'static str],
    revision: &'static str,
    first_injected: [&'static str; 2],
}

const INSTALLATIONS: [Installation; 3] = [
    Installation { name: "default", values: &[], revision: "default", first_injected: ["enabled", "plain"] },
    Installation {
        name: "auto",
        values: &["injection.namespacesByDefault=true"],
        revision: "default",
        first_injected: ["plain", "plain"],
    },
    Installation {
        name: "canary",
        values: &["revision=canary"],
        revision: "canary",
        first_injected: ["rev-canary", "plain"],
    },
];

fn labels(pairs: &[(&str, &str)]) -> Value {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect::<serde_json::Map<_, _>>().into()
}

/// Whether the API server returns a pod with a proxy. Nothing is stored.
async fn is_injected(api: &ApiServer, namespace: &str, pod: &str) -> Result<bool, String> {
    let (_, marks) = PODS.iter().find(|(name, _)| *name == pod).unwrap();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels(marks)},
        "spec": {"serviceAccountName": "default", "containers": [{"name": "app", "image": "app"}]}});
    let path = format!("/api/v1/namespaces/m-{namespace}/pods?dryRun=All");
    let made = api.create(&path, &pod).await.map_err(|error| error.to_string())?;
    let lists = ["containers", "initContainers"].map(|list| made["spec"][list].as_array().cloned().unwrap_or_default());
    Ok(lists.iter().flatten().any(|container| container["name"] == "istio-proxy"))
}

/// A server of this revision that serves the webhooks.
async fn server(api: &ApiServer, revision: &str) -> (DiscoveryProcess, SocketAddr) {
    let https = SocketAddr::from(([127, 0, 0, 1], ports::free()));
    let args = vec![
        "--registries=Kubernetes".to_owned(),
        format!("--kubeconfig={}", api.kubeconfig().display()),
        format!("--httpsAddr={https}"),
    ];
    let env = [
        ("REVISION", revision),
        ("ISTIOD_CUSTOM_HOST", "127.0.0.1"),
        ("ENABLE_LEADER_ELECTION", "false"),
        ("ROOT_CA_DIR", "/nonexistent"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let options = DiscoveryOptions { args, env, ..DiscoveryOptions::default() };
    (DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), options).await, https)
}

/// Injection by namespace and pod, as the API server decides with the installation's webhook configurations.
async fn matrix(api: &ApiServer, installation: &Installation) -> BTreeMap<String, bool> {
    let chart = objects(&rendered(installation.values));
    let of_kind = |kind: &str, name: &str| {
        let found = chart.values().filter(|object| object["kind"] == kind);
        found.filter(|o| o["metadata"]["name"].as_str().unwrap().starts_with(name)).cloned().collect::<Vec<_>>()
    };
    let maps = of_kind("ConfigMap", "istio-sidecar-injector");
    let mut hooks = of_kind("MutatingWebhookConfiguration", "");
    assert!(maps.len() == 1 && hooks.len() == 1, "{maps:?} {hooks:?}");
    api.create(MAPS, &maps[0]).await.unwrap();
    let (mut server, https) = server(api, installation.revision).await;
    for webhook in hooks[0]["webhooks"].as_array_mut().unwrap() {
        // No service proxy runs here, so the API server is given the address.
        let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap().to_owned();
        webhook["clientConfig"] = json!({"url": format!("https://{https}{path}")});
    }
    api.create(HOOKS, &hooks[0]).await.unwrap();
    let [namespace, pod] = installation.first_injected;
    wait::until_within(Duration::from_secs(60), "the webhook configuration", async || {
        if is_injected(api, namespace, pod).await? { Ok(()) } else { Err("not injected".to_owned()) }
    })
    .await;
    let mut rows = BTreeMap::new();
    for (namespace, _) in NAMESPACES {
        for (pod, _) in PODS {
            let row = format!("namespace {namespace}, pod {pod}");
            let is_injected = is_injected(api, namespace, pod).await.unwrap_or_else(|error| panic!("{row}: {error}"));
            rows.insert(row, is_injected);
        }
    }
    for object in [&hooks[0], &maps[0]] {
        let collection = if object["kind"] == "ConfigMap" { MAPS } else { HOOKS };
        api.delete(&format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap())).await.unwrap();
    }
    server.process().terminate().await;
    rows
}

fn expected(name: &str) -> BTreeMap<String, bool> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/inject-cases/selectors");
    let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
    let [rows]: [BTreeMap<String, bool>; 1] = serde_json::from_str(&text).unwrap();
    assert_eq!(rows.len(), NAMESPACES.len() * PODS.len());
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn the_charts_selectors_inject_the_pods_that_upstreams_do() {
    if is_left_out(&["helm"]) {
        return;
    }
    let api = ApiServer::start().await;
    for (name, marks) in [("istio-system".to_owned(), json!({}))]
        .into_iter()
        .chain(NAMESPACES.map(|(name, marks)| (format!("m-{name}"), labels(marks))))
    {
        let namespace = json!({"metadata": {"name": name, "labels": marks}});
        api.create("/api/v1/namespaces", &namespace).await.unwrap();
    }
    for installation in &INSTALLATIONS {
        let (found, expected) = (matrix(&api, installation).await, expected(installation.name));
        let unequal: Vec<_> = expected.iter().filter(|(row, wanted)| found.get(*row) != Some(*wanted)).collect();
        assert!(unequal.is_empty(), "{}: expected, but not found: {unequal:?}", installation.name);
        let injected = found.values().filter(|is_injected| **is_injected).count();
        println!("{}: {} pods as expected, {injected} of them injected", installation.name, found.len());
    }
}
