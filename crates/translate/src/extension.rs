//! TrafficExtensions: user code in filter chains. Lua code is inlined in the listener. A Wasm module is only named
//! there; its config is served by ECDS.

use std::collections::BTreeMap;

use api::envoy::config::core::v3::{
    AggregatedConfigSource, ApiVersion, AsyncDataSource, ConfigSource, DataSource, ExtensionConfigSource, HttpUri,
    RemoteDataSource, TypedExtensionConfig, async_data_source, config_source, data_source, http_uri,
};
use api::envoy::extensions::filters::http::wasm::v3::Wasm as HttpWasm;
use api::envoy::extensions::filters::network::wasm::v3::Wasm as NetworkWasm;
use api::envoy::extensions::wasm::v3::plugin_config::Vm;
use api::envoy::extensions::wasm::v3::{EnvironmentVariables, FailurePolicy, PluginConfig, VmConfig};
use api::istio::extensions::v1alpha1::traffic_extension::{ExecutionPhase, FilterConfig};
use api::istio::extensions::v1alpha1::{EnvValueSource, FailStrategy, PluginType, TrafficExtension, WasmConfig};
use api::{Any, Resource, any};
use model::config::{Config, Meta};
use model::hashed::Hashed;
use model::names::Str;
use prost::{Message, Name};
use prost_types::Duration;
use scope::View;
use scope::extensions::{Side, askable, of_phase};

use crate::listener_side::ListenerSide;
use crate::proto_struct::json_of;

/// Whether an extension's filter is an HTTP filter or a network filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FilterLevel {
    Http,
    Network,
}

/// One extension in a filter chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Extension {
    Lua {
        name: Str,
        code: Str,
    },
    /// Its config is fetched by ECDS.
    Wasm {
        name: Str,
    },
}

/// Extensions of one phase for one listener, in execution order.
pub(crate) fn extensions(
    view: &View,
    phase: ExecutionPhase,
    level: FilterLevel,
    side: ListenerSide,
    port: u32,
) -> Vec<Extension> {
    let end = if side == ListenerSide::SidecarInbound { Side::Server } else { Side::Client };
    of_phase(view, phase, end, port).into_iter().filter_map(|e| extension(view, e, level)).collect()
}

fn extension(view: &View, config: &Config<TrafficExtension>, level: FilterLevel) -> Option<Extension> {
    let name: Str = name(&config.meta).into();
    match config.spec.filter_config.as_ref()? {
        FilterConfig::Lua(lua) if level == FilterLevel::Http && has(view, "envoy.filters.http.lua") => {
            Some(Extension::Lua { name, code: lua.inline_code.as_str().into() })
        }
        FilterConfig::Wasm(wasm) if level_of(wasm) == level && has(view, wasm_filter(level)) => {
            Some(Extension::Wasm { name })
        }
        FilterConfig::Lua(_) | FilterConfig::Wasm(_) => None,
    }
}

/// Whether this Envoy has a filter. An Envoy that does not list its extensions is assumed to be an official build.
fn has(view: &View, filter: &str) -> bool {
    view.proxy.extensions.is_empty() || view.proxy.extensions.contains(filter)
}

fn wasm_filter(level: FilterLevel) -> &'static str {
    match level {
        FilterLevel::Http => "envoy.filters.http.wasm",
        FilterLevel::Network => "envoy.filters.network.wasm",
    }
}

fn level_of(wasm: &WasmConfig) -> FilterLevel {
    if wasm.r#type() == PluginType::Network { FilterLevel::Network } else { FilterLevel::Http }
}

fn name(meta: &Meta) -> String {
    format!("extensions.istio.io/trafficextension/{}.{}", meta.namespace, meta.name)
}

/// The ECDS source of a filter. RBAC is an allowed type because the agent serves it for a module that it cannot load.
fn discovered(level: FilterLevel) -> ExtensionConfigSource {
    use api::envoy::extensions::filters::http::rbac::v3::Rbac as HttpRbac;
    use api::envoy::extensions::filters::network::rbac::v3::Rbac as NetworkRbac;
    let type_urls = match level {
        FilterLevel::Http => [HttpWasm::type_url(), HttpRbac::type_url()],
        FilterLevel::Network => [NetworkWasm::type_url(), NetworkRbac::type_url()],
    };
    ExtensionConfigSource {
        config_source: Some(ConfigSource {
            config_source_specifier: Some(config_source::ConfigSourceSpecifier::Ads(AggregatedConfigSource {})),
            resource_api_version: ApiVersion::V3 as i32,
            // No timeout: an extension may protect the workload, so the listener waits for it.
            initial_fetch_timeout: Some(Duration::default()),
            ..ConfigSource::default()
        }),
        type_urls: type_urls.into(),
        ..ExtensionConfigSource::default()
    }
}

/// Where a filter's config comes from.
pub enum FilterConfigSource {
    Typed(Any),
    Discovered(Box<ExtensionConfigSource>),
}

impl Extension {
    pub fn name(&self) -> &Str {
        match self {
            Extension::Lua { name, .. } | Extension::Wasm { name } => name,
        }
    }

    /// The filter's config, or its ECDS source.
    pub fn source(&self, level: FilterLevel) -> FilterConfigSource {
        match self {
            Extension::Wasm { .. } => FilterConfigSource::Discovered(Box::new(discovered(level))),
            Extension::Lua { code, .. } => {
                let code = data_source::Specifier::InlineString(code.to_string());
                let lua = LuaFilter {
                    default_source_code: Some(DataSource { specifier: Some(code), ..DataSource::default() }),
                };
                FilterConfigSource::Typed(Any { type_url: LUA.to_owned(), value: lua.encode_to_vec() })
            }
        }
    }
}

