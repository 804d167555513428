//! Injection and admission: reviews, pods, templates, values, JSON patches.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use api::istio::mesh::v1alpha1::MeshConfig;
use inject::{
    ChartValues, Injection, InjectionInput, InjectorConfig, MeshInputs, NativeMode, ReviewInputs, Workload, difference,
    effective, inject, review,
};
use model::config::mesh::default_mesh;
use serde_json::{Value, json};

const VALUES: &str = "{global: {hub: h, tag: t, proxy: {statusPort: 15020}, network: n1}, \
    sidecarInjectorWebhook: {rewriteAppHTTPProbe: true}, pilot: {cni: {enabled: false}}}";

struct InjectorSettings {
    config: InjectorConfig,
    values: ChartValues,
    mesh: MeshConfig,
    environment: BTreeMap<String, String>,
}

impl InjectorSettings {
    fn shared(&self) -> MeshInputs<'_> {
        MeshInputs {
            config: &self.config,
            values: &self.values,
            mesh: &self.mesh,
            revision: "default",
            compliance_policy: "",
            environment: &self.environment,
        }
    }
}

fn settings(config: &str, values: &str) -> Option<InjectorSettings> {
    let (config, _) = InjectorConfig::parse(config).ok()?;
    Some(InjectorSettings {
        config,
        values: ChartValues::parse(values).ok()?,
        mesh: default_mesh(),
        environment: BTreeMap::new(),
    })
}

static SETTINGS: LazyLock<InjectorSettings> =
    LazyLock::new(|| settings("policy: enabled", VALUES).expect("valid settings"));

fn injected(settings: &InjectorSettings, pod: &Value) -> Option<Injection> {
    let shared = settings.shared();
    inject(&InjectionInput {
        shared,
        pod,
        workload: Workload::of_pod(pod, "shop"),
        proxy_config: effective(shared.mesh, &[], pod, "shop"),
        native: false,
        variables: BTreeMap::new(),
        by_hand: false,
    })
    .ok()
}

fn example() -> Value {
    json!({
        "metadata": {"name": "cart", "labels": {"app": "cart"}, "annotations": {"inject.istio.io/templates": "fuzz"}},
        "spec": {"containers": [{"name": "cart", "image": "cart:1", "ports": [{"name": "http", "containerPort": 8080}],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}}}]},
    })
}

/// The body of a review, for both webhooks.
pub(crate) fn admission_review(data: &[u8]) {
    let inputs =
        ReviewInputs { shared: SETTINGS.shared(), proxy_configs: &[], native: NativeMode::Auto, nodes: Some(&[]) };
    let _ = review(data, "/inject/cluster/east/net/one", &inputs).body.to_string();
    let _ = discovery::validation_answer(data);
}

/// A pod. The patch of an injected one gives exactly the pod that was computed.
pub(crate) fn pod(data: &[u8]) {
    let Ok(pod) = serde_json::from_slice::<Value>(data) else { return };
    if let Some(injection) = injected(&SETTINGS, &pod) {
        check_patch(&pod, &injection.pod);
    }
}

/// A template in upstream's language.
pub(crate) fn template(data: &[u8]) {
    let config = json!({"policy": "enabled", "templates": {"fuzz": String::from_utf8_lossy(data)}});
    if let Some(settings) = settings(&config.to_string(), VALUES) {
        let _ = injected(&settings, &example());
    }
}

/// Values of the chart.
pub(crate) fn values(data: &[u8]) {
    let mut pod = example();
    pod["metadata"]["annotations"] = json!({});
    if let Some(settings) = settings("policy: enabled", &String::from_utf8_lossy(data)) {
        let _ = injected(&settings, &pod);
    }
}

/// Two values, one line each: the patch from one to the other.
pub(crate) fn json_patch(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Some((before, after)) = text.split_once('\n') else { return };
    if let (Ok(before), Ok(after)) = (serde_json::from_str(before), serde_json::from_str(after)) {
        check_patch(&before, &after);
    }
}

fn check_patch(before: &Value, after: &Value) {
    let patch = Value::Array(difference(before, after));
    let operations: json_patch::Patch = serde_json::from_value(patch.clone()).expect("our own patch");
    let mut patched = before.clone();
    json_patch::patch(&mut patched, &operations).unwrap_or_else(|error| panic!("{error}: {before} {patch}"));
    assert_eq!(patched, *after, "{before} {patch}");
}
