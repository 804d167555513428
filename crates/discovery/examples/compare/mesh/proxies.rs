//! Proxies that subscribe: two sidecars in each namespace, of every mode and version, one without a service, and a gateway
//! of each kind.

use serde_json::{Value, json};
use testkit::cases::CaseProxy;

use super::services::{Service, region, zone};
use super::{NAMESPACES, ROOT, gateways};

type Metadata = &'static [(&'static str, &'static str)];

/// Metadata of special proxies.
const VARIANTS: &[(&str, Metadata)] = &[
    ("uncaptured", &[("INTERCEPTION_MODE", "NONE")]),
    ("transparent", &[("INTERCEPTION_MODE", "TPROXY"), ("HTTP10", "1")]),
    (
        "older",
        &[
            ("ISTIO_VERSION", "1.26.3"),
            ("OUTBOUND_LISTENER_EXACT_BALANCE", "true"),
            ("INBOUND_LISTENER_EXACT_BALANCE", "true"),
        ],
    ),
    ("double", &[("INSTANCE_IPS", "fd00:40::9"), ("DNS_CAPTURE", "true"), ("DNS_AUTO_ALLOCATE", "true")]),
    ("far", &[("NETWORK", "far"), ("REQUESTED_NETWORK_VIEW", "far"), ("IDLE_TIMEOUT", "33s")]),
    (
        "oldest",
        &[
            ("ISTIO_VERSION", "1.20.0"),
            ("TLS_CLIENT_ROOT_CERT", "/root.pem"),
            ("TLS_CLIENT_CERT_CHAIN", "/chain.pem"),
            ("TLS_CLIENT_KEY", "/key.pem"),
        ],
    ),
];

pub(super) fn all(town: &[Service]) -> Vec<CaseProxy> {
    let mut proxies =
        vec![proxy("client", "sidecar", "10.42.0.1", "client-0", "alpha", &json!({"app": "client"}), None)];
    for (service, namespace) in town.iter().zip(NAMESPACES) {
        let pod = &service.pods[0];
        let mut proxy = proxy(
            &format!("in-{namespace}"),
            "sidecar",
            &pod.address,
            &pod.name,
            namespace,
            &pod.labels,
            Some(pod.node),
        );
        if *namespace == "beta" {
            proxy.metadata["DNS_CAPTURE"] = json!("true");
        }
        proxies.push(proxy);
    }
    for (number, service) in town.iter().skip(NAMESPACES.len()).take(VARIANTS.len()).enumerate() {
        let Some(pod) = service.pods.first() else { continue };
        let name = format!("{}-{}", VARIANTS[number].0, service.namespace);
        let mut proxy =
            proxy(&name, "sidecar", &pod.address, &pod.name, service.namespace, &pod.labels, Some(pod.node));
        for (key, value) in VARIANTS[number].1 {
            let value = if *key == "INSTANCE_IPS" { format!("{},{value}", pod.address) } else { (*value).to_owned() };
            proxy.metadata[*key] = json!(value);
        }
        proxies.push(proxy);
    }
    let labels = json!({"istio": "ingressgateway", "app": "istio-ingressgateway"});
    proxies.push(proxy("edge", "router", gateways::EDGE, "istio-ingressgateway-0", ROOT, &labels, Some(0)));
    let labels = json!({"gateway.networking.k8s.io/gateway-name": "front"});
    proxies.push(proxy("front", "router", gateways::FRONT, "front-istio-0", "alpha", &labels, Some(0)));
    proxies
}

fn proxy(
    name: &str,
    role: &str,
    address: &str,
    pod: &str,
    namespace: &str,
    labels: &Value,
    node: Option<usize>,
) -> CaseProxy {
    let app = pod.rsplit_once('-').map_or(pod, |(app, _)| app);
    let place =
        |node: usize| json!({"region": region(zone(node)), "zone": format!("zone-{}", zone(node)), "sub_zone": ""});
    let locality = node.map_or(json!({}), place);
    let text = json!({"name": name, "id": format!("{role}~{address}~{pod}.{namespace}~{namespace}.svc.cluster.local"),
        "locality": locality,
        "metadata": {"NAMESPACE": namespace, "CLUSTER_ID": "Kubernetes", "ISTIO_VERSION": "1.31.0", "INSTANCE_IPS": address,
            "LABELS": labels, "MESH_ID": "cluster.local", "NAME": pod, "SERVICE_ACCOUNT": app, "WORKLOAD_NAME": app,
            "INTERCEPTION_MODE": "REDIRECT"}});
    let mut proxy: CaseProxy = serde_json::from_value(text).expect("the text above is a proxy");
    if let Some(node) = node {
        proxy.metadata["NODE_NAME"] = json!(format!("node-{node}"));
    }
    proxy
}
