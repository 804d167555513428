//! Small random meshes as documents, and their clients. Few names and hosts, so that objects overwrite, select, export
//! to and route to each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::envoy::config::core::v3::Node;
use model::change::{Batch, Change, SourceId};
use model::config::parse::documents;
use model::config::{Key, Object};
use model::proxy::Proxy;
use model::settings::Settings;
use model::snapshot::Snapshot;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;
use scope::{View, inbound};

const NAMESPACES: &[&str] = &["shop", "bank", "istio-system"];
const HOSTS: &[&str] = &["cart.example.com", "pay.example.com", "stock.example.com", "mail.example.org"];
const ROUTED: &[&str] = &["cart.example.com", "pay.example.com", "*.example.com", "stock"];
const EXPORTS: &[&str] = &["[]", "['*']", "['.']", "[bank]", "['.', bank]", "['~']"];
const ADDRESSES: &[&str] = &["10.0.0.1", "10.0.0.2", "10.0.0.3"];
const EGRESS: &[&str] =
    &["./*", "*/*", "bank/*", "*/cart.example.com", "*/*.example.com", "shop/pay.example.com", "~/cart.example.com"];

/// One document of any kind.
pub(crate) fn object() -> impl Strategy<Value = Object> {
    let spec = prop_oneof![
        5 => service_entry(),
        2 => workload_entry(),
        2 => virtual_service(),
        2 => destination_rule(),
        1 => sidecar(),
        1 => policy(),
        1 => gateway(),
    ];
    let created =
        select(&["", ", creationTimestamp: 2024-01-01T00:00:00Z", ", creationTimestamp: 2025-01-01T00:00:00Z"][..]);
    (spec, select(&["a", "b", "c"][..]), select(NAMESPACES), created).prop_map(|(spec, name, namespace, created)| {
        let (kind, spec) = spec;
        let group =
            if kind.ends_with("Authentication") || kind.ends_with("Policy") { "security" } else { "networking" };
        read(&format!(
            "apiVersion: {group}.istio.io/v1\nkind: {kind}\n\
             metadata: {{name: {name}, namespace: {namespace}{created}}}\nspec: {spec}\n"
        ))
    })
}

/// Objects of a mesh, each key once.
pub(crate) fn objects() -> impl Strategy<Value = Vec<Object>> {
    vec(object(), 0..14).prop_map(|objects| {
        let by_key: BTreeMap<Key, Object> = objects.into_iter().map(|o| (o.key(), o)).collect();
        by_key.into_values().collect()
    })
}

