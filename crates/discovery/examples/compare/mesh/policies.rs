//! AuthorizationPolicies, PeerAuthentications and RequestAuthentications.

use serde_json::{Value, json};

use super::dice::{Dice, sprinkle};
use super::services::Service;
use super::{NAMESPACES, ROOT, istio};

pub(super) fn generate(town: &[Service], dice: &mut Dice, objects: &mut Vec<Value>) {
    let count = town.len() / 6;
    for number in 0..count {
        // Services with proxies get more policies.
        let about = if dice.chance(40) { &town[dice.roll(NAMESPACES.len())] } else { dice.pick(town) };
        let (name, namespace) = (format!("who{number}"), if dice.chance(5) { ROOT } else { about.namespace });
        let mut spec = json!({"action": dice.pick(&["ALLOW", "ALLOW", "DENY", "AUDIT"]),
            "rules": (0..=dice.roll(2)).map(|_| rule(dice)).collect::<Vec<_>>()});
        if dice.chance(85) {
            spec["selector"] = json!({"matchLabels": {"app": about.name}});
        }
        if dice.chance(12) {
            spec["action"] = json!("CUSTOM");
            spec["provider"] = json!({"name": dice.pick(&["check-http", "check-grpc"])});
        } else if dice.chance(8) {
            spec.as_object_mut().expect("an object by the lines above").remove("rules");
        }
        let mut object = istio("AuthorizationPolicy", "security.istio.io", namespace, &name, spec);
        if dice.chance(8) {
            object["metadata"]["annotations"] = json!({"istio.io/dry-run": "true"});
        }
        objects.push(object);
        if number % 4 == 0 {
            authentication(number, about, dice, objects);
        }
    }
    objects.push(istio("PeerAuthentication", "security.istio.io", "gamma", "all", json!({"mtls": {"mode": "STRICT"}})));
}

fn rule(dice: &mut Dice) -> Value {
    let mut rule = json!({});
    if dice.chance(60) {
        rule["from"] = json!([match dice.roll(9) {
            5 => json!({"source": {"remoteIpBlocks": ["10.0.0.0/8"], "notIpBlocks": ["10.1.0.0/16"]}}),
            6 => json!({"source": {"requestPrincipals": ["issuer0/*", "*/sub"], "notRequestPrincipals": ["a/b"]}}),
            7 => json!({"source": {"serviceAccounts": ["alpha/s0", "s1"], "notServiceAccounts": ["beta/*"]}}),
            8 => json!({"source": {"principals": ["*"], "namespaces": ["a*", "*b"], "notRemoteIpBlocks": ["1.2.3.4"]}}),
            0 => json!({"source": {"principals": ["cluster.local/ns/alpha/sa/s0", "*/sa/s1"]}}),
            1 => json!({"source": {"namespaces": ["beta"], "notPrincipals": ["cluster.local/ns/beta/sa/bad"]}}),
            2 => json!({"source": {"ipBlocks": ["10.40.0.0/16", "192.0.2.7"]}}),
            3 => json!({"source": {"requestPrincipals": ["*"]}}),
            _ => json!({"source": {"notNamespaces": ["zeta"]}}),
        }]);
    }
    if dice.chance(70) {
        rule["to"] = json!([match dice.roll(7) {
            4 => json!({"operation": {"hosts": ["a.example.com", "b*"], "notHosts": ["*.c"], "notPorts": ["1"]}}),
            5 => json!({"operation": {"methods": ["*"], "paths": ["*"]}}),
            6 => json!({"operation": {"paths": ["/a", "/b/*", "*/c"], "notPaths": ["/d/{*}"]}}),
            0 => json!({"operation": {"methods": ["GET", "HEAD"], "paths": ["/public/*", "*.css"]}}),
            1 => json!({"operation": {"ports": ["8080", "9000"], "notPaths": ["/admin*"]}}),
            2 => json!({"operation": {"hosts": ["*.example.com"], "notMethods": ["DELETE"]}}),
            _ => json!({"operation": {"paths": ["/a/{*}/b", "/c/{**}"]}}),
        }]);
    }
    if dice.chance(25) {
        rule["when"] = json!([match dice.roll(12) {
            3 => json!({"key": "source.ip", "values": ["10.0.0.0/8"]}),
            4 => json!({"key": "remote.ip", "notValues": ["10.0.0.1"]}),
            5 => json!({"key": "source.namespace", "values": ["alpha", "*a"]}),
            6 => json!({"key": "source.principal", "values": ["cluster.local/ns/a/sa/b"]}),
            7 => json!({"key": "request.auth.principal", "values": ["*"]}),
            8 => json!({"key": "request.auth.audiences", "values": ["aud"]}),
            9 => json!({"key": "request.auth.claims[a][b]", "values": ["c", "d*"]}),
            10 => json!({"key": "connection.sni", "values": ["*.example.com"]}),
            11 => json!({"key": "experimental.envoy.filters.a.b[c]", "values": ["x*", "[list]"]}),
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
        let mut rule = json!({"issuer": format!("issuer{number}"), "jwks": keys});
        sprinkle(
            &mut rule,
            &[
                (50, "forwardOriginalToken", json!(true)),
                (40, "fromHeaders", json!([{"name": "x-jwt", "prefix": "Bearer "}])),
                (30, "fromParams", json!(["token"])),
                (20, "fromCookies", json!(["jar"])),
                (30, "audiences", json!(["a", "b"])),
                (30, "outputPayloadToHeader", json!("x-payload")),
                (30, "outputClaimToHeaders", json!([{"header": "x-sub", "claim": "sub"}])),
                (20, "timeout", json!("3s")),
                (15, "spaceDelimitedClaims", json!(["roles"])),
            ],
            dice,
        );
        let second = json!({"issuer": "another", "jwks": keys});
        let rules = if dice.chance(30) { json!([rule, second]) } else { json!([rule]) };
        let token = json!({"selector": selector, "jwtRules": rules});
        objects.push(istio("RequestAuthentication", "security.istio.io", about.namespace, &name, token));
    }
}
