//! A mesh in which everything may change: versions of objects, settings, secrets, key sets and pods, and its clients.

use std::sync::Arc;

use api::envoy::config::core::v3::{Locality, Node};
use api::{Struct, Value, value};
use model::change::{Change, Credential};
use model::config::Object;
use model::config::mesh::{parse_mesh, parse_networks};
use model::config::parse::documents;
use model::endpoint::TlsMode;
use model::fetch_requests::KeySource;
use model::labels::Labels;
use model::names::{CredentialKey, CredentialKind};
use model::proxy::Proxy;
use model::workload::{Workload, WorkloadKey};

/// An object in alternative versions: kind, name, namespace and specs.
type Versions = (&'static str, &'static str, &'static str, &'static [&'static str]);

const OBJECTS: &[Versions] = &[
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
            "{workloadSelector: {labels: {app: cart}}, ingress: [{port: {number: 9080, name: in, protocol: HTTP}, defaultEndpoint: '0.0.0.0:8080'}], egress: [{hosts: ['*/*']}]}",
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
            "{configPatches: [{applyTo: CLUSTER, match: {proxy: {metadata: {NAME: cart-1}}}, patch: {operation: MERGE, value: {connect_timeout: 9s}}}]}",
        ],
    ),
    (
        "Gateway",
        "edge",
        "istio-system",
        &[
            "{selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*/cart.example.com']}]}",
            "{selector: {app: edge}, servers: [{port: {number: 443, name: https, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: cert}, hosts: ['*/cart.example.com']}]}",
        ],
    ),
    (
        "DestinationRule",
        "pay",
        "bank",
        &[
            "{host: pay.example.com, trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}}",
            "{host: pay.example.com, exportTo: ['.'], trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}",
        ],
    ),
    (
        "RequestAuthentication",
        "jwt",
        "shop",
        &[
            "{selector: {matchLabels: {app: cart}}, jwtRules: [{issuer: a, jwksUri: 'https://keys.example.com/jwks'}]}",
            "{jwtRules: [{issuer: b, jwksUri: 'https://keys.example.com/jwks', forwardOriginalToken: true}]}",
        ],
    ),
    (
        "Telemetry",
        "default",
        "shop",
        &[
            "{tracing: [{providers: [{name: otel}], randomSamplingPercentage: 50}]}",
            "{selector: {matchLabels: {app: cart}}, tracing: [{disableSpanReporting: true}]}",
        ],
    ),
    ("Telemetry", "mesh", "istio-system", &["{tracing: [{providers: [{name: otel}], randomSamplingPercentage: 10}]}"]),
    (
        "WasmPlugin",
        "plugin",
        "shop",
        &[
            "{url: 'oci://registry.example.com/plugin:1', selector: {matchLabels: {app: cart}}}",
            "{url: 'oci://registry.example.com/plugin:2', phase: AUTHN}",
        ],
    ),
    (
        "Gateway.gateway.networking.k8s.io",
        "api",
        "istio-system",
        &[
            "{gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]}",
        ],
    ),
    (
        "HTTPRoute",
        "cart",
        "shop",
        &[
            "{parentRefs: [{name: api, namespace: istio-system}], hostnames: [api.example.com], rules: [{backendRefs: [{group: networking.istio.io, kind: Hostname, name: cart.example.com, port: 80}]}]}",
            "{parentRefs: [{name: api, namespace: istio-system}], rules: [{timeouts: {request: 3s}, backendRefs: [{group: networking.istio.io, kind: Hostname, name: pay.example.com, port: 80}]}]}",
        ],
    ),
];

