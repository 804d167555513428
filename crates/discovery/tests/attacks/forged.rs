//! Forged NACKs: a client that uses another client's name, or that rejects a policy that restricts it.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use api::envoy::service::discovery::v3::DiscoveryResponse;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hyper_util::rt::TokioIo;
use net::tls;
use rustls::pki_types::ServerName;
use serde_json::json;
use testkit::certificates::{Authority, Certificate};
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::{client, ports, wait};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use xds::client::SotwClient;

use crate::honest::{CART, Honest, channel};

const BINARY: &str = env!("CARGO_BIN_EXE_pilot-discovery");
/// The proxy of [`CART`]'s only endpoint.
const NODE: &str = "sidecar~10.0.0.9~cart-1.shop~shop.svc.cluster.local";

fn node() -> Node {
    Node { id: NODE.to_owned(), ..Node::default() }
}

/// A policy for all workloads of the shop, recognized by its path.
fn policy(action: &str, path: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: door, namespace: shop}}\nspec:\n  \
         action: {action}\n  rules: [{{to: [{{operation: {{paths: [{path}]}}}}]}}]\n"
    )
}

/// A kind of security policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuardKind {
    Authorization,
    PeerAuthentication,
    RequestAuthentication,
}

/// A version of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyVersion {
    Former,
    Newest,
    Repaired,
}

impl GuardKind {
    const ALL: [GuardKind; 3] =
        [GuardKind::Authorization, GuardKind::PeerAuthentication, GuardKind::RequestAuthentication];

    /// The policy for all workloads of the shop.
    fn policy(self, version: PolicyVersion) -> String {
        let (action, word, mode) = version.marks();
        let (kind, spec) = match self {
            GuardKind::Authorization => return policy(action, word),
            GuardKind::PeerAuthentication => ("PeerAuthentication", format!("{{mtls: {{mode: {mode}}}}}")),
            GuardKind::RequestAuthentication => (
                "RequestAuthentication",
                format!("{{jwtRules: [{{issuer: 'https://issuer.example{word}', jwks: '{}'}}]}}", keys()),
            ),
        };
        format!(
            "apiVersion: security.istio.io/v1\nkind: {kind}\nmetadata: {{name: door, namespace: shop}}\nspec: {spec}\n"
        )
    }

    /// Whether an inbound listener enforces this version.
    fn is_in(self, listener: &str, version: PolicyVersion) -> bool {
        match (self, version) {
            (GuardKind::PeerAuthentication, PolicyVersion::Former) => {
                listener.contains("raw_buffer") && listener.contains("ROOTCA")
            }
            (GuardKind::PeerAuthentication, PolicyVersion::Newest) => {
                !listener.contains("raw_buffer") && listener.contains("ROOTCA")
            }
            (GuardKind::PeerAuthentication, PolicyVersion::Repaired) => !listener.contains("ROOTCA"),
            _ => listener.contains(version.marks().1),
        }
    }
}

impl PolicyVersion {
    /// Action, recognizable word, and mode of mutual TLS.
    fn marks(self) -> (&'static str, &'static str, &'static str) {
        match self {
            PolicyVersion::Former => ("ALLOW", "/former", "PERMISSIVE"),
            PolicyVersion::Newest => ("DENY", "/newest", "STRICT"),
            PolicyVersion::Repaired => ("DENY", "/repaired", "DISABLE"),
        }
    }
}

/// A key set with a new key.
fn keys() -> String {
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    // An uncompressed point: one byte for the form, then two coordinates.
    let (x, y) = key.public_key().as_ref()[1..].split_at(32);
    let [x, y] = [x, y].map(|coordinate| BASE64_URL_SAFE_NO_PAD.encode(coordinate));
    json!({"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": "first", "x": x, "y": y}]}).to_string()
}

/// A filter on every inbound listener of the shop, recognized by its script.
fn filter(script: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{name: script, namespace: shop}}\nspec:\n  \
         configPatches:\n  - applyTo: HTTP_FILTER\n    match: {{context: SIDECAR_INBOUND, listener: {{filterChain: \
         {{filter: {{name: envoy.filters.network.http_connection_manager}}}}}}}}\n    patch:\n      \
         operation: INSERT_BEFORE\n      value: {{name: lua, typed_config: {{'@type': \
         type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {{inline_string: '{script}'}}}}}}\n"
    )
}

