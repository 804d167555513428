//! EnvoyFilter patches that may have no effect.

use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use api::istio::networking::v1alpha3::envoy_filter::{ApplyTo, EnvoyConfigObjectPatch};

use super::Finding;
use super::findings::Findings;
use crate::config::problem::ProblemCode;
use crate::config::{Kind, Spec};
use crate::snapshot::Snapshot;

const RELATIVE: &str = "This EnvoyFilter does not have a priority and has a relative patch operation set which can cause \
    the EnvoyFilter not to be applied. Using the INSERT_FIRST of ADD option or setting the priority may help in \
    ensuring the EnvoyFilter is applied correctly.";
const REPLACE: &str = "The REPLACE operation is only valid for HTTP_FILTER and NETWORK_FILTER.";

/// Operations that need a priority, or that the patched object does not support.
pub(super) fn operations(snapshot: &Snapshot, found: &mut Findings) {
    for object in snapshot.objects.of(Kind::EnvoyFilter) {
        let Spec::EnvoyFilter(filter) = &object.spec else { continue };
        let operations: Vec<(ApplyTo, Operation)> = filter.config_patches.iter().map(operation).collect();
        let is_relative = |(_, operation): &(ApplyTo, Operation)| {
            use Operation::{InsertAfter, InsertBefore, Merge, Remove, Replace};
            [InsertBefore, InsertAfter, Replace, Merge, Remove].contains(operation)
        };
        if filter.priority == 0 && operations.iter().any(is_relative) {
            found.push(
                Finding::warning(ProblemCode::RelativePatch, object, RELATIVE.to_owned()).at("spec.configPatches"),
            );
        }
        for (index, (kind, operation)) in operations.into_iter().enumerate() {
            let is_route = [ApplyTo::RouteConfiguration, ApplyTo::HttpRoute].contains(&kind);
            let is_filter = [ApplyTo::HttpFilter, ApplyTo::NetworkFilter].contains(&kind);
            let ignored = |name: &str| {
                format!(
                    "The {name} operation will be ignored when applyTo is set to ROUTE_CONFIGURATION, or HTTP_ROUTE."
                )
            };
            let finding = match operation {
                Operation::Replace if !is_filter => {
                    Finding::error(ProblemCode::ReplacePatch, object, REPLACE.to_owned())
                }
                Operation::Add if is_route => Finding::error(ProblemCode::AddPatch, object, ignored("ADD")),
                Operation::Remove if is_route => Finding::error(ProblemCode::RemovePatch, object, ignored("REMOVE")),
                _ => continue,
            };
            found.push(finding.at(format!("spec.configPatches[{index}].patch.operation")));
        }
    }
}

fn operation(patch: &EnvoyConfigObjectPatch) -> (ApplyTo, Operation) {
    (patch.apply_to(), patch.patch.as_ref().map_or(Operation::Invalid, |patch| patch.operation()))
}
