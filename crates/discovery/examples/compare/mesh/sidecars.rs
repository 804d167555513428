//! Sidecars.

use serde_json::{Value, json};

use super::dice::{Dice, sprinkle};
use super::services::Service;
use super::{NAMESPACES, ROOT, istio};

pub(super) fn generate(town: &[Service], dice: &mut Dice, objects: &mut Vec<Value>) {
    let narrow = json!({"egress": [{"hosts": ["./*", "istio-system/*", "alpha/*.alpha.svc.cluster.local"]}],
        "outboundTrafficPolicy": {"mode": "REGISTRY_ONLY"}});
    objects.push(istio("Sidecar", "networking.istio.io", "delta", "default", narrow));
    let own = json!({"workloadSelector": {"labels": {"app": "s4"}},
        "egress": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["beta/*", "./*"]}, {"hosts": ["gamma/*"]}]});
    objects.push(istio("Sidecar", "networking.istio.io", "epsilon", "own", own));
    if dice.chance(20) {
        objects.push(istio(
            "Sidecar",
            "networking.istio.io",
            ROOT,
            "everybody",
            json!({"egress": [{"hosts": ["*/*"]}]}),
        ));
    }
    // Services 6 to 11 belong to further proxies.
    for service in town.iter().skip(NAMESPACES.len()).take(6) {
        if dice.chance(60) {
            let mut spec =
                json!({"workloadSelector": {"labels": {"app": service.name}}, "egress": egress(service, dice)});
            if dice.chance(60) {
                spec["ingress"] = ingress(service, dice);
            }
            sprinkle(
                &mut spec,
                &[
                    (30, "outboundTrafficPolicy", json!({"mode": "REGISTRY_ONLY"})),
                    (
                        15,
                        "outboundTrafficPolicy",
                        json!({"mode": "ALLOW_ANY", "egressProxy": {"host": "s0.alpha.svc.cluster.local", "port": {"number": 80}}}),
                    ),
                    (
                        30,
                        "inboundConnectionPool",
                        json!({"http": {"http1MaxPendingRequests": 1024, "maxRequestsPerConnection": 9, "idleTimeout": "5s"}, "tcp": {"maxConnections": 100}}),
                    ),
                ],
                dice,
            );
            objects.push(istio(
                "Sidecar",
                "networking.istio.io",
                service.namespace,
                &format!("of-{}", service.name),
                spec,
            ));
        }
    }
}

fn egress(service: &Service, dice: &mut Dice) -> Value {
    let hosts = dice
        .pick(&[
            json!(["*/*"]),
            json!(["./*", "istio-system/*"]),
            json!(["alpha/*", "~/*"]),
            json!(["*/*.example.com", "./*"]),
        ])
        .clone();
    let mut listeners = Vec::new();
    if dice.chance(40) {
        listeners.push(json!({"port": {"number": 9080, "name": "http-x", "protocol": "HTTP"}, "bind": "127.0.0.1", "hosts": ["*/*"]}));
    }
    if dice.chance(25) {
        listeners.push(json!({"port": {"number": 5432, "name": "tcp-db", "protocol": "TCP"}, "captureMode": dice.pick(&["NONE", "IPTABLES", "DEFAULT"]), "hosts": ["./*"]}));
    }
    if dice.chance(25) {
        listeners.push(json!({"port": {"number": 0, "name": "unix", "protocol": "HTTP"}, "bind": "unix:///tmp/egress.sock", "hosts": [format!("./{}", service.host())]}));
    }
    if dice.chance(20) {
        listeners.push(json!({"port": {"number": 3128, "name": "proxy", "protocol": "HTTP_PROXY"}, "bind": "127.0.0.1", "hosts": ["*/*"]}));
    }
    if dice.chance(30) {
        listeners.push(json!({"port": {"number": 443, "name": "tls", "protocol": "TLS"}, "hosts": ["*/*"]}));
    }
    if dice.chance(75) || listeners.is_empty() {
        listeners.push(json!({"hosts": hosts}));
    }
    json!(listeners)
}

fn ingress(service: &Service, dice: &mut Dice) -> Value {
    let mut first = json!({"port": {"number": service.ports[0].1, "name": "http", "protocol": dice.pick(&["HTTP", "TCP", "GRPC", "HTTP2"])},
        "defaultEndpoint": dice.pick(&["127.0.0.1:8080", "unix:///tmp/app.sock", "0.0.0.0:9000", "[::1]:8081"])});
    sprinkle(
        &mut first,
        &[
            (20, "bind", json!("127.0.0.9")),
            (20, "captureMode", json!("NONE")),
            (20, "tls", json!({"mode": "SIMPLE", "privateKey": "/k.pem", "serverCertificate": "/c.pem"})),
            (
                15,
                "tls",
                json!({"mode": "MUTUAL", "privateKey": "/k.pem", "serverCertificate": "/c.pem", "caCertificates": "/ca.pem", "subjectAltNames": ["client"]}),
            ),
            (20, "connectionPool", json!({"tcp": {"maxConnections": 9}, "http": {"http2MaxRequests": 5}})),
        ],
        dice,
    );
    let mut all = vec![first];
    if dice.chance(30) {
        all.push(json!({"port": {"number": 9999, "name": "tcp-more", "protocol": "TCP"}, "defaultEndpoint": "127.0.0.1:9999"}));
    }
    json!(all)
}
