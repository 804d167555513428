//! The legacy kinds, one file each.

mod authentication;
mod destination_policy;
mod egress_rule;
mod ingress_rule;
mod matches;
mod route_rule;
mod service;

use super::{Kind, LegacyConversion, LegacyError, LegacyObject};

pub(super) fn convert(kind: Kind, source: &LegacyObject<'_>) -> Result<LegacyConversion, LegacyError> {
    match kind {
        Kind::RouteRule => route_rule::convert(source),
        Kind::EgressRule => egress_rule::convert(source),
        Kind::DestinationPolicy => destination_policy::convert(source),
        Kind::IngressRule => ingress_rule::convert(source),
        Kind::AuthenticationPolicy => authentication::policy(source),
        Kind::AuthenticationMeshPolicy => authentication::mesh_policy(source),
        _ => Ok(LegacyConversion {
            notes: vec!["has no effect: it is for Mixer, which Istio dropped in 1.8".to_owned()],
            ..LegacyConversion::default()
        }),
    }
}

#[cfg(test)]
mod tests;
