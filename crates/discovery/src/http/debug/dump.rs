//! Resources of one proxy in the format of Envoy's `config_dump`, made from the same shared resources as its stream, so
//! that it can be compared with Envoy's own dump.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::envoy::config::core::v3::DataSource;
use api::envoy::config::core::v3::data_source::Specifier;
use api::envoy::extensions::transport_sockets::tls::v3::Secret;
use api::envoy::extensions::transport_sockets::tls::v3::secret::Type;
use api::nds::NameTable;
use api::{Resource, TypeUrl};
use prost::Message;
use prost_reflect::DynamicMessage;
use serde_json::{Map, Value, json};

use super::{PageQuery, PageResponse, Pages, clients};
use crate::serve::clients::{Connection, Watched};
use crate::serve::rendered::RenderedView;

/// All resources that the proxy subscribes to, or only some types with `types=cds,lds`.
pub(super) fn config_dump(pages: &Pages, query: &PageQuery) -> PageResponse {
    let connection = match clients::connection_for(pages, query) {
        Ok(connection) => connection,
        Err(answer) => return answer,
    };
    match query.get("types").filter(|types| !types.is_empty()) {
        Some(types) => of_types(&connection, types.split(',').filter_map(type_of)),
        None => PageResponse::json(whole(&connection, query.get("include_eds").is_some())),
    }
}

pub(super) fn edsz(pages: &Pages, query: &PageQuery) -> PageResponse {
    of_one_type(pages, query, TypeUrl::ENDPOINT)
}

pub(super) fn ndsz(pages: &Pages, query: &PageQuery) -> PageResponse {
    of_one_type(pages, query, TypeUrl::NAME_TABLE)
}

pub(super) fn ecdsz(pages: &Pages, query: &PageQuery) -> PageResponse {
    of_one_type(pages, query, TypeUrl::EXTENSION)
}

fn of_one_type(pages: &Pages, query: &PageQuery, kind: TypeUrl) -> PageResponse {
    match clients::connection_for(pages, query) {
        Ok(connection) => of_types(&connection, [kind]),
        Err(answer) => answer,
    }
}

fn of_types(connection: &Connection, kinds: impl IntoIterator<Item = TypeUrl>) -> PageResponse {
    let view = DumpedView::of(connection);
    let shown = |kind: TypeUrl| served(&view, &kind).resources.iter().map(|r| any(&kind, r)).collect::<Vec<_>>();
    let configs: Vec<Value> = kinds.into_iter().flat_map(shown).collect();
    PageResponse::json(if configs.is_empty() { json!({}) } else { json!({"configs": configs}) })
}

/// Parses upstream's short name of a type, or a type URL.
fn type_of(name: &str) -> Option<TypeUrl> {
    let known = [
        ("cds", TypeUrl::CLUSTER),
        ("eds", TypeUrl::ENDPOINT),
        ("lds", TypeUrl::LISTENER),
        ("rds", TypeUrl::ROUTE),
        ("nds", TypeUrl::NAME_TABLE),
        ("sds", TypeUrl::SECRET),
        ("ecds", TypeUrl::EXTENSION),
    ];
    let name = name.trim();
    known.into_iter().find(|(short, url)| short.eq_ignore_ascii_case(name) || url.as_str() == name).map(|(_, url)| url)
}

/// Resources of one type for a client.
#[derive(Default)]
struct ServedResources {
    version: String,
    resources: Vec<Resource>,
}

/// What a dump shows: a client's view, and what it subscribes to.
pub(in crate::http) struct DumpedView {
    pub(in crate::http) watched: BTreeMap<TypeUrl, Watched>,
    pub(in crate::http) cut: Option<Arc<RenderedView>>,
}

impl DumpedView {
    fn of(connection: &Connection) -> DumpedView {
        DumpedView { watched: connection.watched(), cut: connection.cut() }
    }
}

/// Resources that the client subscribes to. Empty for a type without subscription.
fn served(view: &DumpedView, kind: &TypeUrl) -> ServedResources {
    let watched = view.watched.get(kind);
    let set = view.cut.as_ref().and_then(|cut| cut.set(kind));
    let (Some(watched), Some(set)) = (watched, set) else { return ServedResources::default() };
    let resources = match watched.wildcard {
        true => set.resources().cloned().collect(),
        false => watched.names.iter().filter_map(|name| set.get(name)).collect(),
    };
    ServedResources { version: set.version().to_string(), resources }
}

/// The sections of Envoy's dump, in Envoy's order.
pub(super) fn whole(connection: &Connection, include_endpoints: bool) -> Value {
    whole_view(&DumpedView::of(connection), include_endpoints)
}

/// The same for a view that no client is served.
pub(in crate::http) fn whole_view(view: &DumpedView, include_endpoints: bool) -> Value {
    let mut configs = vec![section("BootstrapConfigDump", Map::new()), clusters(view)];
    if include_endpoints {
        configs.push(listed(
            view,
            &TypeUrl::ENDPOINT,
            "EndpointsConfigDump",
            "dynamicEndpointConfigs",
            "endpointConfig",
        ));
    }
    configs.push(listeners(view));
    configs.push(section("ScopedRoutesConfigDump", Map::new()));
    configs.push(listed(view, &TypeUrl::ROUTE, "RoutesConfigDump", "dynamicRouteConfigs", "routeConfig"));
    configs.push(listed(view, &TypeUrl::SECRET, "SecretsConfigDump", "dynamicActiveSecrets", "secret"));
    configs.push(listed(view, &TypeUrl::EXTENSION, "EcdsConfigDump", "ecdsFilters", "ecdsFilter"));
    json!({ "configs": configs })
}

