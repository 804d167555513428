//! DestinationRules: subsets, and how connections are made.

use serde_json::{Value, json};

use super::dice::{Dice, sprinkle};
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
        if dice.chance(6) {
            spec["host"] =
                json!(dice.pick(&["*.example.com", "*.alpha.svc.cluster.local", "out1.example.com", "*.local"]));
        }
        if dice.chance(5) && spec.get("trafficPolicy").is_some() {
            spec["trafficPolicy"]["tunnel"] =
                json!({"protocol": "CONNECT", "targetHost": "far.example.com", "targetPort": 443});
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
        settings["loadBalancer"] = balancer(dice);
    }
    if dice.chance(40) {
        settings["connectionPool"] = pool(dice);
    }
    if dice.chance(35) {
        let mut outlier = json!({"interval": "5s"});
        sprinkle(
            &mut outlier,
            &[
                (60, "consecutive5xxErrors", json!(dice.roll(9))),
                (30, "consecutiveGatewayErrors", json!(dice.roll(4))),
                (30, "splitExternalLocalOriginErrors", json!(true)),
                (30, "consecutiveLocalOriginFailures", json!(4)),
                (50, "baseEjectionTime", json!("1m")),
                (40, "maxEjectionPercent", json!(50)),
                (30, "minHealthPercent", json!(20)),
            ],
            dice,
        );
        settings["outlierDetection"] = outlier;
    }
    if dice.chance(35) {
        settings["tls"] = tls(dice);
    }
    sprinkle(
        &mut settings,
        &[
            (8, "proxyProtocol", json!({"version": "V2"})),
            (6, "retryBudget", json!({"percent": 25.5, "minRetryConcurrency": 7})),
        ],
        dice,
    );
    settings
}

fn balancer(dice: &mut Dice) -> Value {
    let mut balancer = match dice.roll(14) {
        0 => json!({"simple": "RANDOM"}),
        1 => json!({"simple": "LEAST_REQUEST", "warmup": {"duration": "30s"}}),
        2 => json!({"simple": "PASSTHROUGH"}),
        3 => json!({"consistentHash": {"httpHeaderName": "x-user"}}),
        4 => {
            json!({"consistentHash": {"httpCookie": {"name": "user", "ttl": "0s"}, "ringHash": {"minimumRingSize": 2048}}})
        }
        5 => {
            json!({"simple": "ROUND_ROBIN", "localityLbSetting": {"enabled": true, "failover": [{"from": "west", "to": "east"}]}})
        }
        6 => json!({"consistentHash": {"useSourceIp": true, "maglev": {"tableSize": 65537}}}),
        7 => json!({"consistentHash": {"httpQueryParameterName": "q", "minimumRingSize": 100}}),
        8 => {
            json!({"consistentHash": {"httpCookie": {"name": "c", "path": "/p", "ttl": "5s", "attributes": [{"name": "SameSite", "value": "Strict"}]}, "maglev": {}}})
        }
        9 => json!({"simple": "ROUND_ROBIN", "warmup": {"duration": "10s", "minimumPercent": 20, "aggression": 2.5}}),
        10 => {
            json!({"localityLbSetting": {"failoverPriority": ["topology.kubernetes.io/region", "topology.kubernetes.io/zone", "version=v1"]}})
        }
        11 => json!({"simple": "LEAST_CONN", "warmupDurationSecs": "7s"}),
        12 => json!({"localityLbSetting": {"enabled": false}}),
        _ => json!({"localityLbSetting": {"distribute": [{"from": "west/*", "to": {"west/*": 80, "east/*": 20}}]}}),
    };
    if balancer.get("localityLbSetting").is_none() && dice.chance(10) {
        balancer["localityLbSetting"] = json!({"distribute": [{"from": "*", "to": {"west/zone-0": 50, "east/*": 50}}]});
    }
    balancer
}

fn pool(dice: &mut Dice) -> Value {
    let mut tcp = json!({});
    sprinkle(
        &mut tcp,
        &[
            (50, "maxConnections", json!(10 + dice.roll(90))),
            (40, "connectTimeout", json!("1s")),
            (30, "tcpKeepalive", json!({"time": "7200s", "interval": "75s", "probes": 4})),
            (15, "tcpKeepalive", json!({})),
            (20, "idleTimeout", json!("44s")),
            (20, "maxConnectionDuration", json!("3600s")),
        ],
        dice,
    );
    let mut http = json!({});
    sprinkle(
        &mut http,
        &[
            (40, "http1MaxPendingRequests", json!(5)),
            (30, "http2MaxRequests", json!(6)),
            (30, "maxRequestsPerConnection", json!(3)),
            (30, "maxRetries", json!(8)),
            (30, "idleTimeout", json!("60s")),
            (30, "h2UpgradePolicy", json!(dice.pick(&["UPGRADE", "DO_NOT_UPGRADE", "DEFAULT"]))),
            (20, "useClientProtocol", json!(true)),
            (20, "maxConcurrentStreams", json!(11)),
        ],
        dice,
    );
    let mut pool = json!({});
    sprinkle(&mut pool, &[(80, "tcp", tcp), (70, "http", http)], dice);
    pool
}

fn tls(dice: &mut Dice) -> Value {
    let mut tls = match dice.roll(8) {
        0 => json!({"mode": "DISABLE"}),
        1 => json!({"mode": "SIMPLE", "sni": "outside.example.com"}),
        2 => {
            json!({"mode": "MUTUAL", "clientCertificate": "/c.pem", "privateKey": "/k.pem", "caCertificates": "/ca.pem"})
        }
        3 => json!({"mode": "SIMPLE", "credentialName": "client"}),
        4 => json!({"mode": "MUTUAL", "credentialName": "client"}),
        5 => json!({"mode": "SIMPLE", "caCertificates": "system"}),
        _ => json!({"mode": "ISTIO_MUTUAL"}),
    };
    if matches!(tls["mode"].as_str(), Some("SIMPLE" | "MUTUAL")) {
        sprinkle(
            &mut tls,
            &[
                (25, "subjectAltNames", json!(["a.example.com", "spiffe://x/y"])),
                (20, "insecureSkipVerify", json!(true)),
                (15, "sni", json!("asked.example.com")),
                (10, "caCrl", json!("/crl.pem")),
            ],
            dice,
        );
    }
    tls
}
