//! Requests with valid, missing, expired and forged tokens, and their claims.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testkit::envoy::XdsTransport;

use super::jwt::{Issuer, seconds, token_of_weak_key, token_without_signature, with_claims};
use super::{Guarded, Row, policy};

testkit::over_both!(
    tokens_allow_only_what_their_claims_permit,
    cve_2026_31837_keys_not_fetched_verify_nothing,
    keys_that_envoy_would_reject_verify_nothing,
);

const FIRST: &str = "https://first.example";
const SECOND: &str = "https://second.example";

const ALLOWED: &str = "
  - to: [{operation: {paths: [/open, /locked]}}]
  - from: [{source: {requestPrincipals: ['*']}}]
    to: [{operation: {paths: [/any]}}]
  - from: [{source: {requestPrincipals: ['https://first.example/alice']}}]
    to: [{operation: {paths: [/alice]}}]
  - from: [{source: {requestPrincipals: ['https://second.example/*']}}]
    to: [{operation: {paths: [/second]}}]
  - from: [{source: {notRequestPrincipals: ['*']}}]
    to: [{operation: {paths: [/anonymous]}}]
  - when: [{key: 'request.auth.claims[groups]', values: [staff]}]
    to: [{operation: {paths: [/staff]}}]
  - when: [{key: 'request.auth.claims[groups]', notValues: [banned]}]
    to: [{operation: {paths: [/not-banned]}}]
  - when: [{key: 'request.auth.claims[scope]', values: [write]}]
    to: [{operation: {paths: [/write]}}]
  - when: [{key: 'request.auth.claims[realm][role]', values: [admin*]}]
    to: [{operation: {paths: [/nested]}}]
  - when: [{key: request.auth.audiences, values: [cart]}]
    to: [{operation: {paths: [/audience]}}]
  - when: [{key: request.auth.presenter, values: [app]}]
    to: [{operation: {paths: [/presenter]}}]
  - when:
    - {key: 'request.auth.claims[groups]', values: [staff]}
    - {key: 'request.headers[x-user]', values: ['*']}
    to: [{operation: {paths: [/both]}}]";

const DENIED: &str = "
  - from: [{source: {notRequestPrincipals: ['*']}}]
    to: [{operation: {paths: [/locked]}}]
  - when: [{key: 'request.auth.claims[groups]', values: [banned]}]";

/// Expected status, request, and the name of its header (see `headers`).
const TABLE: &[(u16, &str, &str)] = &[
    // No token.
    (200, "GET /open", ""),
    (200, "GET /anonymous", ""),
    (200, "GET /not-banned", ""),
    (403, "GET /any", ""),
    (403, "GET /locked", ""),
    (403, "GET /staff", ""),
    (403, "GET /audience", ""),
    (403, "GET /any", "basic"),
    (200, "GET /open", "basic"),
    // A good token.
    (200, "GET /open", "alice"),
    (200, "GET /locked", "alice"),
    (200, "GET /any", "alice"),
    (200, "GET /any?x=1", "alice"),
    (200, "GET /alice", "alice"),
    (403, "GET /ALICE", "alice"),
    (403, "GET /anonymous", "alice"),
    (403, "GET /second", "alice"),
    (403, "GET /elsewhere", "alice"),
    // Claims.
    (200, "GET /staff", "alice"),
    (200, "GET /write", "alice"),
    (200, "GET /nested", "alice"),
    (200, "GET /audience", "alice"),
    (200, "GET /presenter", "alice"),
    (200, "GET /not-banned", "alice"),
    (403, "GET /both", "alice"),
    (403, "GET /alice", "bob"),
    (200, "GET /any", "bob"),
    (403, "GET /staff", "bob"),
    (403, "GET /write", "bob"),
    (403, "GET /nested", "bob"),
    (403, "GET /presenter", "bob"),
    (200, "GET /audience", "bob"),
    (403, "GET /open", "banned"),
    (403, "GET /not-banned", "banned"),
    // Another issuer, with its own header and parameter.
    (200, "GET /second", "second"),
    (200, "GET /any", "second"),
    (403, "GET /alice", "second"),
    (403, "GET /audience", "second"),
    (401, "GET /second", "second as bearer"),
    // Invalid tokens: rejected even where none is needed.
    (401, "GET /open", "expired"),
    (401, "GET /open", "not yet"),
    (401, "GET /any", "expired"),
    (403, "GET /open", "wrong audience"),
    (403, "GET /open", "no audience"),
    (401, "GET /open", "unknown issuer"),
    (401, "GET /open", "no issuer"),
    (401, "GET /open", "other's signature"),
    (401, "GET /open", "unknown key"),
    (401, "GET /open", "changed claims"),
    (401, "GET /open", "no signature"),
    (401, "GET /open", "shared secret"),
    (401, "GET /open", "cut"),
    (401, "GET /open", "nonsense"),
    (401, "GET /alice", "changed claims"),
];

