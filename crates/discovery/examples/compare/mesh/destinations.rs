//! DestinationRules: subsets, and how connections are made.

use serde_json::{Value, json};

use super::dice::Dice;
use super::services::Service;
use super::{NAMESPACES, ROOT, istio};

pub(super) fn generate(town: &[Service], count: usize, dice: &mut Dice, objects: &mut Vec<Value>) {
    for number in 0..count {
        let target = dice.pick(town);
        let namespace = match dice.roll(20) {
            0 => ROOT,
            1..=3 => *dice.pick(NAMESPACES),
            _ => target.namespace,
        };
        let mut spec = json!({"host": target.host_from(namespace, dice)});
        if dice.chance(75) {
            spec["trafficPolicy"] = policy(target, dice);
        }
        if dice.chance(70) {
            let names = &["v1", "v2", "v3"][..1 + dice.roll(3)];
            spec["subsets"] = names.iter().map(|name| subset(name, target, dice)).collect();
        }
        if dice.chance(10) {
            spec["exportTo"] = json!([dice.pick(&[".", "alpha", "*"])]);
        }
        if dice.chance(8) {
            spec["workloadSelector"] = json!({"matchLabels": {"version": "v1"}});
        }
        objects.push(istio("DestinationRule", "networking.istio.io", namespace, &format!("to{number}"), spec));
    }
    let whole = json!({"host": "*.zeta.svc.cluster.local", "trafficPolicy": {"connectionPool": {"tcp": {"maxConnections": 77}}}});
    objects.push(istio("DestinationRule", "networking.istio.io", "zeta", "all-of-zeta", whole));
}

fn subset(name: &str, target: &Service, dice: &mut Dice) -> Value {
    let mut subset = json!({"name": name, "labels": {"version": name}});
    if dice.chance(25) {
        subset["trafficPolicy"] = policy(target, dice);
    }
    subset
}

fn policy(target: &Service, dice: &mut Dice) -> Value {
    let mut policy = settings(dice);
    if dice.chance(20) {
        let mut of_port = settings(dice);
        of_port["port"] = json!({"number": target.port(dice)});
        policy["portLevelSettings"] = json!([of_port]);
    }
    policy
}

fn settings(dice: &mut Dice) -> Value {
    let mut settings = json!({});
    if dice.chance(50) {
        settings["loadBalancer"] = match dice.roll(7) {
            0 => json!({"simple": "RANDOM"}),
            1 => json!({"simple": "LEAST_REQUEST", "warmup": {"duration": "30s"}}),
            2 => json!({"simple": "PASSTHROUGH"}),
            3 => json!({"consistentHash": {"httpHeaderName": "x-user"}}),
            4 => {
                json!({"consistentHash": {"httpCookie": {"name": "user", "ttl": "0s"}, "ringHash": {"minimumRingSize": 2048}}})
            }
            5 => json!({"simple": "ROUND_ROBIN", "localityLbSetting": {"enabled": true,
                "failover": [{"from": "west", "to": "east"}]}}),
            _ => json!({"localityLbSetting": {"distribute": [{"from": "west/*", "to": {"west/*": 80, "east/*": 20}}]}}),
        };
    }
    if dice.chance(40) {
        settings["connectionPool"] = json!({"tcp": {"maxConnections": 10 + dice.roll(90), "connectTimeout": "1s",
            "tcpKeepalive": {"time": "7200s", "interval": "75s"}},
            "http": {"http1MaxPendingRequests": 5, "maxRequestsPerConnection": 3, "idleTimeout": "60s"}});
    }
    if dice.chance(35) {
        settings["outlierDetection"] = json!({"consecutive5xxErrors": 1 + dice.roll(9), "interval": "5s",
            "baseEjectionTime": "1m", "maxEjectionPercent": 50});
    }
    if dice.chance(35) {
        settings["tls"] = match dice.roll(5) {
            0 => json!({"mode": "DISABLE"}),
            1 => json!({"mode": "SIMPLE", "sni": "outside.example.com"}),
            2 => {
                json!({"mode": "MUTUAL", "clientCertificate": "/c.pem", "privateKey": "/k.pem", "caCertificates": "/ca.pem"})
            }
            _ => json!({"mode": "ISTIO_MUTUAL"}),
        };
    }
    settings
}
