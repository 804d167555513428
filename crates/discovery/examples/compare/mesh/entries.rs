//! ServiceEntries and WorkloadEntries.

use serde_json::{Value, json};

use super::dice::{Dice, sprinkle};
use super::{NAMESPACES, istio};

const PORTS: &[(&str, u16, &str)] = &[
    ("http", 80, "HTTP"),
    ("https", 443, "HTTPS"),
    ("tls", 8443, "TLS"),
    ("tcp", 6000, "TCP"),
    ("grpc", 9000, "GRPC"),
    ("any", 7070, ""),
    ("mongo", 27018, "MONGO"),
    ("http2", 8081, "HTTP2"),
];

pub(super) fn generate(count: usize, dice: &mut Dice, objects: &mut Vec<Value>) {
    for number in 0..count {
        entry(number, dice, objects);
    }
    let group = json!({"metadata": {"labels": {"machine": "grouped"}}, "template": {"serviceAccount": "grouped", "network": "far"}});
    objects.push(istio("WorkloadGroup", "networking.istio.io", "alpha", "grouped", group));
}

fn entry(number: usize, dice: &mut Dice, objects: &mut Vec<Value>) {
    let namespace = *dice.pick(NAMESPACES);
    let name = format!("out{number}");
    // Some hosts occur twice.
    let host = format!("out{}.example.com", if dice.chance(12) { number / 2 } else { number });
    let ports: Vec<&(&str, u16, &str)> = PORTS.iter().skip(dice.roll(PORTS.len())).take(1 + dice.roll(2)).collect();
    let mut service_ports: Vec<Value> = ports
        .iter()
        .map(|(name, number, protocol)| json!({"name": name, "number": number, "protocol": protocol}))
        .collect();
    if dice.chance(20) {
        service_ports[0]["targetPort"] = json!(9191);
    }
    let mut spec = json!({"hosts": [host], "ports": service_ports, "location": dice.pick(&["MESH_EXTERNAL", "MESH_EXTERNAL", "MESH_INTERNAL"])});
    match dice.roll(9) {
        0 => spec["resolution"] = json!("NONE"),
        1 => spec["resolution"] = json!("DNS"),
        2 => spec["resolution"] = json!("DNS_ROUND_ROBIN"),
        3 => {
            // Chains of bytes differ by choice; see tests/cases/DIFFERENCES.md.
            spec["resolution"] = json!("DYNAMIC_DNS");
            spec["ports"] = json!([{"name": "http", "number": 80, "protocol": "HTTP"}]);
            spec["hosts"] = json!([format!("*.{host}")]);
        }
        4 => {
            spec["resolution"] = json!("NONE");
            spec["hosts"] = json!([format!("*.{host}"), host]);
        }
        5 | 6 => {
            spec["resolution"] = json!("STATIC");
            spec["endpoints"] = (0..=dice.roll(3)).map(|place| endpoint(number, place, ports[0].0, dice)).collect();
        }
        7 => {
            spec["resolution"] = json!("DNS");
            spec["hosts"] = json!([host, format!("also-{host}")]);
            spec["endpoints"] = json!([{"address": format!("real{number}.example.net"), "ports": {ports[0].0: 9999}},
                {"address": format!("other{number}.example.net"), "locality": "east/zone-2", "weight": 4}]);
        }
        _ => selecting(number, &name, namespace, &mut spec, dice, objects),
    }
    // One host with one address: with several, istiod's virtual host is not deterministic.
    let address = match dice.roll(5) {
        0 => json!([format!("10.78.{number}.0/24")]),
        2 => json!([format!("fd00:77::{number}")]),
        _ => json!([format!("10.77.0.{}", 1 + number)]),
    };
    sprinkle(
        &mut spec,
        &[
            (15, "exportTo", json!(["."])),
            (10, "exportTo", json!(["alpha", "beta"])),
            (10, "subjectAltNames", json!(["spiffe://cluster.local/ns/x/sa/y"])),
        ],
        dice,
    );
    let single = spec["hosts"].as_array().is_some_and(|hosts| hosts.len() == 1);
    if single && spec["resolution"] != "DYNAMIC_DNS" && dice.chance(35) {
        spec["addresses"] = address;
    }
    let mut object = istio("ServiceEntry", "networking.istio.io", namespace, &name, spec);
    if dice.chance(10) {
        object["metadata"]["annotations"] =
            json!({"networking.istio.io/traffic-distribution": dice.pick(&["PreferClose", "PreferSameZone"])});
    }
    if dice.chance(10) {
        object["metadata"]["labels"] = json!({"app": name, "istio.io/persistent-session": "cookie"});
    }
    objects.push(object);
}

fn endpoint(number: usize, place: usize, port: &str, dice: &mut Dice) -> Value {
    let mut endpoint = json!({"address": format!("192.0.{}.{}", 2 + place, 1 + number)});
    sprinkle(
        &mut endpoint,
        &[
            (20, "weight", json!(3)),
            (30, "locality", json!("west/zone-1/rack-2")),
            (15, "network", json!("far")),
            (20, "labels", json!({"version": "v1", "security.istio.io/tlsMode": "istio"})),
            (15, "labels", json!({"version": "v2", "app": "machine"})),
            (20, "serviceAccount", json!("machine")),
            (20, "ports", json!({port: 7654})),
        ],
        dice,
    );
    endpoint
}

fn selecting(number: usize, name: &str, namespace: &str, spec: &mut Value, dice: &mut Dice, objects: &mut Vec<Value>) {
    spec["resolution"] = json!("STATIC");
    spec["location"] = json!("MESH_INTERNAL");
    // Some select pods.
    let chosen = if dice.chance(25) { json!({"version": "v2"}) } else { json!({"machine": name}) };
    spec["workloadSelector"] = json!({"labels": chosen});
    for place in 0..dice.roll(3) {
        let mut entry = json!({"address": format!("172.{}.0.{}", 16 + place, 1 + number), "labels": {"machine": name, "version": "v1"}});
        sprinkle(
            &mut entry,
            &[
                (60, "serviceAccount", json!(name)),
                (20, "weight", json!(7)),
                (20, "locality", json!("east/zone-2")),
                (10, "network", json!("far")),
                (20, "ports", json!({"http": 8123})),
            ],
            dice,
        );
        objects.push(istio("WorkloadEntry", "networking.istio.io", namespace, &format!("{name}-{place}"), entry));
    }
}
