//! The rules of policies and authentication.

use super::check;
use crate::config::Kind;

#[test]
fn authorization_policies() {
    check(
        Kind::AuthorizationPolicy,
        &[
            ("{}", ""),
            ("{rules: [{}]}", ""),
            ("{action: DENY}", "error: DENY action without `rules` is meaningless"),
            ("{action: CUSTOM, rules: [{}]}", "`provider.name` must not be empty"),
            (
                "{action: CUSTOM, provider: {name: x}, rules: [{from: [{source: {principals: [a]}}]}]}",
                "From.Principals is currently not supported with CUSTOM action",
            ),
            ("{provider: {name: x}}", "`provider` must not be with non CUSTOM action, found ALLOW"),
            ("{rules: [{from: [{}]}]}", "error: rules[0].from[0]: `from.source` must not be nil"),
            ("{rules: [{from: [{source: {}}]}]}", "`from.source` must not be empty"),
            ("{rules: [{from: [{source: {ipBlocks: [a]}}]}]}", "bad IP address (a)"),
            ("{rules: [{from: [{source: {ipBlocks: [10.0.0.0/99]}}]}]}", "bad CIDR range (10.0.0.0/99)"),
            ("{rules: [{from: [{source: {namespaces: ['']}}]}]}", "empty value not allowed, found in Namespaces"),
            (
                "{rules: [{from: [{source: {serviceAccounts: [a/b/c]}}]}]}",
                "expected format 'serviceAccount' or 'namespace/serviceAccount'",
            ),
            (
                "{rules: [{from: [{source: {serviceAccounts: [a], namespaces: [b]}}]}]}",
                "cannot set serviceAccounts with namespaces or principals",
            ),
            ("{rules: [{from: [{source: {trustDomains: [a*b]}}]}]}", "wildcard is only allowed at the start or end"),
            ("{rules: [{to: [{operation: {ports: ['99999']}}]}]}", "bad port (99999)"),
            ("{rules: [{to: [{operation: {paths: ['/a/{**}/{*}']}}]}]}", "{**} is not the last operator"),
            ("{rules: [{to: [{operation: {paths: ['/a/{x}']}}]}]}", "beyond a supported path template"),
            ("{rules: [{to: [{operation: {paths: ['/a/{*}/b', '/x*']}}]}]}", ""),
            (
                "{rules: [{when: [{key: request.headers, values: [a]}]}]}",
                "bad key (request.headers): should have format a[b]",
            ),
            ("{rules: [{when: [{key: 'request.headers[a]', values: [a]}]}]}", ""),
            (
                "{rules: [{when: [{key: nope, values: [a]}]}]}",
                "invalid `value` for `key` nope: unknown attribute: nope",
            ),
            (
                "{rules: [{when: [{key: source.ip}]}]}",
                "at least one of `values` or `notValues` must be set for key source.ip",
            ),
            (
                "{action: DENY, rules: [{to: [{operation: {methods: [GET]}}]}]}",
                "warning: rules[0]: configured AuthorizationPolicy will deny all traffic to TCP ports",
            ),
            ("{action: DENY, rules: [{to: [{operation: {methods: [GET], ports: ['80']}}]}]}", ""),
            (
                "{selector: {matchLabels: {a: b}}, targetRefs: [{kind: Service, name: s}]}",
                "only one of targetRefs or workloadSelector can be set",
            ),
            ("{targetRefs: [{kind: Pod, name: s}]}", "targetRef must be to one of"),
            ("{targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: s}]}", ""),
        ],
    );
}

#[test]
fn authentication() {
    check(
        Kind::RequestAuthentication,
        &[
            ("{jwtRules: [{issuer: a, jwksUri: 'https://a/keys'}]}", ""),
            ("{jwtRules: [{}]}", "error: jwtRules[0]: issuer or jwksUri must be non-empty string"),
            ("{jwtRules: [{jwksUri: 'ftp://a'}]}", "URI scheme \"ftp\" is not supported"),
            ("{jwtRules: [{issuer: a, jwks: '{'}]}", "jwks parse error"),
            (
                "{jwtRules: [{issuer: a, jwks: '{\"keys\":[{\"kty\":\"EC\",\"crv\":\"P-256\",\
                 \"x\":\"_K1RmSiNO7OHQVpTf35PCjgSAHfARnwMqnX6jKcjZdU\",\
                 \"y\":\"LDJav2Wopi6TaV34Kkg-XjKC-zjpJ6d-JbrQz-RpZFU\"}]}'}]}",
                "",
            ),
            (
                "{jwtRules: [{issuer: a, jwks: '{\"keys\":[{\"kty\":\"RSA\",\"e\":\"AQAB\",\"n\":\"x\"}]}'}]}",
                "warning: jwtRules[0]: jwks: all tokens of this issuer are rejected",
            ),
            (
                "{jwtRules: [{issuer: a, jwks: '{\"keys\":[{\"kty\":\"oct\",\"k\":\"x\"}]}'}]}",
                "warning: jwtRules[0]: jwks key at index 0 contains private key material",
            ),
            ("{jwtRules: [{issuer: a, audiences: ['']}]}", "audience must be non-empty string"),
            (
                "{jwtRules: [{issuer: a, outputClaimToHeaders: [{header: 'a b', claim: c}]}]}",
                "header name a b is not a valid header name",
            ),
        ],
    );
    check(
        Kind::PeerAuthentication,
        &[
            ("{mtls: {mode: STRICT}}", ""),
            ("{portLevelMtls: {80: {mode: STRICT}}}", "mesh/namespace peer authentication cannot have port level mTLS"),
            ("{selector: {matchLabels: {a: b}}, portLevelMtls: {80: {mode: STRICT}}}", ""),
            (
                "{selector: {matchLabels: {a: b}}, portLevelMtls: {70000: {mode: STRICT}}}",
                "port must be in range 1..65535",
            ),
        ],
    );
}
