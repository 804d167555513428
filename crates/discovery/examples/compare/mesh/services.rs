//! Services of every shape with their slices and pods, and nodes in several zones.

use serde_json::{Map, Value, json};

use super::NAMESPACES;
use super::dice::Dice;

const NODES: usize = 6;

/// A service that other objects refer to.
pub(super) struct Service {
    pub(super) name: String,
    pub(super) namespace: &'static str,
    /// Name and number of its ports.
    pub(super) ports: Vec<(String, u16)>,
    pub(super) pods: Vec<Pod>,
}

pub(super) struct Pod {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) labels: Value,
    /// Number of its node, which also determines the zone.
    pub(super) node: usize,
}

impl Service {
    pub(super) fn host(&self) -> String {
        format!("{}.{}.svc.cluster.local", self.name, self.namespace)
    }

    /// Its host as an object of this namespace may write it.
    pub(super) fn host_from(&self, namespace: &str, dice: &mut Dice) -> String {
        if namespace == self.namespace && dice.chance(50) { self.name.clone() } else { self.host() }
    }

    pub(super) fn port(&self, dice: &mut Dice) -> u16 {
        dice.pick(&self.ports).1
    }
}

/// Name, number, target port and transport of a port, and an optional appProtocol.
type Shape = (&'static str, u16, u16, &'static str, Option<&'static str>);

const SHAPES: &[&[Shape]] = &[
    &[("http", 80, 8080, "TCP", None)],
    &[("http", 80, 80, "TCP", None)],
    &[("http-web", 8080, 8080, "TCP", None), ("tcp-admin", 9901, 9901, "TCP", None)],
    &[("grpc", 9000, 9000, "TCP", None)],
    &[("http", 80, 8080, "TCP", None), ("grpc", 9000, 9000, "TCP", None), ("https", 443, 8443, "TCP", None)],
    &[("tcp", 5000, 5000, "TCP", None)],
    &[("tcp-db", 5432, 5432, "TCP", None), ("metrics", 9090, 9090, "TCP", Some("http"))],
    &[("web", 7000, 7000, "TCP", None)],
    &[("main", 8000, 8000, "TCP", Some("kubernetes.io/h2c"))],
    &[("http2", 8082, 8082, "TCP", None), ("tls", 8443, 8443, "TCP", None)],
    &[("", 3306, 3306, "TCP", None)],
    &[("mongo", 27017, 27017, "TCP", None)],
    &[("dns", 53, 5353, "UDP", None), ("dns-tcp", 53, 5353, "TCP", None)],
    &[("http", 9080, 9080, "TCP", None)],
    &[("redis", 6379, 6379, "TCP", None), ("mysql", 3307, 3307, "TCP", None)],
    &[("udp-only", 5353, 5353, "UDP", None)],
    &[("web", 8085, 8085, "TCP", Some("kubernetes.io/ws")), ("wss", 8086, 8086, "TCP", Some("kubernetes.io/wss"))],
    &[("grpc-web", 8087, 8087, "TCP", None), ("https-x", 8444, 8444, "TCP", Some("https"))],
    &[("mesh", 15008, 15008, "TCP", Some("hbone")), ("odd", 8088, 8088, "TCP", Some("example.com/thing"))],
    &[("http", 443, 8443, "TCP", None), ("tcp", 80, 8080, "TCP", None)],
];

pub(super) fn nodes() -> Vec<Value> {
    let node = |number: usize| {
        let zone = zone(number);
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{number}"), "labels": {
            "topology.kubernetes.io/region": region(zone), "topology.kubernetes.io/zone": format!("zone-{zone}")}},
            "status": {"addresses": [{"type": "ExternalIP", "address": format!("203.0.113.{number}")}]}})
    };
    (0..NODES).map(node).collect()
}

pub(super) fn zone(node: usize) -> usize {
    node % 3
}

pub(super) fn region(zone: usize) -> &'static str {
    if zone == 2 { "east" } else { "west" }
}

/// The services, with their pods and slices among the objects.
pub(super) fn generate(count: usize, dice: &mut Dice, objects: &mut Vec<Value>) -> Vec<Service> {
    (0..count).map(|number| service(number, dice, objects)).collect()
}

