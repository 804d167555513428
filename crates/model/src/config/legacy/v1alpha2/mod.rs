//! The kinds of Istio 0.8, one file each.

mod authentication;
mod destination_policy;
mod egress_rule;
mod ingress_rule;
mod matches;
mod route_rule;
mod service;

use super::{LegacyConversion, LegacyError, LegacyKind, LegacyObject};

const CONFIG: &str = "config.istio.io/v1alpha2";
const AUTHENTICATION: &str = "authentication.istio.io/v1alpha1";

/// The legacy kind of a document, by its `apiVersion` and `kind`.
pub(crate) fn kind(api_version: &str, kind: &str) -> Option<LegacyKind> {
    let old = match (api_version, kind) {
        (CONFIG, "RouteRule") => LegacyKind::RouteRule,
        (CONFIG, "EgressRule") => LegacyKind::EgressRule,
        (CONFIG, "DestinationPolicy") => LegacyKind::DestinationPolicy,
        (CONFIG, "IngressRule") => LegacyKind::IngressRule,
        (AUTHENTICATION, "Policy") => LegacyKind::Policy,
        (AUTHENTICATION, "MeshPolicy") => LegacyKind::MeshPolicy,
        (CONFIG, "HTTPAPISpec" | "HTTPAPISpecBinding" | "QuotaSpec" | "QuotaSpecBinding") => LegacyKind::Mixer,
        _ => return None,
    };
    Some(old)
}

pub(super) fn convert(old: LegacyKind, source: &LegacyObject<'_>) -> Result<LegacyConversion, LegacyError> {
    match old {
        LegacyKind::RouteRule => route_rule::convert(source),
        LegacyKind::EgressRule => egress_rule::convert(source),
        LegacyKind::DestinationPolicy => destination_policy::convert(source),
        LegacyKind::IngressRule => ingress_rule::convert(source),
        LegacyKind::Policy => authentication::policy(source),
        LegacyKind::MeshPolicy => authentication::mesh_policy(source),
        LegacyKind::Mixer => Ok(LegacyConversion {
            notes: vec!["has no effect: it is for Mixer, which Istio dropped in 1.8".to_owned()],
            ..LegacyConversion::default()
        }),
    }
}

#[cfg(test)]
mod tests;