/// Mesh configs; the first has the defaults.
const MESHES: &[&str] = &[
    "{}",
    "{outboundTrafficPolicy: {mode: REGISTRY_ONLY}, enableAutoMtls: false}",
    "{accessLogFile: /dev/stdout, localityLbSetting: {failover: [{from: r1, to: r2}]}}",
    "{extensionProviders: [{name: otel, opentelemetry: {service: cart.example.com, port: 80, serviceAttributeEnrichment: OTEL_SEMANTIC_CONVENTIONS}}]}",
];
const NETWORKS: &[&str] = &[
    "{}",
    "{networks: {n1: {endpoints: [{fromRegistry: one}], gateways: [{address: 1.2.3.4, port: 15443}]}, n2: {endpoints: [{fromRegistry: two}], gateways: [{address: 1.2.3.5, port: 15443}]}}}",
];
const KEYS: &[&str] = &[r#"{"keys":[]}"#, r#"{"keys":[{"kid":"a"}]}"#];

/// Number of things that can change, and of objects among them, which come first.
pub(super) const SLOTS: usize = OBJECTS.len() + 6;
pub(super) const OBJECT_SLOTS: usize = OBJECTS.len();
/// Variants of each; the last one removes it, if it can be removed.
pub(super) const VARIANTS: usize = 5;

/// The number of an object.
pub(super) fn slot(kind: &str, name: &str) -> usize {
    OBJECTS.iter().position(|object| (object.0, object.1) == (kind, name)).unwrap()
}

/// One version of one thing. `None` if it is removed, or has its default.
pub(super) fn version(slot: usize, variant: usize) -> Option<Change> {
    let removed = variant + 1 == VARIANTS;
    if slot < OBJECT_SLOTS {
        return (!removed).then(|| Change::Applied(object(slot, variant)));
    }
    let of = |texts: &'static [&'static str]| texts[if removed { 0 } else { variant % texts.len() }];
    Some(match slot - OBJECT_SLOTS {
        0 => Change::Mesh(parsed(parse_mesh(of(MESHES), "mesh"))),
        1 => Change::Networks(parsed(parse_networks(of(NETWORKS), "networks"))),
        2 => {
            Change::KeySet(KeySource::Uri("https://keys.example.com/jwks".into()), (!removed).then(|| of(KEYS).into()))
        }
        3 => {
            let (kind, namespace, name) = (CredentialKind::Secret, "istio-system".into(), "cert".into());
            let credential = (!removed).then(|| Arc::new(credential(variant)));
            Change::Credential(CredentialKey { kind, namespace, name }, credential)
        }
        4 if removed => Change::WorkloadDeleted(pod(0).key),
        4 => Change::WorkloadApplied(Arc::new(pod(variant))),
        _ => {
            let labels = Labels::default().with("team", ["a", "b"][variant % 2]);
            Change::Namespace("shop".into(), (!removed).then_some(labels))
        }
    })
}

/// The change that makes something have a version.
pub(super) fn change(slot: usize, variant: usize) -> Change {
    version(slot, variant).unwrap_or_else(|| Change::Deleted(object(slot, 0).key()))
}

fn parsed<T>((value, problems): (T, Vec<model::problem::Problem>)) -> T {
    assert!(problems.is_empty(), "{problems:?}");
    value
}

pub(super) fn object(slot: usize, variant: usize) -> Object {
    let (kind, name, namespace, specs) = OBJECTS[slot];
    let spec = specs[variant % specs.len()];
    let (kind, of_api) = kind.split_once('.').unwrap_or((kind, ""));
    let version = match kind {
        _ if !of_api.is_empty() || kind == "HTTPRoute" => "gateway.networking.k8s.io/v1",
        "EnvoyFilter" => "networking.istio.io/v1alpha3",
        "WasmPlugin" => "extensions.istio.io/v1alpha1",
        "Telemetry" => "telemetry.istio.io/v1",
        _ if kind.ends_with("Authentication") || kind.ends_with("Policy") => "security.istio.io/v1",
        _ => "networking.istio.io/v1",
    };
    let text = format!(
        "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"
    );
    let mut parsed = documents(&text, "mesh.yaml");
    assert!(parsed.problems.is_empty(), "{:?} in {text}", parsed.problems);
    parsed.objects.remove(0)
}

