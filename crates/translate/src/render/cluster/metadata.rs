//! What telemetry and people read on a cluster: its services, its rule, its subset.

use api::envoy::config::cluster::v3::Cluster;
use api::istio::networking::v1alpha3::client_tls_settings::TlSmode;
use api::{Struct, Value, value};

use crate::plan::cluster::{AppliedRule, ServiceLabel};
use crate::render::endpoints::{fields, text};

const ISTIO: &str = "istio";

/// Lists services.
pub(super) fn add_services<'a>(cluster: &mut Cluster, services: impl IntoIterator<Item = &'a ServiceLabel>) {
    let one = |label: &ServiceLabel| {
        let named = fields([
            ("host", text(label.host.as_str())),
            ("name", text(&*label.name)),
            ("namespace", text(label.namespace.as_str())),
        ]);
        Value { kind: Some(value::Kind::StructValue(named)) }
    };
    let values = services.into_iter().map(one).collect();
    add(cluster, "services", Value { kind: Some(value::Kind::ListValue(prost_types::ListValue { values })) });
}

/// Says that no sidecar answers there.
pub(super) fn add_external(cluster: &mut Cluster) {
    add(cluster, "external", Value { kind: Some(value::Kind::BoolValue(true)) });
}

/// Names the rule that formed the cluster.
pub(super) fn add_rule(cluster: &mut Cluster, rule: &AppliedRule) {
    let AppliedRule { namespace, name, .. } = rule;
    let path = format!("/apis/networking.istio.io/v1/namespaces/{namespace}/destination-rule/{name}");
    add(cluster, "config", text(path));
    if let Some(subset) = rule.subset() {
        add(cluster, "subset", text(subset.name.as_str()));
    }
}

/// Keeps the ALPN filter from offering mesh protocols to a server that the rule gives TLS of its own.
pub(super) fn add_alpn_override(cluster: &mut Cluster, mode: Option<TlSmode>) {
    if matches!(mode, Some(TlSmode::Simple | TlSmode::Mutual)) {
        add(cluster, "alpn_override", text("false"));
    }
}

/// Whether anything was said.
pub(super) fn is_present(cluster: &Cluster) -> bool {
    cluster.metadata.is_some()
}

fn add(cluster: &mut Cluster, key: &str, value: Value) {
    let metadata = cluster.metadata.get_or_insert_default();
    let istio: &mut Struct = metadata.filter_metadata.entry(ISTIO.to_owned()).or_default();
    istio.fields.insert(key.to_owned(), value);
}