/// Header lines by name.
fn headers(first: &Issuer, second: &Issuer) -> BTreeMap<&'static str, String> {
    let claims = |sub: &str, more: Value| {
        let mut all = json!({"iss": FIRST, "sub": sub, "aud": "cart", "exp": seconds(3600)});
        for (key, value) in more.as_object().expect("claims are an object") {
            all[key] = value.clone();
        }
        all
    };
    let signed = |sub: &str, more: Value| first.token(&claims(sub, more));
    let alice = json!({"aud": ["web", "cart"], "groups": ["dev", "staff"], "scope": "read write",
        "azp": "app", "realm": {"role": "admin-eu"}});
    let good = signed("alice", alice.clone());
    let without = |claim: &str| {
        let mut all = claims("alice", json!({}));
        all.as_object_mut().expect("claims are an object").remove(claim);
        first.token(&all)
    };
    let by_second = second.token(&json!({"iss": SECOND, "sub": "alice", "exp": seconds(3600)}));
    let tokens = [
        ("bob", signed("bob", json!({"groups": ["staffing"], "scope": "read", "azp": "web", "realm": "admin"}))),
        ("banned", signed("carol", json!({"groups": ["staff", "banned"]}))),
        ("second as bearer", by_second.clone()),
        ("expired", signed("alice", json!({"exp": seconds(-3600)}))),
        ("not yet", signed("alice", json!({"nbf": seconds(3600)}))),
        ("wrong audience", signed("alice", json!({"aud": ["Cart", "web"]}))),
        ("no audience", without("aud")),
        ("unknown issuer", signed("alice", json!({"iss": "https://third.example"}))),
        ("no issuer", without("iss")),
        ("other's signature", second.token(&claims("alice", alice.clone()))),
        ("unknown key", first.token_of_key("second", &claims("alice", alice.clone()))),
        ("changed claims", with_claims(&good, &claims("alice", json!({"groups": ["root"]})))),
        ("no signature", token_without_signature(&claims("alice", alice.clone()))),
        ("shared secret", first.confused_token(&claims("alice", alice))),
        ("cut", good.rsplit_once('.').expect("three parts").0.to_owned()),
        ("nonsense", "nonsense".to_owned()),
        ("alice", good),
    ];
    let mut lines: BTreeMap<_, _> =
        tokens.into_iter().map(|(name, token)| (name, format!("authorization: Bearer {token}"))).collect();
    lines.insert("basic", "authorization: Basic YWxpY2U6c2VjcmV0".to_owned());
    lines.insert("second", format!("x-token: Token {by_second}"));
    lines
}

/// A RequestAuthentication document; `rules` are the lines of its list.
fn authentication(rules: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: tokens, namespace: shop}}\n\
         spec:\n  selector: {{matchLabels: {{app: cart}}}}\n  jwtRules:\n{rules}\n"
    )
}