fn service(number: usize, dice: &mut Dice, objects: &mut Vec<Value>) -> Service {
    let (name, namespace) = (format!("s{number}"), NAMESPACES[number % NAMESPACES.len()]);
    // The first services are plain; clients and most rules belong to them.
    let shape = if number < NAMESPACES.len() { SHAPES[0] } else { *dice.pick(SHAPES) };
    let mut spec = json!({"selector": {"app": name}, "ports": shape.iter().map(port).collect::<Vec<_>>()});
    let is_external = number >= 12 && dice.chance(4);
    let is_headless = !is_external && number >= 12 && dice.chance(10);
    if is_external {
        spec["type"] = json!("ExternalName");
        spec["externalName"] = json!(format!("{name}.example.org"));
        spec["selector"].take();
    } else if is_headless {
        spec["clusterIP"] = json!("None");
    } else {
        spec["clusterIP"] = json!(format!("10.96.{}.{}", 1 + number / 200, 1 + number % 200));
        if dice.chance(5) {
            spec["type"] = json!("NodePort");
        }
        if dice.chance(5) {
            spec["sessionAffinity"] = json!("ClientIP");
        }
        if dice.chance(8) {
            spec["trafficDistribution"] = json!(dice.pick(&["PreferClose", "PreferSameNode"]));
        }
        if dice.chance(5) {
            spec["externalIPs"] = json!([format!("198.18.0.{}", 1 + number % 200)]);
        }
        if dice.chance(6) {
            spec["internalTrafficPolicy"] = json!(dice.pick(&["Local", "Cluster"]));
        }
    }
    if !is_external && dice.chance(6) {
        spec["publishNotReadyAddresses"] = json!(true);
    }
    let mut annotations = Map::new();
    if number >= 12 && dice.chance(8) {
        let reach = dice.pick(&[".", "~", "alpha,beta", "*"]);
        annotations.insert("networking.istio.io/exportTo".to_owned(), json!(reach));
    }
    if dice.chance(4) {
        annotations.insert("alpha.istio.io/kubernetes-serviceaccounts".to_owned(), json!("other,third"));
    }
    if dice.chance(4) {
        annotations
            .insert("networking.istio.io/traffic-distribution".to_owned(), json!(dice.pick(&["PreferClose", "Any"])));
    }
    let mut labels = json!({"app": name});
    if dice.chance(4) {
        labels["istio.io/persistent-session"] = json!("session");
    }
    if dice.chance(3) {
        labels["networking.istio.io/exportTo"] = json!("x");
    }
    objects.push(json!({"apiVersion": "v1", "kind": "Service", "spec": spec,
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations, "labels": labels}}));
    let ports = shape.iter().map(|p| (p.0.to_owned(), p.1)).collect();
    let mut service = Service { name, namespace, ports, pods: Vec::new() };
    if !is_external {
        let pods = if number < NAMESPACES.len() { 2 } else { dice.roll(4) };
        service.pods = (0..pods).map(|pod| self::pod(&service, number, pod, shape, dice, objects)).collect();
        objects.push(slice(&service, shape, dice));
    }
    service
}

fn port((name, number, target, transport, app): &Shape) -> Value {
    let mut port = json!({"name": name, "port": number, "targetPort": target, "protocol": transport});
    if let Some(app) = app {
        port["appProtocol"] = json!(app);
    }
    port
}

fn pod(
    service: &Service,
    number: usize,
    pod: usize,
    shape: &[Shape],
    dice: &mut Dice,
    objects: &mut Vec<Value>,
) -> Pod {
    let name = format!("{}-{pod}", service.name);
    let address = format!("10.40.{}.{}", number / 60, 1 + (number % 60) * 4 + pod);
    let mut labels = json!({"app": service.name, "version": format!("v{}", 1 + pod % 2)});
    if dice.chance(70) {
        labels["security.istio.io/tlsMode"] = json!("istio");
    }
    if dice.chance(5) {
        labels["istio-locality"] = json!("west.zone-9");
    }
    if dice.chance(4) {
        labels["topology.istio.io/network"] = json!("far");
    }
    if dice.chance(8) {
        labels["service.istio.io/canonical-name"] = json!("canon");
        labels["topology.istio.io/subzone"] = json!("rack");
    }
    let node = dice.roll(NODES);
    let ports: Vec<Value> = shape.iter().map(|p| json!({"containerPort": p.2, "protocol": p.3})).collect();
    let ready = if dice.chance(92) { "True" } else { "False" };
    objects.push(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": service.namespace, "labels": labels},
        "spec": {"nodeName": format!("node-{node}"), "serviceAccountName": service.name,
            "containers": [{"name": "app", "image": "app", "ports": ports}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": ready}]}}));
    Pod { name, address, labels, node }
}

fn slice(service: &Service, shape: &[Shape], dice: &mut Dice) -> Value {
    let mut endpoint = |pod: &Pod| {
        let conditions = match dice.roll(12) {
            0 => json!({"ready": false, "serving": false, "terminating": false}),
            1 => json!({"ready": false, "serving": true, "terminating": true}),
            _ => json!({"ready": true, "serving": true, "terminating": false}),
        };
        let mut endpoint = json!({"addresses": [pod.address], "conditions": conditions});
        if dice.chance(92) {
            endpoint["targetRef"] = json!({"kind": "Pod", "name": pod.name, "namespace": service.namespace});
        }
        endpoint
    };
    let endpoints: Vec<Value> = service.pods.iter().map(&mut endpoint).collect();
    let ports: Vec<Value> = shape
        .iter()
        .map(|(name, _, target, transport, _)| json!({"name": name, "port": target, "protocol": transport}))
        .collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("{}-1", service.name), "namespace": service.namespace,
            "labels": {"kubernetes.io/service-name": service.name}},
        "ports": ports, "endpoints": endpoints})
}
