//! Parses mesh config and mesh networks, merged over the defaults as upstream does: a given field replaces the default
//! completely, except for proxy config, providers and trust domain aliases, which are merged.

mod defaults;

use std::collections::BTreeSet;

use api::istio::mesh::v1alpha1::mesh_config::{DefaultProviders, ExtensionProvider};
use api::istio::mesh::v1alpha1::proxy_config::ProxyHeaders;
use api::istio::mesh::v1alpha1::{MeshConfig, MeshNetworks, ProxyConfig};
use prost::{Message, Name};
use prost_reflect::DynamicMessage;
use serde_json::{Map, Value, json};

pub use defaults::{default_mesh, default_proxy_config};

use super::message::{self, FieldFinding};
use super::text::{self, Chunk};
use super::{parse, validate};
use crate::config::problem::{FileLocation, Problem, ProblemCode, Severity, Subject};
use crate::hashed::Hashed;
use crate::names::Str;
use crate::settings::{Mesh, Networks};

/// Parses a MeshConfig document over the defaults. If there is an error among the problems, the value is the defaults;
/// the caller should keep its previous value.
pub fn parse_mesh(text: &str, file: &str) -> (Mesh, Vec<Problem>) {
    let (json, location, source, mut problems) = single_document(text, file);
    let about = Subject::Setting("MeshConfig".into());
    let (mesh, findings) = mesh_over(default_mesh(), &json);
    problems.extend(parse::located(parse::problems(findings, &about, &location), source));
    problems.extend(validate::validate_mesh(&mesh, Some(location)));
    usable(mesh, default_mesh, problems)
}

/// Parses a ProxyConfig document over a base. If there is an error among the problems, the value is the base.
pub fn parse_proxy_config(base: &ProxyConfig, text: &str, file: &str) -> (ProxyConfig, Vec<Problem>) {
    let (json, location, source, mut problems) = single_document(text, file);
    let about = Subject::Setting("ProxyConfig".into());
    let (config, findings) = proxy_config_over(base, &json, "");
    problems.extend(parse::located(parse::problems(findings, &about, &location), source));
    problems.extend(validate::validate_proxy_config(&config, Some(location)));
    let refused = problems.iter().any(|problem| problem.severity == Severity::Error);
    (if refused { base.clone() } else { config }, problems)
}

/// Parses a MeshNetworks document. If there is an error among the problems, the value is empty.
pub fn parse_networks(text: &str, file: &str) -> (Networks, Vec<Problem>) {
    let (json, location, source, mut problems) = single_document(text, file);
    let about = Subject::Setting("MeshNetworks".into());
    // Helm charts write this for no networks.
    let given = if json == json!({"networks": {}}) { &Value::Null } else { &json };
    let (networks, findings) = over(&MeshNetworks::default(), given, "");
    problems.extend(parse::located(parse::problems(findings, &about, &location), source));
    problems.extend(validate::validate_networks(&networks, Some(location)));
    usable(networks, MeshNetworks::default, problems)
}

/// The ProxyConfig of one proxy: the one that it sent as JSON, else that of the mesh. They are not merged: the agent
/// already merged the mesh's settings.
pub fn effective_proxy_config(mesh: &MeshConfig, sent: &str) -> ProxyConfig {
    let json = serde_json::from_str(sent).ok().filter(Value::is_object);
    match json {
        Some(json) => over(&ProxyConfig::default(), &json, "").0,
        None => mesh.default_config.clone().unwrap_or_else(default_proxy_config),
    }
}

fn mesh_over(base: MeshConfig, json: &Value) -> (MeshConfig, Vec<FieldFinding>) {
    let (mut mesh, findings) = over(&base, json, "");
    let given = |key: &str| json.get(key).filter(|value| !value.is_null());
    mesh.default_config = base.default_config;
    if let Some(given) = given("defaultConfig") {
        let before = mesh.default_config.unwrap_or_default();
        // The findings are already known from the first pass.
        mesh.default_config = Some(proxy_config_over(&before, given, "defaultConfig").0);
    }
    mesh.default_providers = base.default_providers;
    if let Some(given) = given("defaultProviders") {
        let before: DefaultProviders = mesh.default_providers.unwrap_or_default();
        mesh.default_providers = Some(over(&before, given, "defaultProviders").0);
    }
    let providers = std::mem::take(&mut mesh.extension_providers);
    mesh.extension_providers = joined_providers(base.extension_providers, providers);
    let aliases: BTreeSet<String> = mesh.trust_domain_aliases.into_iter().chain(base.trust_domain_aliases).collect();
    mesh.trust_domain_aliases = aliases.into_iter().collect();
    (mesh, findings)
}

