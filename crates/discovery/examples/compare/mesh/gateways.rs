//! Gateways of Istio's own kind, and the workloads of all gateways.

use serde_json::{Value, json};

use super::dice::{Dice, sprinkle};
use super::{ROOT, istio};

/// Addresses of the gateways' pods.
pub(super) const EDGE: &str = "10.41.0.1";
pub(super) const FRONT: &str = "10.41.0.2";

pub(super) fn generate(dice: &mut Dice, objects: &mut Vec<Value>) {
    let edge = json!({"istio": "ingressgateway", "app": "istio-ingressgateway"});
    let ports = [("http2", 80, 8080), ("https", 443, 8443), ("tcp", 31400, 31400), ("tls", 15443, 15443)];
    workload(ROOT, "istio-ingressgateway", &edge, EDGE, "10.96.250.1", &ports, objects);
    let front = json!({"gateway.networking.k8s.io/gateway-name": "front"});
    let ports = [("http", 80, 80), ("https", 443, 443), ("tls", 8443, 8443)];
    workload("alpha", "front-istio", &front, FRONT, "10.96.250.2", &ports, objects);
    for number in 0..3 {
        let spec = json!({"selector": {"istio": "ingressgateway"}, "servers": servers(number)});
        objects.push(istio("Gateway", "networking.istio.io", ROOT, &format!("edge{number}"), spec));
    }
    for number in 3..6 {
        let servers: Vec<Value> = (0..=dice.roll(3)).map(|place| server(number * 10 + place, dice)).collect();
        let namespace = *dice.pick(&[ROOT, "alpha", "beta"]);
        let selector =
            dice.pick(&[json!({"istio": "ingressgateway"}), json!({"app": "istio-ingressgateway"}), json!({})]).clone();
        let spec = json!({"selector": selector, "servers": servers});
        objects.push(istio("Gateway", "networking.istio.io", namespace, &format!("edge{number}"), spec));
    }
}

fn workload(
    namespace: &str,
    name: &str,
    labels: &Value,
    address: &str,
    cluster_ip: &str,
    ports: &[(&str, u16, u16)],
    objects: &mut Vec<Value>,
) {
    let of = |(name, number, target): &(&str, u16, u16)| json!({"name": name, "port": number, "targetPort": target});
    objects.push(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": cluster_ip, "selector": labels, "ports": ports.iter().map(of).collect::<Vec<_>>()}}));
    objects.push(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("{name}-0"), "namespace": namespace, "labels": labels},
        "spec": {"nodeName": "node-0", "serviceAccountName": name, "containers": [{"name": "proxy", "image": "proxy"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}]}}));
    let of = |(name, _, target): &(&str, u16, u16)| json!({"name": name, "port": target, "protocol": "TCP"});
    objects.push(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("{name}-1"), "namespace": namespace, "labels": {"kubernetes.io/service-name": name}},
        "ports": ports.iter().map(of).collect::<Vec<_>>(),
        "endpoints": [{"addresses": [address], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "name": format!("{name}-0"), "namespace": namespace}}]}));
}

fn servers(number: usize) -> Value {
    match number {
        0 => json!([{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]},
            {"port": {"number": 443, "name": "https", "protocol": "HTTPS"}, "hosts": ["shop0.example.com", "shop1.example.com"],
                "tls": {"mode": "SIMPLE", "credentialName": "shop"}}]),
        1 => json!([{"port": {"number": 80, "name": "http-more", "protocol": "HTTP"}, "hosts": ["*.example.com"],
                "tls": {"httpsRedirect": true}},
            {"port": {"number": 443, "name": "https-more", "protocol": "HTTPS"}, "hosts": ["./shop2.example.com", "alpha/shop3.example.com"],
                "tls": {"mode": "MUTUAL", "credentialName": "mutual", "minProtocolVersion": "TLSV1_3"}}]),
        _ => {
            json!([{"port": {"number": 15443, "name": "tls", "protocol": "TLS"}, "hosts": ["*.alpha.svc.cluster.local"],
                "tls": {"mode": "AUTO_PASSTHROUGH"}},
            {"port": {"number": 31400, "name": "tcp", "protocol": "TCP"}, "hosts": ["*"]},
            {"port": {"number": 8080, "name": "http-other", "protocol": "HTTP"}, "hosts": ["*/shop4.example.com"]}])
        }
    }
}

/// A server of any kind.
fn server(number: usize, dice: &mut Dice) -> Value {
    let host = format!("shop{}.example.com", dice.roll(9));
    let hosts = dice
        .pick(&[
            json!([host]),
            json!(["*"]),
            json!(["*.example.com", "shop1.example.org"]),
            json!(["alpha/*", "./mine.example.com"]),
        ])
        .clone();
    let (port, protocol) = *dice.pick(&[
        (80, "HTTP"),
        (8080, "HTTP2"),
        (443, "HTTPS"),
        (8443, "TLS"),
        (31400, "TCP"),
        (27017, "MONGO"),
        (9443, "HTTPS"),
        (443, "TLS"),
        (8082, "GRPC"),
        (8081, "GRPC-WEB"),
    ]);
    let mut server =
        json!({"port": {"number": port, "name": format!("port{number}"), "protocol": protocol}, "hosts": hosts});
    if matches!(protocol, "HTTPS" | "TLS") {
        server["tls"] = tls(protocol, dice);
    } else if protocol == "HTTP" && dice.chance(20) {
        server["tls"] = json!({"httpsRedirect": true});
    }
    sprinkle(&mut server, &[(15, "bind", json!("10.41.0.1")), (20, "name", json!(format!("server{number}")))], dice);
    server
}

fn tls(protocol: &str, dice: &mut Dice) -> Value {
    let mut tls = match dice.roll(if protocol == "TLS" { 9 } else { 7 }) {
        0 => json!({"mode": "SIMPLE", "credentialName": "shop"}),
        1 => json!({"mode": "MUTUAL", "credentialName": "mutual"}),
        2 => json!({"mode": "OPTIONAL_MUTUAL", "credentialName": "mutual"}),
        3 => json!({"mode": "ISTIO_MUTUAL"}),
        4 => json!({"mode": "SIMPLE", "serverCertificate": "/c.pem", "privateKey": "/k.pem"}),
        5 => json!({"mode": "SIMPLE", "credentialNames": ["rsa", "ecdsa"]}),
        6 => {
            json!({"mode": "MUTUAL", "serverCertificate": "/c.pem", "privateKey": "/k.pem", "caCertificates": "/ca.pem", "caCrl": "/crl.pem"})
        }
        7 => json!({"mode": "AUTO_PASSTHROUGH"}),
        _ => json!({"mode": "PASSTHROUGH"}),
    };
    sprinkle(
        &mut tls,
        &[
            (20, "minProtocolVersion", json!("TLSV1_2")),
            (20, "maxProtocolVersion", json!("TLSV1_3")),
            (20, "cipherSuites", json!(["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"])),
            (20, "subjectAltNames", json!(["spiffe://a/b", "client.example.com"])),
            (15, "verifyCertificateSpki", json!(["YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXoxMjM0NTY="])),
            (15, "verifyCertificateHash", json!(["aa11223344556677889900aabbccddeeff00112233445566778899aabbccddee"])),
        ],
        dice,
    );
    tls
}