fn clusters(view: &DumpedView) -> Value {
    let served = served(view, &TypeUrl::CLUSTER);
    let mut fields = version_info(&served.version);
    let active = served.resources.iter().map(|r| json!({"cluster": any(&TypeUrl::CLUSTER, r)}));
    put_list(&mut fields, "dynamicActiveClusters", active.collect());
    section("ClustersConfigDump", fields)
}

fn listeners(view: &DumpedView) -> Value {
    let served = served(view, &TypeUrl::LISTENER);
    let mut fields = version_info(&served.version);
    let dynamic = served.resources.iter().map(|r| {
        let mut state = version_info(&served.version);
        state.insert("listener".to_owned(), any(&TypeUrl::LISTENER, r));
        json!({"name": &*r.name, "activeState": state})
    });
    put_list(&mut fields, "dynamicListeners", dynamic.collect());
    section("ListenersConfigDump", fields)
}

/// A section with one list of versioned resources.
fn listed(view: &DumpedView, kind: &TypeUrl, message: &str, list: &str, item: &str) -> Value {
    let served = served(view, kind);
    let items = served.resources.iter().map(|resource| {
        let mut fields = version_info(&served.version);
        fields.insert(item.to_owned(), any(kind, resource));
        Value::Object(fields)
    });
    let mut fields = Map::new();
    put_list(&mut fields, list, items.collect());
    section(message, fields)
}

fn version_info(version: &str) -> Map<String, Value> {
    let field = (!version.is_empty()).then(|| ("versionInfo".to_owned(), json!(version)));
    field.into_iter().collect()
}

/// Protobuf's JSON omits empty lists.
fn put_list(fields: &mut Map<String, Value>, name: &str, list: Vec<Value>) {
    if !list.is_empty() {
        fields.insert(name.to_owned(), Value::Array(list));
    }
}

fn section(message: &str, mut fields: Map<String, Value>) -> Value {
    fields.shift_insert(0, "@type".to_owned(), json!(format!("type.googleapis.com/envoy.admin.v3.{message}")));
    Value::Object(fields)
}

/// A resource as protobuf's JSON of an `Any`. A resource that cannot be decoded shows the error.
fn any(kind: &TypeUrl, resource: &Resource) -> Value {
    let body = resource.body.joined();
    let shown = match kind {
        kind if *kind == TypeUrl::NAME_TABLE => name_table(&body),
        kind if *kind == TypeUrl::SECRET => without_key(&body).and_then(|body| message(kind, &body)),
        kind => message(kind, &body),
    };
    let mut fields = match shown {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => Map::new(),
        Err(error) => [("name".to_owned(), json!(&*resource.name)), ("error".to_owned(), json!(error.to_string()))]
            .into_iter()
            .collect(),
    };
    fields.shift_insert(0, "@type".to_owned(), json!(kind.as_str()));
    Value::Object(fields)
}

/// Why a resource cannot be shown.
#[derive(Debug, thiserror::Error)]
enum ShowError {
    #[error("unknown message type {0}")]
    UnknownType(String),
    #[error("could not decode the resource: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error("could not convert the resource to JSON: {0}")]
    Json(#[from] serde_json::Error),
}

fn message(kind: &TypeUrl, body: &[u8]) -> Result<Value, ShowError> {
    let name = kind.as_str().rsplit('/').next().unwrap_or_default();
    let descriptor =
        api::reflect::envoy().get_message_by_name(name).ok_or_else(|| ShowError::UnknownType(name.to_owned()))?;
    let message = DynamicMessage::decode(descriptor, body)?;
    Ok(serde_json::to_value(&message)?)
}

/// The secret without its private key, as Envoy shows it.
fn without_key(body: &[u8]) -> Result<Vec<u8>, ShowError> {
    let mut secret = Secret::decode(body)?;
    if let Some(Type::TlsCertificate(pair)) = &mut secret.r#type {
        let shown = Specifier::InlineBytes(b"[redacted]".to_vec());
        pair.private_key = Some(DataSource { specifier: Some(shown), ..DataSource::default() });
    }
    Ok(secret.encode_to_vec())
}

/// Upstream's JSON of a name table, which is in no descriptor set.
fn name_table(body: &[u8]) -> Result<Value, ShowError> {
    let table = NameTable::decode(body)?;
    let names = table.table.into_iter().map(|(name, info)| {
        let mut fields = Map::new();
        put_list(&mut fields, "ips", info.ips.into_iter().map(Value::from).collect());
        for (key, text) in [("registry", info.registry), ("shortname", info.shortname), ("namespace", info.namespace)] {
            if !text.is_empty() {
                fields.insert(key.to_owned(), json!(text));
            }
        }
        (name, Value::Object(fields))
    });
    Ok(json!({"table": names.collect::<Map<_, _>>()}))
}
