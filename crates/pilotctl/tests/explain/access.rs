//! `pilotctl explain` follows a request into the proxy of its endpoint: which policy allows or denies it, in which line.

use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::tracked::{TrackedOptions, TrackedProxy};
use testkit::{programs, wait};

use super::{pilotctl, printed};

const CONFIG: &str = r#"apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.example.com]
  addresses: [10.96.0.7]
  location: MESH_INTERNAL
  ports: [{number: 8000, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.1.0.1, labels: {app: cart, security.istio.io/tlsMode: istio}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: stock, namespace: shop}
spec:
  hosts: [stock.example.com]
  addresses: [10.96.0.8]
  location: MESH_INTERNAL
  ports: [{number: 8000, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.1.0.2, labels: {app: stock}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: readers, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  action: ALLOW
  rules:
  - to: [{operation: {paths: [/health]}}]
  - from: [{source: {principals: [cluster.local/ns/shop/sa/front]}}]
    to: [{operation: {methods: [GET]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  action: DENY
  rules:
  - to: [{operation: {paths: [/admin*]}}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  jwtRules:
  - issuer: https://issuer.example
    jwks: '{"keys":[{"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}]}'
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec:
  mtls: {mode: STRICT}
"#;

async fn shop() -> (DiscoveryProcess, Vec<TrackedProxy>) {
    let files = vec![("shop.yaml".to_owned(), CONFIG.to_owned())];
    let binary = programs::binary("discovery", "pilot-discovery");
    let options = DiscoveryOptions { files, ..DiscoveryOptions::default() };
    let server = DiscoveryProcess::start(&binary.to_string_lossy(), options).await;
    let connect = |number: u8, name: &str| {
        TrackedProxy::connect(
            server.grpc(),
            TrackedOptions {
                node: format!("sidecar~10.1.0.{number}~{name}.shop~shop.svc.cluster.local"),
                labels: vec![("app".to_owned(), name.trim_end_matches("-1").to_owned())],
                account: name.trim_end_matches("-1").to_owned(),
                ..TrackedOptions::default()
            },
        )
    };
    let proxies = vec![connect(1, "cart-1"), connect(2, "stock-1"), connect(3, "front-1"), connect(4, "batch-1")];
    wait::until("four synced proxies", async || {
        let listed = printed(&pilotctl(&server, &["ps", "-o", "json"]));
        if listed.matches("\"synced\"").count() == 4 { Ok(()) } else { Err(listed) }
    })
    .await;
    (server, proxies)
}

/// The line of a text in the configuration, counted from 1.
fn line(text: &str) -> usize {
    CONFIG.lines().position(|line| line.contains(text)).map_or(0, |at| at + 1)
}

#[tokio::test]
async fn the_policy_that_allows_or_denies_is_named_with_its_line() {
    let (server, _proxies) = shop().await;
    let readers = "spec.rules[1] from /apis/security.istio.io/v1/namespaces/shop/authorization-policy/readers";
    let no_admin = "spec.rules[0] from /apis/security.istio.io/v1/namespaces/shop/authorization-policy/no-admin";
    let cart = "http://cart.example.com:8000";
    let of_readers = format!("rule in line {})", line("- from: [{source: {principals"));
    let of_admin = format!("rule in line {})", line("paths: [/admin*]"));
    let token = |claims: &str| {
        let mut text = "Authorization: Bearer e30.".to_owned();
        base64_url(claims.as_bytes(), &mut text);
        text + ".x"
    };
    let (good, foreign) =
        (token(r#"{"iss":"https://issuer.example","sub":"ann"}"#), token(r#"{"iss":"https://other"}"#));
    let as_front = "at cart-1.shop (10.1.0.1:8000) with mutual TLS as spiffe://cluster.local/ns/shop/sa/front";
    let cases: [(&str, &[&str], i32, &[&str]); 7] = [
        ("front-1.shop", &["GET", "/items"], 0, &[as_front, "ALLOW matches", readers, &of_readers, "    allowed"]),
        ("front-1.shop", &["GET", "/admin/x"], 1, &["DENY matches", no_admin, &of_admin, "denied: 403"]),
        (
            "front-1.shop",
            &["POST", "/items"],
            1,
            &["no rule of the AuthorizationPolicies with ALLOW", readers, "denied: 403"],
        ),
        ("batch-1.shop", &["GET", "/items"], 1, &["sa/batch", "no rule of", "denied: 403"]),
        ("batch-1.shop", &["GET", "/health"], 0, &["ALLOW matches", "spec.rules[0] from", "    allowed"]),
        (
            "front-1.shop",
            &["GET", "/items", "-H", &good],
            0,
            &["accepts the token of https://issuer.example", "/tokens ("],
        ),
        ("front-1.shop", &["GET", "/items", "-H", &foreign], 1, &["rejects the token: issuer", "denied: 401"]),
    ];
    for (from, request, code, expected) in cases {
        let url = format!("{cart}{}", request[1]);
        let mut arguments = vec!["explain", "--from", from, request[0], &url];
        arguments.extend(&request[2..]);
        let output = pilotctl(&server, &arguments);
        let text = printed(&output);
        assert_eq!(output.status.code(), Some(code), "{from} {request:?}: {text}");
        for part in expected {
            assert!(text.contains(part), "{from} {request:?}: no {part:?} in\n{text}");
        }
    }
    let plain = pilotctl(&server, &["explain", "--from", "front-1.shop", "http://stock.example.com:8000/"]);
    let text = printed(&plain);
    let peer = "peer-authentication/strict (";
    let file = format!("shop.yaml:{})", line("kind: PeerAuthentication") - 1);
    for part in ["at stock-1.shop (10.1.0.2:8000) without a certificate", peer, &file, "accepts mutual TLS only"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert_eq!(plain.status.code(), Some(1), "{text}");
}

#[tokio::test]
async fn hosts_that_do_not_exist_are_reported_with_a_hint() {
    let (server, _proxies) = shop().await;
    for (url, expected) in [
        (
            "http://crat.example.com:8000/",
            "no service and no route has the host \"crat.example.com\"; did you mean \"cart.example.com\"?",
        ),
        ("http://warehouse/", "no service and no route has the host \"warehouse\""),
    ] {
        let output = pilotctl(&server, &["explain", "--from", "front-1.shop", url]);
        let text = printed(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(expected), "no {expected:?} in\n{text}");
    }
    let known = pilotctl(&server, &["explain", "--from", "front-1.shop", "http://www.debian.org/"]);
    assert!(!printed(&known).contains("no service and no route"), "{}", printed(&known));
}

/// Base64 with the alphabet of URLs, without padding.
fn base64_url(bytes: &[u8], text: &mut String) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..=chunk.len() {
            text.push(char::from(ALPHABET[(bits >> (18 - 6 * at)) as usize & 63]));
        }
    }
}
