//! Converts WasmPlugins to TrafficExtensions, so that other code handles only one kind.

use std::sync::Arc;

use api::istio::extensions::v1alpha1::traffic_extension::FilterConfig;
use api::istio::extensions::v1alpha1::{TrafficExtension, TrafficSelector, WasmConfig, WasmPlugin};

use crate::config::{Config, Meta};
use crate::hashed::Hashed;

/// Name suffix of converted plugins. `~` is not valid in object names, so no object is shadowed.
const MARK: &str = "~istio-translated-wasmplugin";

pub(super) fn extension(plugin: &Config<WasmPlugin>) -> Config<TrafficExtension> {
    let spec = &plugin.spec;
    // `targetRef` is deprecated; `targetRefs` takes precedence.
    let target_refs = match spec.target_refs.as_slice() {
        [] => spec.target_ref.iter().cloned().collect(),
        list => list.to_vec(),
    };
    let extension = TrafficExtension {
        selector: spec.selector.clone(),
        target_refs,
        phase: spec.phase,
        priority: spec.priority,
        r#match: spec.r#match.iter().map(|m| TrafficSelector { mode: m.mode, ports: m.ports.clone() }).collect(),
        filter_config: Some(FilterConfig::Wasm(WasmConfig {
            url: spec.url.clone(),
            sha256: spec.sha256.clone(),
            image_pull_policy: spec.image_pull_policy,
            image_pull_secret: spec.image_pull_secret.clone(),
            verification_key: spec.verification_key.clone(),
            plugin_config: spec.plugin_config.clone(),
            plugin_name: spec.plugin_name.clone(),
            fail_strategy: spec.fail_strategy,
            vm_config: spec.vm_config.clone(),
            r#type: spec.r#type,
        })),
    };
    let meta = Meta { name: format!("{}{MARK}", plugin.meta.name).into(), ..Meta::clone(&plugin.meta) };
    Config { meta: Arc::new(meta), spec: Hashed::from_message(extension) }
}
