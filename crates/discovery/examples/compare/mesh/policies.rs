//! Who may talk to whom, what a client may see, and patches.

use serde_json::{Value, json};

use super::dice::Dice;
use super::services::Service;
use super::{NAMESPACES, ROOT, istio};

pub(super) fn generate(town: &[Service], dice: &mut Dice, objects: &mut Vec<Value>) {
    let count = town.len() / 6;
    for number in 0..count {
        // Those whose proxies ask get more than their share.
        let about = if dice.chance(40) { &town[dice.roll(NAMESPACES.len())] } else { dice.pick(town) };
        let (name, namespace) = (format!("who{number}"), if dice.chance(5) { ROOT } else { about.namespace });
        let mut spec = json!({"action": dice.pick(&["ALLOW", "ALLOW", "DENY", "AUDIT"]),
            "rules": (0..=dice.roll(2)).map(|_| rule(dice)).collect::<Vec<_>>()});
        if dice.chance(85) {
            spec["selector"] = json!({"matchLabels": {"app": about.name}});
        }
        objects.push(istio("AuthorizationPolicy", "security.istio.io", namespace, &name, spec));
        if number % 4 == 0 {
            authentication(number, about, dice, objects);
        }
    }
    objects.push(istio("PeerAuthentication", "security.istio.io", "gamma", "all", json!({"mtls": {"mode": "STRICT"}})));
    sidecars(objects);
    patches(objects);
    let lines = json!({"accessLogging": [{"providers": [{"name": "envoy"}], "filter": {"expression": "response.code >= 400"}}]});
    objects.push(istio("Telemetry", "telemetry.istio.io", "beta", "lines", lines));
}

fn rule(dice: &mut Dice) -> Value {
    let mut rule = json!({});
    if dice.chance(60) {
        rule["from"] = json!([match dice.roll(5) {
            0 => json!({"source": {"principals": ["cluster.local/ns/alpha/sa/s0", "*/sa/s1"]}}),
            1 => json!({"source": {"namespaces": ["beta"], "notPrincipals": ["cluster.local/ns/beta/sa/bad"]}}),
            2 => json!({"source": {"ipBlocks": ["10.40.0.0/16", "192.0.2.7"]}}),
            3 => json!({"source": {"requestPrincipals": ["*"]}}),
            _ => json!({"source": {"notNamespaces": ["zeta"]}}),
        }]);
    }
    if dice.chance(70) {
        rule["to"] = json!([match dice.roll(4) {
            0 => json!({"operation": {"methods": ["GET", "HEAD"], "paths": ["/public/*", "*.css"]}}),
            1 => json!({"operation": {"ports": ["8080", "9000"], "notPaths": ["/admin*"]}}),
            2 => json!({"operation": {"hosts": ["*.example.com"], "notMethods": ["DELETE"]}}),
            _ => json!({"operation": {"paths": ["/a/{*}/b", "/c/{**}"]}}),
        }]);
    }
    if dice.chance(25) {
        rule["when"] = json!([match dice.roll(3) {
            0 => json!({"key": "request.headers[x-token]", "values": ["admin*"]}),
            1 => json!({"key": "request.auth.claims[group]", "values": ["staff"]}),
            _ => json!({"key": "destination.port", "notValues": ["9999"]}),
        }]);
    }
    rule
}

fn authentication(number: usize, about: &Service, dice: &mut Dice, objects: &mut Vec<Value>) {
    let selector = json!({"matchLabels": {"app": about.name}});
    let name = format!("how{number}");
    let mut peer =
        json!({"selector": selector, "mtls": {"mode": dice.pick(&["STRICT", "PERMISSIVE", "DISABLE", "UNSET"])}});
    if dice.chance(40) {
        peer["portLevelMtls"] = json!({about.ports[0].1.to_string(): {"mode": dice.pick(&["DISABLE", "STRICT"])}});
    }
    objects.push(istio("PeerAuthentication", "security.istio.io", about.namespace, &name, peer));
    if dice.chance(50) {
        let keys = r#"{"keys":[{"kty":"oct","k":"c2VjcmV0","alg":"HS256","kid":"1"}]}"#;
        let token = json!({"selector": selector, "jwtRules": [{"issuer": format!("issuer{number}"), "jwks": keys,
            "forwardOriginalToken": true, "fromHeaders": [{"name": "x-jwt", "prefix": "Bearer "}]}]});
        objects.push(istio("RequestAuthentication", "security.istio.io", about.namespace, &name, token));
    }
}

fn sidecars(objects: &mut Vec<Value>) {
    let narrow = json!({"egress": [{"hosts": ["./*", "istio-system/*", "alpha/*.alpha.svc.cluster.local"]}],
        "outboundTrafficPolicy": {"mode": "REGISTRY_ONLY"}});
    objects.push(istio("Sidecar", "networking.istio.io", "delta", "default", narrow));
    let own = json!({"workloadSelector": {"labels": {"app": "s4"}},
        "egress": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["beta/*", "./*"]}, {"hosts": ["gamma/*"]}]});
    objects.push(istio("Sidecar", "networking.istio.io", "epsilon", "own", own));
}

fn patches(objects: &mut Vec<Value>) {
    let cluster = json!({"configPatches": [{"applyTo": "CLUSTER", "match": {"context": "SIDECAR_OUTBOUND", "cluster": {"portNumber": 9000}},
        "patch": {"operation": "MERGE", "value": {"connect_timeout": "7s"}}}]});
    objects.push(istio("EnvoyFilter", "networking.istio.io", ROOT, "slower", cluster));
    let filter = json!({"workloadSelector": {"labels": {"version": "v1"}}, "configPatches": [{"applyTo": "HTTP_FILTER",
        "match": {"context": "SIDECAR_INBOUND", "listener": {"filterChain": {"filter": {"name": "envoy.filters.network.http_connection_manager",
            "subFilter": {"name": "envoy.filters.http.router"}}}}},
        "patch": {"operation": "INSERT_BEFORE", "value": {"name": "envoy.filters.http.buffer", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer", "max_request_bytes": 4096}}}}]});
    objects.push(istio("EnvoyFilter", "networking.istio.io", "beta", "buffer", filter));
}
