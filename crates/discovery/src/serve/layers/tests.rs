//! After any edits, layers equal a full recompute, byte for byte, for every client.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::envoy::config::core::v3::{Locality, Node};
use api::{Struct, TypeUrl, Value, value};
use model::change::{Batch, Change, SourceId};
use model::config::parse::documents;
use model::config::{Key, Object};
use model::proxy::Proxy;
use model::settings::Settings;
use proptest::collection::vec;
use proptest::prelude::ProptestConfig;
use proptest::{prop_assert_eq, proptest};
use tokio::sync::mpsc;
use xds::ResourceSet;

use crate::serve::pins::Pins;
use crate::serve::rendered::RenderedView;
use crate::serve::snapshot_writer::PublishedSnapshot;
use crate::serve::views::{Placement, Views};

/// Alternative versions of objects: kind, name, namespace and specs.
const OBJECTS: &[(&str, &str, &str, &[&str])] = &[
    (
        "ServiceEntry",
        "cart",
        "shop",
        &[
            "{hosts: [cart.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, location: MESH_INTERNAL, endpoints: [{address: 10.0.0.1}]}",
            "{hosts: [cart.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, location: MESH_INTERNAL, workloadSelector: {labels: {app: cart}}}",
            "{hosts: [cart.example.com], ports: [{number: 80, name: http, protocol: HTTP}, {number: 9000, name: tcp, protocol: TCP}], resolution: STATIC, addresses: [10.96.0.1], workloadSelector: {labels: {app: cart}}}",
            "{hosts: [cart.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS, exportTo: ['.']}",
        ],
    ),
    (
        "ServiceEntry",
        "pay",
        "bank",
        &[
            "{hosts: [pay.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, workloadSelector: {labels: {app: pay}}}",
            "{hosts: [pay.example.com], ports: [{number: 443, name: tls, protocol: TLS}], resolution: NONE}",
            "{hosts: [pay.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.0.0.2, network: n2, locality: r1/z2}]}",
        ],
    ),
    (
        "WorkloadEntry",
        "one",
        "shop",
        &[
            "{address: 10.0.0.1, labels: {app: cart, version: v1}, locality: r1/z1, serviceAccount: a}",
            "{address: 10.0.0.1, labels: {app: cart, version: v2}, locality: r1/z2, serviceAccount: a}",
            "{address: 10.0.0.3, labels: {app: cart, version: v1}, network: n1, serviceAccount: b, weight: 3}",
        ],
    ),
    (
        "WorkloadEntry",
        "two",
        "bank",
        &[
            "{address: 10.0.0.2, labels: {app: pay, version: v1}}",
            "{address: 10.0.0.4, labels: {app: pay, version: v2, topology.kubernetes.io/zone: z2}, locality: r1/z2}",
        ],
    ),
    (
        "VirtualService",
        "cart",
        "shop",
        &[
            "{hosts: [cart.example.com], http: [{timeout: 1s, route: [{destination: {host: cart.example.com}}]}]}",
            "{hosts: [cart.example.com], http: [{match: [{sourceLabels: {app: pay}}], route: [{destination: {host: pay.example.com}}]}, {route: [{destination: {host: cart.example.com, subset: v1}}]}]}",
            "{hosts: [cart.example.com], exportTo: ['.'], http: [{match: [{sourceNamespace: bank}], timeout: 2s, route: [{destination: {host: cart.example.com}}]}]}",
        ],
    ),
    (
        "DestinationRule",
        "cart",
        "shop",
        &[
            "{host: cart.example.com, subsets: [{name: v1, labels: {version: v1}}]}",
            "{host: cart.example.com, workloadSelector: {matchLabels: {app: pay}}, trafficPolicy: {loadBalancer: {simple: RANDOM}}}",
            "{host: cart.example.com, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}, loadBalancer: {localityLbSetting: {failoverPriority: ['topology.kubernetes.io/zone']}}}}",
        ],
    ),
    (
        "Sidecar",
        "default",
        "shop",
        &[
            "{egress: [{hosts: ['./*']}]}",
            "{workloadSelector: {labels: {app: pay}}, egress: [{hosts: ['*/*']}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}",
        ],
    ),
    (
        "PeerAuthentication",
        "default",
        "shop",
        &["{mtls: {mode: STRICT}}", "{selector: {matchLabels: {app: cart}}, mtls: {mode: DISABLE}}"],
    ),
    (
        "AuthorizationPolicy",
        "deny",
        "shop",
        &[
            "{selector: {matchLabels: {app: cart}}, action: DENY, rules: [{from: [{source: {namespaces: [bank]}}]}]}",
            "{action: ALLOW, rules: [{}]}",
        ],
    ),
    (
        "EnvoyFilter",
        "patch",
        "shop",
        &[
            "{workloadSelector: {labels: {app: cart}}, configPatches: [{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: MERGE, value: {connect_timeout: 7s}}}]}",
            "{configPatches: [{applyTo: CLUSTER, match: {proxy: {metadata: {NODE_NAME: n1}}}, patch: {operation: MERGE, value: {connect_timeout: 8s}}}]}",
        ],
    ),
    (
        "Gateway",
        "edge",
        "istio-system",
        &[
            "{selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*/cart.example.com']}]}",
        ],
    ),
];

fn object(slot: usize, variant: usize) -> Object {
    let (kind, name, namespace, specs) = OBJECTS[slot];
    let group = if kind.ends_with("Authentication") || kind.ends_with("Policy") { "security" } else { "networking" };
    let version = if kind == "EnvoyFilter" { "v1alpha3" } else { "v1" };
    let text = format!(
        "apiVersion: {group}.istio.io/{version}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {}\n",
        specs[variant % specs.len()]
    );
    let mut parsed = documents(&text, "mesh.yaml");
    assert!(parsed.problems.is_empty(), "{:?} in {text}", parsed.problems);
    parsed.objects.remove(0)
}