async fn start(files: &[(&str, &str)], args: Vec<String>) -> DiscoveryProcess {
    let files = files.iter().map(|(name, text)| (name.to_string(), text.to_string()));
    let files = files.chain([("cart.yaml".to_owned(), CART.to_owned())]).collect();
    DiscoveryProcess::start(BINARY, DiscoveryOptions { files, args, ..DiscoveryOptions::default() }).await
}

async fn listeners(channel: Channel) -> SotwClient {
    SotwClient::open(channel, node(), &TypeUrl::LISTENER, &[]).await.expect("a stream")
}

async fn next(stream: &mut SotwClient) -> DiscoveryResponse {
    let next = tokio::time::timeout(wait::PATIENCE, stream.next());
    next.await.expect("a response in time").expect("a response").expect("a response")
}

/// The inbound listener as text.
fn inbound(response: &DiscoveryResponse) -> Option<String> {
    let found = response.resources.iter().map(|any| String::from_utf8_lossy(&any.value).into_owned());
    found.into_iter().find(|listener| listener.contains("virtualInbound"))
}

/// Rejects every response until none follows; returns the last one.
async fn refuse_all(stream: &mut SotwClient, first: DiscoveryResponse, reason: &str) -> Vec<DiscoveryResponse> {
    let mut all = vec![first];
    while all.last().is_some_and(|last| inbound(last).is_some()) {
        assert!(all.len() < 12, "the server does not give in");
        stream.nack(&all[all.len() - 1], reason);
        all.push(next(stream).await);
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_02_a_forged_nack_does_not_restore_an_old_policy() {
    for guard in GuardKind::ALL {
        check_forged_nack(guard).await;
    }
}

async fn check_forged_nack(guard: GuardKind) {
    let is_in =
        |response: &DiscoveryResponse, version| inbound(response).is_some_and(|text| guard.is_in(&text, version));
    let server = start(&[("policy.yaml", &guard.policy(PolicyVersion::Former))], vec![]).await;
    let honest = Honest::start(&server).await;
    let mut victim = listeners(channel(&server).await).await;
    let mut forger = listeners(channel(&server).await).await;
    for stream in [&mut victim, &mut forger] {
        let first = next(stream).await;
        assert!(is_in(&first, PolicyVersion::Former), "{guard:?}: {:?}", inbound(&first));
        stream.ack(&first);
    }
    server.write("policy.yaml", &guard.policy(PolicyVersion::Newest));
    let changed = next(&mut forger).await;
    let after =
        refuse_all(&mut forger, changed, "Error adding/updating listener(s) virtualInbound: '/newest' is bad").await;
    for response in &after[1..] {
        assert!(
            !is_in(response, PolicyVersion::Former),
            "{guard:?}: the forger itself gets no older policy: its listener is closed"
        );
    }
    let is_newest = |response: &DiscoveryResponse| {
        is_in(response, PolicyVersion::Newest) && !is_in(response, PolicyVersion::Former)
    };
    let changed = next(&mut victim).await;
    assert!(is_newest(&changed), "{guard:?}");
    victim.ack(&changed);
    drop(victim);
    // The real proxy reconnects while the forger is still connected.
    let back = next(&mut listeners(channel(&server).await).await).await;
    assert!(is_newest(&back), "{guard:?}");
    let page = client::get(server.monitoring(), "pilot", "/debug/quarantinez").await.expect("a page").json();
    assert_eq!(page["objects"], json!([]), "{guard:?}: no policy is ever pinned");
    drop(forger);
    wait::until("nothing left of the forger", async || {
        let page = client::get(server.monitoring(), "pilot", "/debug/quarantinez").await?.json();
        if page["resources"] == json!([]) { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
    honest.assert_served(&format!("forged NACKs of {guard:?}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_02_a_listener_without_its_newest_policy_is_closed() {
    // The message names no object, and no other object changed.
    for reason in ["no reason", "Error adding/updating listener(s) virtualInbound: no reason", "'/newest'"] {
        check_closed(GuardKind::Authorization, reason).await;
    }
    for guard in [GuardKind::PeerAuthentication, GuardKind::RequestAuthentication] {
        check_closed(guard, "Error adding/updating listener(s) virtualInbound: no reason").await;
    }
}

async fn check_closed(guard: GuardKind, reason: &str) {
    let server = start(&[("policy.yaml", &guard.policy(PolicyVersion::Former))], vec![]).await;
    let mut stream = listeners(channel(&server).await).await;
    let first = next(&mut stream).await;
    assert!(inbound(&first).is_some_and(|listener| guard.is_in(&listener, PolicyVersion::Former)), "{guard:?}");
    stream.ack(&first);
    server.write("policy.yaml", &guard.policy(PolicyVersion::Newest));
    let changed = next(&mut stream).await;
    let after = refuse_all(&mut stream, changed, reason).await;
    let last = after.last().expect("a response");
    assert!(inbound(last).is_none(), "{guard:?}, {reason}: closed");
    assert!(!last.resources.is_empty(), "{guard:?}, {reason}: what leaves the proxy is served all the while");
    stream.ack(last);
    server.write("policy.yaml", &guard.policy(PolicyVersion::Repaired));
    let repaired = inbound(&next(&mut stream).await);
    assert!(
        repaired.is_some_and(|listener| guard.is_in(&listener, PolicyVersion::Repaired)),
        "{guard:?}, {reason}: open again"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_02_with_unchanged_policies_the_previous_listener_stays() {
    let server = start(&[("policy.yaml", &policy("DENY", "/former"))], vec![]).await;
    let mut stream = listeners(channel(&server).await).await;
    let first = next(&mut stream).await;
    stream.ack(&first);
    let before = inbound(&first).expect("a listener");
    // Another port of the workload: no object to blame, and the same policies.
    server.write("cart.yaml", &CART.replace("ports: [", "ports: [{name: tcp, number: 81, protocol: TCP}, "));
    let changed = loop {
        let changed = next(&mut stream).await;
        if inbound(&changed).is_some_and(|listener| listener != before) {
            break changed;
        }
        stream.ack(&changed);
    };
    stream.nack(&changed, "Error adding/updating listener(s) virtualInbound: no reason");
    let after = next(&mut stream).await;
    assert_eq!(inbound(&after).as_deref(), Some(&*before), "the proxy goes on serving");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_02_a_new_policy_takes_effect_despite_a_rejected_filter() {
    for reason in ["script load error: '-- broken'", "no reason"] {
        let rules = |policy: String, script: &str| [policy, filter(script)].join("---\n");
        let server = start(&[("rules.yaml", &rules(policy("ALLOW", "/former"), "-- sound"))], vec![]).await;
        let mut stream = listeners(channel(&server).await).await;
        let first = next(&mut stream).await;
        assert!(inbound(&first).is_some_and(|listener| listener.contains("-- sound")), "the filter is there");
        stream.ack(&first);
        // Both change at the same time.
        server.write("rules.yaml", &rules(policy("DENY", "/newest"), "-- broken"));
        let pushed = next(&mut stream).await;
        assert!(inbound(&pushed).is_some_and(|listener| listener.contains("-- broken")), "{reason}");
        stream.nack(&pushed, reason);
        let after = inbound(&next(&mut stream).await).expect("a listener");
        assert!(after.contains("/newest") && !after.contains("/former"), "{reason}: the new policy holds");
        assert!(after.contains("-- sound") && !after.contains("-- broken"), "{reason}: the filter is pinned");
    }
}

/// A connection to the TLS port with this certificate, or none.
async fn secure(address: std::net::SocketAddr, authority: &Authority, own: Option<&Certificate>) -> Channel {
    let roots = tls::roots(tls::certificates(authority.root().as_bytes()).unwrap()).unwrap();
    let builder = tls::client().unwrap().with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let chain = tls::certificates(own.chain.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, tls::private_key(own.key.as_bytes()).unwrap()).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let dial = tower::service_fn(move |_: http::Uri| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from("istiod.test").unwrap();
            io::Result::Ok(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    Endpoint::from_static("http://istiod.test").connect_with_connector(dial).await.expect("a connection")
}

/// A route, recognized by a header.
fn route(header: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: cart, namespace: shop}}\nspec:\n  \
         hosts: [cart.shop.svc.cluster.local]\n  http: [{{route: [{{destination: {{host: cart.shop.svc.cluster.local}}}}], \
         headers: {{request: {{set: {{{header}: 'yes'}}}}}}}}]\n"
    )
}

async fn routes(channel: Channel) -> Result<(SotwClient, DiscoveryResponse, bool), tonic::Status> {
    let mut stream = SotwClient::open(channel, node(), &TypeUrl::ROUTE, &["80"]).await?;
    let first = stream.next().await?.expect("a response");
    let has = has(&first);
    Ok((stream, first, has))
}

fn has(response: &DiscoveryResponse) -> bool {
    response.resources.iter().any(|any| any.value.windows(8).any(|text| text == b"x-marked"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_02_nacks_outlive_a_stream_only_with_a_certificate() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let own = authority.host("istiod.test");
    let flag = |flag: &str, text: &str| {
        let file = folder.path().join(flag);
        fs::write(&file, text).unwrap();
        format!("--{flag}={}", file.display())
    };
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], ports::free()));
    let args = vec![
        flag("tlsCertFile", &own.chain),
        flag("tlsKeyFile", &own.key),
        flag("caCertFile", &authority.root()),
        format!("--secureGRPCAddr={address}"),
    ];
    let server = start(&[("route.yaml", &route("x-marked"))], args).await;
    let shop = authority.workload("spiffe://cluster.local/ns/shop/sa/cart");
    let cashier = authority.workload("spiffe://cluster.local/ns/shop/sa/cashier");
    let stranger = authority.workload("spiffe://cluster.local/ns/bank/sa/cart");

    let refused = routes(secure(address, &authority, Some(&stranger)).await).await.map(|_| ());
    assert_eq!(refused.expect_err("a certificate of another namespace").code(), Code::PermissionDenied);

    let refused = routes(secure(address, &authority, None).await).await.map(|_| ());
    assert_eq!(refused.expect_err("no certificate on the TLS port").code(), Code::Unauthenticated);

    // Without a certificate a NACK affects this stream only.
    let (mut stream, first, marked) = routes(channel(&server).await).await.unwrap();
    assert!(marked);
    stream.nack(&first, "header 'x-marked' is not to my taste");
    assert!(!has(&next(&mut stream).await), "its own view");
    assert!(routes(channel(&server).await).await.unwrap().2, "a second stream of that name");
    assert!(routes(secure(address, &authority, Some(&shop)).await).await.unwrap().2, "the real one");
    drop(stream);
    assert!(routes(channel(&server).await).await.unwrap().2, "it starts fresh");

    let (mut stream, first, _) = routes(secure(address, &authority, Some(&shop)).await).await.unwrap();
    stream.nack(&first, "header 'x-marked' is not to my taste");
    assert!(!has(&next(&mut stream).await));
    drop(stream);
    assert!(!routes(secure(address, &authority, Some(&shop)).await).await.unwrap().2, "it is known again");
    assert!(routes(secure(address, &authority, Some(&cashier)).await).await.unwrap().2, "another service account");
    assert!(routes(channel(&server).await).await.unwrap().2, "words alone");
}

/// Number of objects that may have caused a NACK.
const SUSPECTS: usize = 400;
const REFUSALS: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_02_nacks_do_not_keep_the_server_busy() {
    let filters: Vec<String> = (0..SUSPECTS)
        .map(|n| filter(&format!("-- {n}")).replace("name: script", &format!("name: script-{n}")))
        .collect();
    let mut server = start(&[("filters.yaml", &filters.join("---\n"))], vec![]).await;
    let quotations: String = (0..20_000).map(|n| format!("'-- {n}' ")).collect();
    let first = next(&mut listeners(channel(&server).await).await).await;
    assert!(inbound(&first).is_some_and(|listener| listener.contains("-- 399")));
    let cpu = server.process().cpu().expect("a running process");
    let (honest, begun) = (Honest::start(&server).await, Instant::now());
    for _ in 0..REFUSALS {
        let mut stream = listeners(channel(&server).await).await;
        let response = next(&mut stream).await;
        stream.nack(&response, &quotations);
        next(&mut stream).await;
    }
    let spent = server.process().cpu().expect("a running process") - cpu;
    eprintln!("{REFUSALS} refusals in {:?}: {spent:?} of CPU", begun.elapsed());
    assert!(spent.as_secs() < 25, "{spent:?}");
    honest.assert_served("NACKs of many objects").await;
}
