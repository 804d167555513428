//! Configs of extensions that patches add, which Envoy asks for by name.

use api::Resource;
use api::envoy::config::core::v3::TypedExtensionConfig;
use api::istio::networking::v1alpha3::envoy_filter::ApplyTo;
use scope::View;

use super::value;

/// All that this client may ask for, whatever context the patches name.
pub(crate) fn resources(view: &View) -> Vec<Resource> {
    let found = view.patches.adding(ApplyTo::ExtensionConfig).filter_map(|patch| {
        let config: TypedExtensionConfig = value(patch)?;
        Some(Resource::new(config.name.clone(), &config))
    });
    found.collect()
}