pub(super) fn client(id: &str, app: &str, zone: &str, node: &str) -> Arc<Proxy> {
    let text = |text: &str| Value { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let labels = [("app".to_owned(), text(app))].into_iter().collect();
    let labels = Value { kind: Some(value::Kind::StructValue(Struct { fields: labels })) };
    let metadata = [("LABELS", labels), ("NODE_NAME", text(node)), ("NETWORK", text("n1"))];
    let node = Node {
        id: id.to_owned(),
        metadata: Some(Struct { fields: metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect() }),
        locality: Some(Locality { region: "r1".into(), zone: zone.into(), ..Locality::default() }),
        ..Node::default()
    };
    Arc::new(Proxy::from_node(&node).unwrap())
}

/// Replicas, other workloads of their namespace, another namespace, and a gateway.
fn clients() -> Vec<Arc<Proxy>> {
    vec![
        client("sidecar~10.0.0.1~cart-1.shop~shop.svc.cluster.local", "cart", "z1", "n1"),
        client("sidecar~10.0.0.3~cart-2.shop~shop.svc.cluster.local", "cart", "z1", "n2"),
        client("sidecar~10.1.0.1~pay-1.shop~shop.svc.cluster.local", "pay", "z2", "n1"),
        client("sidecar~10.1.0.2~other.shop~shop.svc.cluster.local", "other", "z1", "n3"),
        client("sidecar~10.0.0.2~pay-1.bank~bank.svc.cluster.local", "pay", "z2", "n2"),
        client("router~10.2.0.1~edge.istio-system~istio-system.svc.cluster.local", "edge", "z1", "n1"),
    ]
}

/// Everything that a client can request, as bytes.
fn served(view: &RenderedView) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut add = |set: &ResourceSet, name: &str| {
        let body = set.get(name).map_or(b"none".to_vec(), |resource| resource.body.joined().to_vec());
        found.insert(format!("{} {name}", set.kind().short()), body);
    };
    for kind in [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER, TypeUrl::EXTENSION, TypeUrl::NAME_TABLE] {
        let set = view.set(&kind).unwrap();
        set.resources().for_each(|resource| add(&set, &resource.name));
    }
    let routes = view.set(&TypeUrl::ROUTE).unwrap();
    ["80", "http.80", "9000", "cart.example.com:80"].iter().for_each(|name| add(&routes, name));
    let endpoints = view.set(&TypeUrl::ENDPOINT).unwrap();
    ["outbound|80||cart.example.com", "outbound|80|v1|pay.example.com", "inbound|80||"]
        .iter()
        .for_each(|name| add(&endpoints, name));
    found
}

struct Follower {
    proxy: Arc<Proxy>,
    placement: Option<Placement>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn incremental_equals_full_recompute(edits in vec((0..OBJECTS.len(), 0..5usize), 1..25)) {
        let views = Views::new(mpsc::channel(1000).0);
        let mut published = Arc::new(PublishedSnapshot::empty(Settings::default()));
        let mut followers: Vec<Follower> =
            clients().into_iter().map(|proxy| Follower { proxy, placement: None }).collect();
        for (at, (slot, variant)) in edits.into_iter().enumerate() {
            let change = match variant {
                4 => Change::Deleted(Key::clone(&object(slot, 0).key())),
                variant => Change::Applied(object(slot, variant)),
            };
            let batch = Batch { source: SourceId("files".into()), changes: vec![change] };
            let (snapshot, delta) = published.snapshot.apply(vec![batch]);
            published = Arc::new(published.next(snapshot, Some(delta)));
            for (index, follower) in followers.iter_mut().enumerate() {
                // Some clients lag and skip snapshots.
                if (at + index) % 3 == 1 {
                    continue;
                }
                let pins = Pins::new();
                let (placement, cut) = views.cut(&published, &follower.proxy, &pins, follower.placement.as_ref());
                follower.placement = Some(placement);
                let expected = served(&views.trial(&published, &follower.proxy, &pins));
                prop_assert_eq!(served(&cut), expected, "client {} after edit {}", follower.proxy.id, at);
            }
        }
    }
}

#[test]
fn different_workloads_share_their_outbound_layers() {
    let views = Views::new(mpsc::channel(1000).0);
    let changes = (0..2).map(|slot| Change::Applied(object(slot, 0))).collect();
    let batch = Batch { source: SourceId("files".into()), changes };
    let first = PublishedSnapshot::empty(Settings::default());
    let (snapshot, delta) = first.snapshot.apply(vec![batch]);
    let published = Arc::new(first.next(snapshot, Some(delta)));
    let sidecar = |n: usize| {
        let namespace = ["shop", "bank"][n % 2];
        let id = format!("sidecar~10.9.0.{n}~w-{n}.{namespace}~{namespace}.svc.cluster.local");
        client(&id, &format!("w{n}"), "z1", &format!("n{n}"))
    };
    let mut held = Vec::new();
    for n in 0..20 {
        let (placement, cut) = views.cut(&published, &sidecar(n), &Pins::new(), None);
        [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER].iter().for_each(|kind| _ = cut.set(kind).unwrap());
        cut.set(&TypeUrl::ROUTE).unwrap().get("80").unwrap();
        held.push((placement, cut));
    }
    let [resources, endpoints, routes] = views.layers().len();
    // Clusters and endpoints are the same for all; outbound listeners and routes differ by namespace. Each workload has
    // its own inbound listeners, because policies select by labels.
    assert_eq!((endpoints, routes), (1, 2));
    assert!(resources <= 20 + 4, "{resources} layers of clusters and listeners");
}