fn credential(variant: usize) -> Credential {
    let pem = |kind: &str| format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", "AAAA".repeat(variant + 1));
    let (certificate, key) = (pem("CERTIFICATE"), pem("PRIVATE KEY"));
    Credential::of([("tls.crt", certificate.as_bytes()), ("tls.key", key.as_bytes())])
}

/// The pod of the first client. Its labels take precedence over those that the client sends.
fn pod(variant: usize) -> Workload {
    let labels = Labels::default().with("app", ["cart", "pay", "other", "cart"][variant % 4]);
    Workload {
        key: WorkloadKey { namespace: "shop".into(), name: "cart-1".into(), cluster: "".into() },
        labels,
        addresses: ["10.0.0.1".into()].into(),
        ports: [].into(),
        locality: model::endpoint::Locality::default(),
        network: "".into(),
        service_account: "".into(),
        tls: TlsMode::default(),
        workload_name: "cart".into(),
        node_name: "n1".into(),
        own_name: None,
        is_ready: variant.is_multiple_of(2),
    }
}

/// A client of this node id, with the metadata that every agent sends.
pub(in super::super) fn client(id: &str, app: &str, zone: &str, machine: &str) -> Arc<Proxy> {
    client_in(id, app, zone, machine, "n1")
}

pub(super) fn client_in(id: &str, app: &str, zone: &str, machine: &str, network: &str) -> Arc<Proxy> {
    let text = |text: &str| Value { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let labels = [("app".to_owned(), text(app))].into_iter().collect();
    let labels = Value { kind: Some(value::Kind::StructValue(Struct { fields: labels })) };
    let parts: Vec<&str> = id.split(['~', '.']).collect();
    let name = id.split('~').nth(2).and_then(|name| name.split('.').next()).unwrap_or_default();
    let metadata = [
        ("LABELS", labels),
        ("NODE_NAME", text(machine)),
        ("NETWORK", text(network)),
        ("NAME", text(name)),
        ("POD_UID", text(&parts.concat())),
    ];
    let node = Node {
        id: id.to_owned(),
        metadata: Some(Struct { fields: metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect() }),
        locality: Some(Locality { region: "r1".into(), zone: zone.into(), ..Locality::default() }),
        ..Node::default()
    };
    Arc::new(Proxy::from_node(&node).unwrap())
}

/// Replicas, other workloads of their namespace, another namespace, and two gateways.
pub(super) fn clients() -> Vec<Arc<Proxy>> {
    vec![
        client("sidecar~10.0.0.1~cart-1.shop~shop.svc.cluster.local", "cart", "z1", "n1"),
        client("sidecar~10.0.0.3~cart-2.shop~shop.svc.cluster.local", "cart", "z1", "n2"),
        client("sidecar~10.1.0.1~pay-1.shop~shop.svc.cluster.local", "pay", "z2", "n1"),
        client("sidecar~10.1.0.2~other.shop~shop.svc.cluster.local", "other", "z1", "n3"),
        client("sidecar~10.0.0.2~pay-1.bank~bank.svc.cluster.local", "pay", "z2", "n2"),
        client("sidecar~10.1.0.3~cart-3.shop~shop.svc.cluster.local", "cart", "z1", "n1"),
        client("router~10.2.0.1~edge.istio-system~istio-system.svc.cluster.local", "edge", "z1", "n1"),
        api_gateway(),
    ]
}

/// A gateway of the Gateway API.
fn api_gateway() -> Arc<Proxy> {
    let edge = client("router~10.2.0.2~api.istio-system~istio-system.svc.cluster.local", "api", "z1", "n1");
    let labels = edge.labels.with("gateway.networking.k8s.io/gateway-name", "api");
    Arc::new(Proxy { labels, ..Proxy::clone(&edge) })
}