async fn tokens_allow_only_what_their_claims_permit(transport: XdsTransport) {
    let (first, second) = (Issuer::new(), Issuer::new());
    let rules = format!(
        "  - {{issuer: '{FIRST}', audiences: [cart], jwks: '{}'}}\n  \
         - {{issuer: '{SECOND}', jwks: '{}', fromHeaders: [{{name: x-token, prefix: 'Token '}}], fromParams: [token]}}",
        first.key_set(),
        second.key_set()
    );
    let policies = [authentication(&rules), policy("allowed", "ALLOW", ALLOWED), policy("denied", "DENY", DENIED)];
    let guarded = Guarded::start(transport, &policies, "").await;
    let headers = headers(&first, &second);
    let carried: Vec<Vec<&str>> =
        TABLE.iter().map(|(_, _, name)| if name.is_empty() { vec![] } else { vec![headers[name].as_str()] }).collect();
    let rows: Vec<Row<'_>> =
        TABLE.iter().zip(&carried).map(|((wanted, line, _), lines)| (*wanted, *line, lines.as_slice())).collect();
    guarded.check(&rows).await;
    let token = |name: &str| headers[name].rsplit_once(' ').expect("a prefix").1;
    let (as_parameter, stale) =
        (format!("GET /second?token={}", token("second")), format!("GET /any?access_token={}", token("expired")));
    let with_user = [headers["alice"].as_str(), "x-user: alice"];
    let twice = [headers["alice"].as_str(), headers["second"].as_str()];
    let further: &[Row<'_>] = &[
        (200, &as_parameter, &[]),
        (401, &stale, &[]),
        (200, "GET /both", &with_user),
        (403, "GET /both", &["x-user: alice"]),
        (200, "GET /open", &twice),
    ];
    guarded.check(further).await;
    guarded.mesh.assert_settled().await;
}

/// Tokens of an issuer without keys must not be accepted.
async fn cve_2026_31837_keys_not_fetched_verify_nothing(transport: XdsTransport) {
    let (first, second) = (Issuer::new(), Issuer::new());
    let rules = format!("  - {{issuer: '{FIRST}', jwksUri: 'http://127.0.0.1:1/keys'}}");
    let policies = [authentication(&rules)];
    let guarded = Guarded::start(transport, &policies, "").await;
    let claims = json!({"iss": FIRST, "sub": "alice", "exp": seconds(3600)});
    let tokens = [
        first.token(&claims),
        second.token_of_key("", &claims),
        first.confused_token(&claims),
        token_without_signature(&claims),
        token_of_weak_key(&claims),
    ];
    let lines = tokens.map(|token| format!("authorization: Bearer {token}"));
    for line in &lines {
        guarded.check(&[(401, "GET /", &[line])]).await;
    }
    guarded.check(&[(200, "GET /", &[])]).await;
    guarded.mesh.assert_settled().await;
}

/// Envoy rejects a listener with such a key set; only tokens of its issuer may be affected.
async fn keys_that_envoy_would_reject_verify_nothing(transport: XdsTransport) {
    let (first, second) = (Issuer::new(), Issuer::new());
    let no_point = json!({"kty": "EC", "crv": "P-256", "kid": "first", "x": "AQ", "y": "AQ"});
    let useless = json!({"keys": [no_point, {"kty": "RSA", "n": "AQAB", "e": "AQAB"}]});
    let mut partly = serde_json::from_str::<serde_json::Value>(&second.key_set()).expect("a key set is JSON");
    partly["keys"].as_array_mut().expect("a list").push(no_point.clone());
    let rules = format!("  - {{issuer: '{FIRST}', jwks: '{useless}'}}\n  - {{issuer: '{SECOND}', jwks: '{partly}'}}");
    let guarded = Guarded::start(transport, &[authentication(&rules)], "").await;
    let claims = |issuer: &str| json!({"iss": issuer, "sub": "alice", "exp": seconds(3600)});
    let refused = format!("authorization: Bearer {}", first.token(&claims(FIRST)));
    let accepted = format!("authorization: Bearer {}", second.token(&claims(SECOND)));
    guarded.check(&[(401, "GET /", &[&refused]), (200, "GET /", &[&accepted]), (200, "GET /", &[])]).await;
    let problems = testkit::client::get(guarded.mesh.discovery.http(), "pilot", "/debug/problems").await;
    let problems = problems.expect("a page").body;
    assert!(problems.contains("all tokens of this issuer are rejected"), "{problems}");
    assert!(problems.contains("not a point on the curve P-256"), "{problems}");
    guarded.mesh.assert_settled().await;
}
