//! Telemetry objects that apply to a client: mesh-wide, of its namespace, then those that select it.

use api::istio::telemetry::v1alpha1::{AccessLogging, Metrics, Telemetry, Tracing};
use model::config::Config;
use scope::View;
use scope::select::Targeted;

/// Settings of the applicable objects, widest first; later ones win.
pub(super) struct ApplicableTelemetry<'a> {
    pub(super) metrics: Vec<&'a Metrics>,
    /// One list per object.
    pub(super) logging: Vec<&'a [AccessLogging]>,
    pub(super) tracing: Vec<&'a Tracing>,
}

pub(super) fn applicable(view: &View) -> ApplicableTelemetry<'_> {
    let all = &view.extensions.telemetries;
    let (root, own) = (view.settings.root_namespace(), &*view.proxy.namespace);
    let wide_of = |namespace: &str| all.iter().find(|t| t.meta.namespace == *namespace && is_wide(t));
    let of_mesh = wide_of(&root);
    let of_namespace = if root == *own { None } else { wide_of(own) };
    let selecting = view.attached(all).into_iter().filter(|t| t.meta.namespace == *own && !is_wide(t));
    let chosen: Vec<&Telemetry> =
        of_mesh.into_iter().chain(of_namespace).chain(selecting).map(|config| &*config.spec).collect();
    ApplicableTelemetry {
        metrics: chosen.iter().flat_map(|t| &t.metrics).collect(),
        logging: chosen.iter().map(|t| &t.access_logging[..]).filter(|list| !list.is_empty()).collect(),
        tracing: chosen.iter().flat_map(|t| &t.tracing).collect(),
    }
}

/// Whether the object applies to a whole namespace or the mesh.
fn is_wide(config: &Config<Telemetry>) -> bool {
    config.spec.selector().is_none_or(|labels| labels.is_empty()) && config.spec.targets().is_empty()
}