/// The kind and the spec.
type SpecText = (&'static str, String);

fn service_entry() -> impl Strategy<Value = SpecText> {
    let backing = prop_oneof![
        select(ADDRESSES)
            .prop_map(|a| format!("resolution: STATIC, endpoints: [{{address: {a}, labels: {{version: v1}}}}]")),
        Just("resolution: STATIC, workloadSelector: {labels: {app: cart}}".to_owned()),
        Just("resolution: DNS".to_owned()),
        Just("resolution: NONE".to_owned()),
    ];
    let ports = select(
        &[
            "{number: 80, name: http, protocol: HTTP}",
            "{number: 443, name: tls, protocol: TLS}",
            "{number: 9000, name: tcp, protocol: TCP}",
        ][..],
    );
    let location = select(&["MESH_INTERNAL", "MESH_EXTERNAL"][..]);
    let addresses = select(&["[]", "[10.96.0.1]", "[10.96.0.2]"][..]);
    (vec(select(HOSTS), 1..3), backing, ports, location, addresses, select(EXPORTS)).prop_map(
        |(hosts, backing, port, location, addresses, export)| {
            let spec = format!(
                "{{hosts: [{}], ports: [{port}], location: {location}, addresses: {addresses}, exportTo: {export}, {backing}}}",
                hosts.join(", ")
            );
            ("ServiceEntry", spec)
        },
    )
}

fn workload_entry() -> impl Strategy<Value = SpecText> {
    (select(ADDRESSES), select(&["cart", "pay"][..]), 1..4u32).prop_map(|(address, app, weight)| {
        ("WorkloadEntry", format!("{{address: {address}, weight: {weight}, labels: {{app: {app}, version: v2}}}}"))
    })
}

fn virtual_service() -> impl Strategy<Value = SpecText> {
    let gateways = select(&["[]", "[mesh]", "[istio-system/a]", "[a, mesh]"][..]);
    let routes = vec((select(HOSTS), select(&["", "v1", "v2"][..]), 0..30u32), 1..3);
    (select(ROUTED), gateways, routes, select(EXPORTS)).prop_map(|(host, gateways, routes, export)| {
        let route = |(host, subset, timeout): (&str, &str, u32)| {
            format!("{{timeout: {timeout}s, match: [{{uri: {{prefix: /{timeout}}}}}], route: [{{destination: {{host: {host}, subset: '{subset}'}}}}]}}")
        };
        let routes: Vec<String> = routes.into_iter().map(route).collect();
        let spec = format!("{{hosts: ['{host}'], gateways: {gateways}, exportTo: {export}, http: [{}]}}", routes.join(", "));
        ("VirtualService", spec)
    })
}

fn destination_rule() -> impl Strategy<Value = SpecText> {
    let policy = select(
        &[
            "{loadBalancer: {simple: RANDOM}}",
            "{tls: {mode: ISTIO_MUTUAL}}",
            "{connectionPool: {tcp: {maxConnections: 3}}}",
        ][..],
    );
    let subsets = select(&["[]", "[{name: v1, labels: {version: v1}}]", "[{name: v2, labels: {version: v2}}]"][..]);
    (select(ROUTED), policy, subsets, select(EXPORTS)).prop_map(|(host, policy, subsets, export)| {
        let spec = format!("{{host: '{host}', trafficPolicy: {policy}, subsets: {subsets}, exportTo: {export}}}");
        ("DestinationRule", spec)
    })
}

fn sidecar() -> impl Strategy<Value = SpecText> {
    let selector = select(&["", "workloadSelector: {labels: {app: cart}}, "][..]);
    let port = select(&["", "port: {number: 80, protocol: HTTP, name: http}, "][..]);
    (selector, port, vec(select(EGRESS), 1..4)).prop_map(|(selector, port, hosts)| {
        let hosts: Vec<String> = hosts.into_iter().map(|h| format!("'{h}'")).collect();
        ("Sidecar", format!("{{{selector}egress: [{{{port}hosts: [{}]}}]}}", hosts.join(", ")))
    })
}

fn policy() -> impl Strategy<Value = SpecText> {
    let peer = select(&["STRICT", "PERMISSIVE", "DISABLE"][..])
        .prop_map(|mode| ("PeerAuthentication", format!("{{mtls: {{mode: {mode}}}}}")));
    let authorization =
        (select(&["ALLOW", "DENY"][..]), select(NAMESPACES), any::<bool>()).prop_map(|(action, from, all)| {
            let selector = if all { "" } else { "selector: {matchLabels: {app: cart}}, " };
            let spec =
                format!("{{{selector}action: {action}, rules: [{{from: [{{source: {{namespaces: [{from}]}}}}]}}]}}");
            ("AuthorizationPolicy", spec)
        });
    prop_oneof![peer, authorization]
}

fn gateway() -> impl Strategy<Value = SpecText> {
    select(ROUTED).prop_map(|host| {
        let spec = format!(
            "{{selector: {{app: cart}}, servers: [{{port: {{number: 80, name: http, protocol: HTTP}}, hosts: ['*/{host}']}}]}}"
        );
        ("Gateway", spec)
    })
}

/// The object of a valid document.
pub(crate) fn read(text: &str) -> Object {
    let mut parsed = documents(text, "mesh.yaml");
    assert!(parsed.problems.is_empty(), "{:?} in {text}", parsed.problems);
    parsed.objects.remove(0)
}

pub(crate) fn empty() -> Snapshot {
    Snapshot::empty(Settings::default())
}

pub(crate) fn batch(changes: Vec<Change>) -> Batch {
    Batch { source: SourceId("files".into()), changes }
}

/// The mesh of these objects, applied at once.
pub(crate) fn world(objects: &[Object]) -> Snapshot {
    let changes = objects.iter().cloned().map(Change::Applied).collect();
    empty().apply(vec![batch(changes)]).0
}

/// A sidecar of each namespace and a gateway; all are `app: cart`.
pub(crate) fn clients() -> Vec<Arc<Proxy>> {
    let ids = [
        "sidecar~10.0.0.1~cart.shop~shop.svc.cluster.local",
        "sidecar~10.0.0.2~cart.bank~bank.svc.cluster.local",
        "router~10.0.0.9~gateway.istio-system~istio-system.svc.cluster.local",
    ];
    let client = |id: &str| {
        let proxy = Proxy::from_node(&Node { id: id.to_owned(), ..Node::default() }).expect("the id is good");
        Arc::new(Proxy { labels: [("app", "cart")].into_iter().collect(), ..proxy })
    };
    ids.into_iter().map(client).collect()
}

pub(crate) fn view(world: &Snapshot, proxy: &Arc<Proxy>) -> View {
    View::new(world, proxy, inbound::targets(world, proxy))
}