fn proxy_config_over(base: &ProxyConfig, json: &Value, root: &str) -> (ProxyConfig, Vec<FieldFinding>) {
    let (mut config, findings) = over(base, json, root);
    let metadata = base.proxy_metadata.clone();
    config.proxy_metadata = metadata.into_iter().chain(config.proxy_metadata).collect();
    if let (Some(given), Some(before)) = (&mut config.proxy_headers, &base.proxy_headers) {
        keep_headers(given, before);
    }
    (config, findings)
}

/// As in upstream, these five header settings are kept if not given.
fn keep_headers(given: &mut ProxyHeaders, before: &ProxyHeaders) {
    if given.forwarded_client_cert == 0 {
        given.forwarded_client_cert = before.forwarded_client_cert;
    }
    given.request_id = given.request_id.or(before.request_id);
    given.attempt_count = given.attempt_count.or(before.attempt_count);
    given.server = given.server.take().or_else(|| before.server.clone());
    given.envoy_debug_headers = given.envoy_debug_headers.or(before.envoy_debug_headers);
}

/// Replaces providers of the same name in place and appends the others.
fn joined_providers(base: Vec<ExtensionProvider>, read: Vec<ExtensionProvider>) -> Vec<ExtensionProvider> {
    let mut joined = base;
    for provider in read {
        match joined.iter_mut().find(|known| known.name == provider.name) {
            Some(known) => known.provider = provider.provider,
            None => joined.push(provider),
        }
    }
    joined
}

/// Parses fields over an existing message.
fn over<M: Message + Name + Default + Clone>(base: &M, json: &Value, root: &str) -> (M, Vec<FieldFinding>) {
    // Empty input must not load the descriptor pool, which takes megabytes.
    if json.is_null() || json.as_object().is_some_and(Map::is_empty) {
        return (base.clone(), Vec::new());
    }
    let descriptor = api::reflect::istio().get_message_by_name(&M::full_name());
    let dynamic = descriptor.and_then(|d| DynamicMessage::decode(d, base.encode_to_vec().as_slice()).ok());
    let Some(mut dynamic) = dynamic else {
        return (base.clone(), vec![failure("the descriptor is missing")]);
    };
    let mut findings = message::read_into(&mut dynamic, json, root);
    let read = M::decode(dynamic.encode_to_vec().as_slice()).unwrap_or_else(|error| {
        findings.push(failure(&error.to_string()));
        base.clone()
    });
    (read, findings)
}

fn failure(message: &str) -> FieldFinding {
    FieldFinding::error(message)
}

/// The single document of a text; null if it is empty.
fn single_document<'a>(text: &'a str, file: &str) -> (Value, FileLocation, Option<Chunk<'a>>, Vec<Problem>) {
    let file: Str = file.into();
    let mut documents = text::read(text);
    let Some(first) = documents.next() else {
        return (Value::Null, FileLocation { file, line: 1 }, None, Vec::new());
    };
    let location = FileLocation { file: file.clone(), line: first.line };
    let mut problems = Vec::new();
    if documents.next().is_some() {
        problems.push(
            Problem::warning(Subject::File(file.clone()), "only the first document is read")
                .coded(ProblemCode::Setting)
                .at(Some(location.clone())),
        );
    }
    let value = first.content.unwrap_or_else(|error| {
        let location = FileLocation { file: file.clone(), line: if error.line == 0 { first.line } else { error.line } };
        problems.push(
            Problem::error(Subject::File(file), format!("could not parse the document: {}", error.message))
                .coded(ProblemCode::Syntax)
                .at(Some(location)),
        );
        Value::Null
    });
    (value, location, first.source, problems)
}

fn usable<M: Message + Clone>(read: M, fallback: fn() -> M, problems: Vec<Problem>) -> (Hashed<M>, Vec<Problem>) {
    let refused = problems.iter().any(|problem| problem.severity == Severity::Error);
    (Hashed::from_message(if refused { fallback() } else { read }), problems)
}

#[cfg(test)]
mod tests {
    use api::istio::mesh::v1alpha1::MeshConfig;

    use super::{
        default_mesh, default_proxy_config, effective_proxy_config, parse_mesh, parse_networks, parse_proxy_config,
    };

    fn mesh(text: &str) -> MeshConfig {
        let (mesh, problems) = parse_mesh(text, "mesh.yaml");
        assert_eq!(problems, [], "{text}");
        MeshConfig::clone(&mesh)
    }

    #[test]
    fn empty_document_is_the_defaults() {
        for text in ["", "---\n", "# none\n", "{}", "enableTracing: null\ndefaultConfig:\n"] {
            assert_eq!(mesh(text), default_mesh(), "{text}");
        }
    }

