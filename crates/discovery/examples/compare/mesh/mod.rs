//! A random mesh: services of every kind with their pods, and rules about them. The same seed gives the same objects.
//! `services.rs` and `entries.rs` make services, `proxies.rs` proxies, `settings.rs` mesh config, and every other file one
//! family of rules.

mod destinations;
mod dice;
mod entries;
mod gateway_api;
mod gateways;
mod ingresses;
mod policies;
mod proxies;
mod routes;
mod services;
mod settings;
mod sidecars;
mod telemetry;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testkit::cases::CaseProxy;

use self::dice::Dice;

const NAMESPACES: &[&str] = &["alpha", "beta", "gamma", "delta", "epsilon", "zeta"];
/// The root namespace, which also has the gateways.
const ROOT: &str = "istio-system";

/// The cluster of the object that is created last.
pub(crate) const LAST_CLUSTER: &str = "outbound|80||last.alpha.svc.cluster.local";

/// Objects to create, and proxies that subscribe.
pub(crate) struct Mesh {
    pub(crate) objects: Vec<Value>,
    /// Created after everything else is known.
    pub(crate) last: Vec<Value>,
    pub(crate) proxies: Vec<CaseProxy>,
    /// Mesh config and networks, as files have them.
    pub(crate) settings: String,
    pub(crate) networks: String,
}

impl Mesh {
    /// Number of objects of each kind.
    pub(crate) fn summary(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for object in &self.objects {
            *counts.entry(object["kind"].as_str().unwrap_or_default()).or_default() += 1;
        }
        counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect::<Vec<_>>().join(", ")
    }
}

/// A mesh with this many services.
pub(crate) fn generate(services: usize, seed: u64) -> Mesh {
    let mut dice = Dice::new(seed);
    let mut objects = namespaces();
    objects.extend(services::nodes());
    let town = services::generate(services, &mut dice, &mut objects);
    entries::generate(services / 5, &mut dice, &mut objects);
    gateways::generate(&mut dice, &mut objects);
    routes::generate(&town, services * 3 / 5, &mut dice, &mut objects);
    destinations::generate(&town, services / 2, &mut dice, &mut objects);
    policies::generate(&town, &mut dice, &mut objects);
    sidecars::generate(&town, &mut dice, &mut objects);
    telemetry::generate(&town, &mut dice, &mut objects);
    gateway_api::generate(&town, &mut dice, &mut objects);
    ingresses::generate(&town, &mut dice, &mut objects);
    let last = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "last", "namespace": "alpha"},
        "spec": {"clusterIP": "10.96.200.1", "ports": [{"name": "http", "port": 80}]}});
    let proxies = proxies::all(&town);
    let settings = settings::generate(seed, &mut dice);
    let networks = json!({"networks": {"far": {"endpoints": [{"fromCidr": "172.17.0.0/16"}],
        "gateways": [{"address": "203.0.113.200", "port": 15443}]}}});
    Mesh { objects, last: vec![last], proxies, settings, networks: networks.to_string() }
}

fn namespaces() -> Vec<Value> {
    let of = |name: &&str| {
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, "team": name}}})
    };
    NAMESPACES.iter().chain([&ROOT]).map(of).collect()
}

/// An object of Istio's groups.
fn istio(kind: &str, group: &str, namespace: &str, name: &str, spec: Value) -> Value {
    let version = match kind {
        "EnvoyFilter" => "v1alpha3",
        "WasmPlugin" | "TrafficExtension" => "v1alpha1",
        "ProxyConfig" => "v1beta1",
        _ => "v1",
    };
    json!({"apiVersion": format!("{group}/{version}"), "kind": kind,
        "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}
