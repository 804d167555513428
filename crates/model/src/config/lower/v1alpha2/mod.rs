//! The kinds of Istio 0.8, one file each.

mod authentication;
mod destination_policy;
mod egress_rule;
mod ingress_rule;
mod matches;
mod route_rule;
mod service;

use super::{Lowered, Old, Refused, Source};

pub(crate) use route_rule::join;
pub(super) use route_rule::shown;

const CONFIG: &str = "config.istio.io/v1alpha2";
const AUTHENTICATION: &str = "authentication.istio.io/v1alpha1";

/// The old kind of a document, by its `apiVersion` and `kind`.
pub(crate) fn kind(api_version: &str, kind: &str) -> Option<Old> {
    let old = match (api_version, kind) {
        (CONFIG, "RouteRule") => Old::RouteRule,
        (CONFIG, "EgressRule") => Old::EgressRule,
        (CONFIG, "DestinationPolicy") => Old::DestinationPolicy,
        (CONFIG, "IngressRule") => Old::IngressRule,
        (AUTHENTICATION, "Policy") => Old::Policy,
        (AUTHENTICATION, "MeshPolicy") => Old::MeshPolicy,
        (CONFIG, "HTTPAPISpec" | "HTTPAPISpecBinding" | "QuotaSpec" | "QuotaSpecBinding") => Old::Mixer,
        _ => return None,
    };
    Some(old)
}

pub(super) fn lower(old: Old, source: &Source<'_>) -> Result<Lowered, Refused> {
    match old {
        Old::RouteRule => route_rule::lower(source),
        Old::EgressRule => egress_rule::lower(source),
        Old::DestinationPolicy => destination_policy::lower(source),
        Old::IngressRule => ingress_rule::lower(source),
        Old::Policy => authentication::policy(source),
        Old::MeshPolicy => authentication::mesh_policy(source),
        Old::Mixer => Ok(Lowered {
            notes: vec!["has no effect: it is for Mixer, which Istio dropped in 1.8".to_owned()],
            ..Lowered::default()
        }),
    }
}

#[cfg(test)]
mod tests;