const LUA: &str = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua";

/// The one field of Envoy's Lua filter that is set; no Rust type is generated for the message.
#[derive(Clone, PartialEq, Message)]
struct LuaFilter {
    #[prost(message, optional, tag = "3")]
    default_source_code: Option<DataSource>,
}

/// The input of one Wasm module's config.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WasmPlan {
    pub(crate) resource: Str,
    plugin: Str,
    version: Str,
    wasm: Hashed<WasmConfig>,
}

/// All Wasm modules that this client may request by ECDS.
pub(crate) fn modules(view: &View) -> Vec<WasmPlan> {
    let found = askable(view).filter_map(|config| match config.spec.filter_config.as_ref()? {
        FilterConfig::Lua(_) => None,
        FilterConfig::Wasm(wasm) => Some(WasmPlan {
            resource: name(&config.meta).into(),
            plugin: format!("{}.{}", config.meta.namespace, config.meta.name).into(),
            version: config.meta.resource_version.clone(),
            wasm: Hashed::from_message(wasm.clone()),
        }),
    });
    found.collect()
}

/// The ECDS resource of a module.
pub(crate) fn resource(plan: &WasmPlan) -> Resource {
    let config = Some(plugin_config(plan));
    let typed = match level_of(&plan.wasm) {
        FilterLevel::Http => any(&HttpWasm { config }),
        FilterLevel::Network => any(&NetworkWasm { config }),
    };
    let extension = TypedExtensionConfig { name: plan.resource.to_string(), typed_config: Some(typed) };
    Resource::new(plan.resource.clone(), &extension)
}

fn plugin_config(plan: &WasmPlan) -> PluginConfig {
    let wasm = &plan.wasm;
    let failure_policy = match wasm.fail_strategy() {
        FailStrategy::FailClose => FailurePolicy::FailClosed,
        FailStrategy::FailOpen => FailurePolicy::FailOpen,
        FailStrategy::FailReload => FailurePolicy::FailReload,
    };
    PluginConfig {
        name: plan.plugin.to_string(),
        root_id: wasm.plugin_name.clone(),
        configuration: Some(configuration(wasm)),
        failure_policy: failure_policy as i32,
        vm: Some(Vm::VmConfig(VmConfig {
            runtime: "envoy.wasm.runtime.v8".to_owned(),
            code: Some(code(wasm)),
            environment_variables: Some(environment(plan)),
            ..VmConfig::default()
        })),
        ..PluginConfig::default()
    }
}

/// The plugin's own config, as JSON in a StringValue.
fn configuration(wasm: &WasmConfig) -> Any {
    match wasm.plugin_config.as_ref().filter(|config| !config.fields.is_empty()) {
        None => Any::default(),
        Some(config) => Any {
            type_url: "type.googleapis.com/google.protobuf.StringValue".to_owned(),
            value: escaped(&json_of(config).to_string()).encode_to_vec(),
        },
    }
}

/// Escapes the characters that Go's JSON encoder escapes for HTML, so that the bytes equal upstream's.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => text.push_str(&format!("\\u{:04x}", u32::from(letter))),
            other => text.push(other),
        }
    }
    text
}

/// A local file, or a URL. The agent fetches URLs before Envoy sees the config, so the cluster name is a placeholder.
fn code(wasm: &WasmConfig) -> AsyncDataSource {
    let url = wasm.url.as_str();
    let specifier = match url.strip_prefix("file://") {
        Some(path) => {
            let file = data_source::Specifier::Filename(path.to_owned());
            async_data_source::Specifier::Local(DataSource { specifier: Some(file), ..DataSource::default() })
        }
        None => async_data_source::Specifier::Remote(RemoteDataSource {
            http_uri: Some(HttpUri {
                uri: if url.contains("://") { url.to_owned() } else { format!("oci://{url}") },
                timeout: Some(Duration { seconds: 30, nanos: 0 }),
                http_upstream_type: Some(http_uri::HttpUpstreamType::Cluster("_".to_owned())),
            }),
            sha256: wasm.sha256.clone(),
            ..RemoteDataSource::default()
        }),
    };
    AsyncDataSource { specifier: Some(specifier) }
}

/// The module's environment variables. The agent reads and removes those that begin with `ISTIO_META_`.
fn environment(plan: &WasmPlan) -> EnvironmentVariables {
    let wasm = &plan.wasm;
    let mut key_values = BTreeMap::new();
    if !wasm.image_pull_secret.is_empty() {
        // Upstream puts the pull secret's content here. It is not read, so the image is pulled without credentials.
        key_values.insert("ISTIO_META_WASM_IMAGE_PULL_SECRET".to_owned(), String::new());
    }
    if wasm.image_pull_policy != 0 {
        let policy = wasm.image_pull_policy().as_str_name().to_owned();
        key_values.insert("ISTIO_META_WASM_IMAGE_PULL_POLICY".to_owned(), policy);
    }
    key_values.insert("ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION".to_owned(), plan.version.to_string());
    let mut host_env_keys = Vec::new();
    for variable in wasm.vm_config.iter().flat_map(|vm| &vm.env) {
        match variable.value_from() {
            EnvValueSource::Inline => _ = key_values.insert(variable.name.clone(), variable.value.clone()),
            EnvValueSource::Host => host_env_keys.push(variable.name.clone()),
        }
    }
    EnvironmentVariables { host_env_keys, key_values }
}
