//! The nodes of simulated proxies, with the metadata that the agent of an injected pod sends.

use std::collections::BTreeMap;

use api::envoy::config::core::v3::{Locality, Node};
use api::{Struct, Value, value};

/// Namespaces of a mesh; services and proxies are spread over them.
pub(super) const NAMESPACES: usize = 20;
/// The label of sidecars that are selected by the Sidecar resources of a mesh.
pub(super) const SCOPED: (&str, &str) = ("scoped", "true");
/// The label `app` of gateways.
pub(super) const GATEWAY: &str = "gateway";
/// Proxies on one machine.
const ON_ONE_MACHINE: usize = 10;
/// Proxies of one zone are together; their labels say nothing about it, as in a real cluster.
const ZONES: [&str; 3] = ["a", "b", "c"];

/// The node of a proxy with its own address, with this label `app` and further labels.
pub(super) fn labelled(kind: &str, number: usize, app: &str, more: &[(&str, &str)]) -> Node {
    let namespace = format!("ns{}", number % NAMESPACES);
    let ip = format!("10.{}.{}.{}", 200 + number / 62_500, number / 250 % 250, number % 250 + 1);
    let machine = number / ON_ONE_MACHINE;
    let own = [("app", app), ("service.istio.io/canonical-name", app), ("security.istio.io/tlsMode", "istio")];
    let labels = own.iter().chain(more).map(|(key, value)| ((*key).to_owned(), text(value))).collect();
    let config = [("discoveryAddress", "istiod.istio-system.svc:15012"), ("configPath", "./etc/istio/proxy")];
    let config = config.map(|(key, value)| (key.to_owned(), text(value))).into();
    let texts = [
        ("NAME", format!("p{number}")),
        ("NAMESPACE", namespace.clone()),
        ("NODE_NAME", format!("machine{machine}")),
        ("CLUSTER_ID", "Kubernetes".to_owned()),
        ("MESH_ID", "cluster.local".to_owned()),
        ("INSTANCE_IPS", ip.clone()),
        ("ISTIO_VERSION", "1.31.0".to_owned()),
        ("SERVICE_ACCOUNT", app.to_owned()),
        ("WORKLOAD_NAME", app.to_owned()),
        ("OWNER", format!("kubernetes://apis/apps/v1/namespaces/{namespace}/deployments/{app}")),
        ("APP_CONTAINERS", "app".to_owned()),
        ("INTERCEPTION_MODE", "REDIRECT".to_owned()),
        ("POD_PORTS", r#"[{"name":"http","containerPort":8080,"protocol":"TCP"}]"#.to_owned()),
    ];
    let texts = texts.into_iter().map(|(key, value)| (key.to_owned(), text(&value)));
    let structs = [("LABELS", labels), ("PROXY_CONFIG", config)];
    let structs = structs.map(|(key, fields)| (key.to_owned(), object(fields)));
    Node {
        id: format!("{kind}~{ip}~p{number}.{namespace}~{namespace}.svc.cluster.local"),
        cluster: format!("{app}.{namespace}"),
        metadata: Some(Struct { fields: texts.chain(structs).collect() }),
        locality: Some(Locality {
            region: "region".to_owned(),
            zone: ZONES[machine % ZONES.len()].to_owned(),
            ..Locality::default()
        }),
        ..Node::default()
    }
}

fn text(text: &str) -> Value {
    Value { kind: Some(value::Kind::StringValue(text.to_owned())) }
}

fn object(fields: BTreeMap<String, Value>) -> Value {
    Value { kind: Some(value::Kind::StructValue(Struct { fields })) }
}
