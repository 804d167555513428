//! Configuration of the mesh, from its text to Envoy's resources.

use std::sync::LazyLock;

use api::envoy::config::core::v3::Node;
use api::value::Kind as ValueKind;
use api::{Struct, TypeUrl, Value as MetadataValue};
use discovery::offline::Offline;
use model::config::mesh::{default_proxy_config, parse_mesh, parse_networks, parse_proxy_config};
use model::config::parse::{documents, value};
use model::config::validate::{validate, validate_mesh, validate_networks, validate_proxy_config};
use model::config::{Kind, Object};
use model::problem::FileLocation;
use model::settings::Settings;
use serde_json::{Value, json};

/// The types of resources that are rendered.
pub(crate) const RENDERED: [TypeUrl; 5] =
    [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER, TypeUrl::ROUTE, TypeUrl::NAME_TABLE];

/// Objects that the configuration under test refers to.
const BASE: &str = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.shop.svc.cluster.local, a.com]
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}, {number: 9, name: tcp, protocol: TCP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.1, labels: {app: cart, version: v1}}, {address: 10.0.0.2, labels: {app: cart, version: v2}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gateway, namespace: shop}
spec:
  selector: {app: gateway}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: shop}
spec:
  hosts: [a.com]
  gateways: [gateway, mesh]
  http: [{route: [{destination: {host: a.com}}]}]
";

fn base() -> Vec<Object> {
    documents(BASE, "base.yaml").objects
}

/// A small mesh.
pub(crate) static MESH: LazyLock<Offline> = LazyLock::new(|| Offline::new(Settings::default(), base()));

fn node(kind: &str, app: &str) -> Node {
    let text = |text: &str| MetadataValue { kind: Some(ValueKind::StringValue(text.to_owned())) };
    let labels = Struct { fields: [("app".to_owned(), text(app))].into() };
    let labels = MetadataValue { kind: Some(ValueKind::StructValue(labels)) };
    let metadata = [("NAMESPACE".to_owned(), text("shop")), ("LABELS".to_owned(), labels)];
    Node {
        id: format!("{kind}~10.0.0.1~{app}-1.shop~shop.svc.cluster.local"),
        metadata: Some(Struct { fields: metadata.into() }),
        ..Node::default()
    }
}

/// Validates objects and renders them for a sidecar and a gateway.
fn render(objects: Vec<Object>) {
    for object in &objects {
        let _ = validate(object);
        let _ = object.spec.to_json();
    }
    let mesh = Offline::new(Settings::default(), base().into_iter().chain(objects).collect());
    for node in [node("sidecar", "cart"), node("router", "gateway")] {
        for kind in RENDERED {
            let _ = mesh.resources(&node, &kind, &[]);
        }
    }
}

/// YAML documents of a file.
pub(crate) fn yaml_documents(data: &[u8]) {
    let parsed = documents(&String::from_utf8_lossy(data), "fuzz.yaml");
    if !parsed.objects.is_empty() && parsed.objects.len() < 20 {
        render(parsed.objects);
    }
}

/// A kind, such as `virtualservices.networking.istio.io`, and in the next line the spec of an object as JSON.
pub(crate) fn config_kinds(data: &[u8]) {
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    let (name, rest) = data.split_at(end);
    let is_named = |kind: &&Kind| format!("{}.{}", kind.plural(), kind.group()).as_bytes() == name;
    let Some(kind) = Kind::ALL.iter().find(is_named) else { return };
    let Ok(spec) = serde_json::from_slice::<Value>(rest) else { return };
    let version = kind.versions().last().copied().unwrap_or_default();
    let api_version = if kind.group().is_empty() { version.to_owned() } else { format!("{}/{version}", kind.group()) };
    let object = json!({"apiVersion": api_version, "kind": kind.as_str(), "spec": spec,
        "metadata": {"name": "fuzz", "namespace": "shop"}});
    render(value(&object, &FileLocation { file: "fuzz".into(), line: 1 }).objects);
}

/// MeshConfig, MeshNetworks and ProxyConfig, and a mesh with them.
pub(crate) fn mesh_config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (networks, _) = parse_networks(&text, "networks");
    let _ = validate_networks(&networks, None);
    let (proxy, _) = parse_proxy_config(&default_proxy_config(), &text, "proxy");
    let _ = validate_proxy_config(&proxy, None);
    let (mesh, _) = parse_mesh(&text, "mesh");
    let _ = validate_mesh(&mesh, None);
    let settings = Settings { mesh, ..Settings::default() };
    let mesh = Offline::new(settings, base());
    for kind in RENDERED {
        let _ = mesh.resources(&node("sidecar", "cart"), &kind, &[]);
    }
}
