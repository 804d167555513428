//! Istio metadata of a cluster: services, DestinationRule, subset.

use api::envoy::config::cluster::v3::Cluster;
use api::istio::networking::v1alpha3::client_tls_settings::TlSmode;
use api::{Struct, Value, value};

use crate::plan::cluster::{AppliedRule, ServiceLabel};
use crate::render::endpoints::{fields, text};

const ISTIO: &str = "istio";

/// Adds the services.
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

/// Marks the cluster as external.
pub(super) fn add_external(cluster: &mut Cluster) {
    add(cluster, "external", Value { kind: Some(value::Kind::BoolValue(true)) });
}

/// Adds the DestinationRule and subset.
pub(super) fn add_rule(cluster: &mut Cluster, rule: &AppliedRule) {
    let AppliedRule { namespace, name, .. } = rule;
    let path = format!("/apis/networking.istio.io/v1/namespaces/{namespace}/destination-rule/{name}");
    add(cluster, "config", text(path));
    if let Some(subset) = rule.subset() {
        add(cluster, "subset", text(subset.name.as_str()));
    }
}

/// Keeps the ALPN filter from offering mesh protocols if the rule sets SIMPLE or MUTUAL TLS.
pub(super) fn add_alpn_override(cluster: &mut Cluster, mode: Option<TlSmode>) {
    if matches!(mode, Some(TlSmode::Simple | TlSmode::Mutual)) {
        add(cluster, "alpn_override", text("false"));
    }
}

/// Whether any metadata was added.
pub(super) fn is_present(cluster: &Cluster) -> bool {
    cluster.metadata.is_some()
}

fn add(cluster: &mut Cluster, key: &str, value: Value) {
    let metadata = cluster.metadata.get_or_insert_default();
    let istio: &mut Struct = metadata.filter_metadata.entry(ISTIO.to_owned()).or_default();
    istio.fields.insert(key.to_owned(), value);
}