    #[test]
    fn a_given_field_replaces_the_default_whole() {
        let read =
            mesh("enableTracing: false\nenableAutoMtls: false\nlocalityLbSetting: {}\ndefaultServiceExportTo: [.]\n");
        assert!(!read.enable_tracing);
        assert_eq!(read.enable_auto_mtls, Some(false));
        assert_eq!(read.locality_lb_setting.map(|setting| setting.enabled), Some(None));
        assert_eq!(read.default_service_export_to, ["."]);
        assert_eq!(read.default_virtual_service_export_to, ["*"]);
    }

    #[test]
    fn default_config_is_merged() {
        let read =
            mesh("defaultConfig: {concurrency: 3, proxyMetadata: {A: b}, discoveryAddress: 'x:1'}").default_config;
        let mut expected = default_proxy_config();
        expected.concurrency = Some(3);
        expected.discovery_address = "x:1".to_owned();
        expected.proxy_metadata.insert("A".to_owned(), "b".to_owned());
        assert_eq!(read, Some(expected));
    }

    #[test]
    fn providers_of_the_same_name_are_replaced() {
        let read = mesh(
            "extensionProviders:\n- {name: envoy, envoyFileAccessLog: {path: /tmp/a}}\n- {name: mine, zipkin: {service: z, port: 1}}\n\
             defaultProviders: {metrics: [mine]}\ntrustDomainAliases: [b, a, b]\n",
        );
        let names: Vec<&str> = read.extension_providers.iter().map(|provider| provider.name.as_str()).collect();
        assert_eq!(names, ["prometheus", "stackdriver", "envoy", "mine"]);
        assert_ne!(read.extension_providers[2], default_mesh().extension_providers[2]);
        assert_eq!(read.default_providers.map(|providers| providers.metrics), Some(vec!["mine".to_owned()]));
        assert_eq!(read.trust_domain_aliases, ["a", "b"]);
    }

    #[test]
    fn invalid_mesh_config_leaves_the_defaults() {
        let (read, problems) = parse_mesh("\nconnectTimeout: 3\nrootNamespace: x\n", "m");
        assert_eq!(*read, default_mesh());
        let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            ["m:2: MeshConfig: could not read connectTimeout: expected a duration such as 1m30s, found the number 3"]
        );
    }

    #[test]
    fn unknown_settings_are_named() {
        let (read, problems) = parse_mesh("rootNamespace: x\ndefaultConfig: {concurency: 1}\n", "m");
        assert_eq!(read.root_namespace, "x");
        let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            ["m:2: MeshConfig: unknown field \"defaultConfig.concurency\"; did you mean \"concurrency\"?"]
        );
    }

    #[test]
    fn header_settings_not_given_stay() {
        let base = "{proxyMetadata: {A: '1'}, proxyHeaders: {server: {value: s}, forwardedClientCert: SANITIZE}}";
        let (base, problems) = parse_proxy_config(&default_proxy_config(), base, "p");
        assert_eq!(problems, []);
        let given = "{proxyMetadata: {B: '2'}, proxyHeaders: {requestId: {disabled: true}}}";
        let (merged, problems) = parse_proxy_config(&base, given, "p");
        assert_eq!(problems, []);
        let headers = merged.proxy_headers.expect("both sides have headers");
        assert_eq!(headers.server.map(|server| server.value).as_deref(), Some("s"));
        assert_eq!((headers.forwarded_client_cert, headers.request_id.and_then(|id| id.disabled)), (1, Some(true)));
        assert_eq!(merged.proxy_metadata.keys().map(String::as_str).collect::<Vec<_>>(), ["A", "B"]);
    }

    #[test]
    fn settings_of_one_proxy_are_read_over_a_base() {
        let base = default_proxy_config();
        let (read, problems) = parse_proxy_config(&base, "concurrency: 3\ndiscoveryAddress: x:1\n", "env");
        assert_eq!((read.concurrency, &*read.discovery_address, problems.len()), (Some(3), "x:1", 0));
        let (kept, problems) = parse_proxy_config(&base, "statusPort: 99999\nconcurrency: 3\n", "env");
        assert_eq!(kept, base);
        assert!(problems[0].to_string().starts_with("env:1: ProxyConfig: "), "{}", problems[0]);
    }

    #[test]
    fn proxy_config_of_a_proxy_is_not_merged() {
        let mesh = default_mesh();
        assert_eq!(effective_proxy_config(&mesh, ""), default_proxy_config());
        let sent = effective_proxy_config(&mesh, r#"{"concurrency": 2, "drainDuration": "45s"}"#);
        assert_eq!((sent.concurrency, sent.status_port), (Some(2), 0));
    }

    #[test]
    fn networks_are_read() {
        let text = "networks: {west: {endpoints: [{fromCidr: 10.4.0.0/16}], gateways: [{address: 198.51.100.1, port: 15443}]}}";
        let (networks, problems) = parse_networks(text, "n");
        assert_eq!(problems, []);
        assert_eq!(networks.networks["west"].gateways[0].port, 15443);
    }
}
