//! Extension configs (ECDS): those of Wasm modules, and those that patches add.

use api::Resource;
use api::envoy::config::core::v3::TypedExtensionConfig;
use api::istio::networking::v1alpha3::envoy_filter::ApplyTo;
use model::hashed::Hashed;
use scope::View;

use super::{PatchedPlan, added_resource, value};
use crate::extension::{self, WasmPlan};

/// What patches add, in any context, then the planned modules.
pub(crate) fn patched(view: &View, plans: Vec<WasmPlan>) -> Vec<PatchedPlan<WasmPlan>> {
    let added = view.patches.adding(ApplyTo::ExtensionConfig).filter_map(|patch| {
        let config: TypedExtensionConfig = value(patch)?;
        Some(PatchedPlan::Added { name: config.name.into(), patch: patch.clone() })
    });
    let unpatched = Hashed::new(Vec::new());
    let planned = plans.into_iter().map(|plan| PatchedPlan::Planned { plan, patches: unpatched.clone() });
    added.chain(planned).collect()
}

/// The encoded extension config.
pub(crate) fn resource(plan: &PatchedPlan<WasmPlan>) -> Resource {
    match plan {
        PatchedPlan::Planned { plan, .. } => extension::resource(plan),
        PatchedPlan::Added { name, patch } => match value::<TypedExtensionConfig>(patch) {
            Some(config) => Resource::new(name.clone(), &config),
            None => added_resource(name, patch),
        },
    }
}
