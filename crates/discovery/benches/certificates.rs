//! A thousand agents request their first certificate at once, over TLS, from a server with an EC root: time until the last
//! one has it, and CPU time of the server per certificate. Run with `cargo bench -p discovery --bench certificates`; with
//! `-- --token-review` a real API server makes the tokens and reviews each of them.
//!
//! `PILOTAGE_DISCOVERY` names another binary to measure.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs};

use serde_json::json;
use testkit::ca_client::CaClient;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::kubernetes::ApiServer;
use testkit::{client, ports, servers, wait};
use tokio::task::JoinSet;
use trust::csr;
use trust::issue::SubjectName;
use trust::key::{KeyKind, PrivateKey};
use trust::token;

const AGENTS: usize = 1000;
const ROUNDS: usize = 3;

/// Accounts that the agents share, as pods of a Deployment do.
const ACCOUNTS: usize = 100;

/// Who makes the tokens of the agents.
enum TokenSource {
    /// Keys in a file.
    Issuer(PrivateKey),
    /// An API server, which reviews them too.
    Kubernetes(ApiServer),
}

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().unwrap();
    let is_reviewed = env::args().any(|argument| argument == "--token-review");
    if is_reviewed && ["etcd", "kube-apiserver"].iter().any(|part| servers::without(part)) {
        return;
    }
    let tokens = match is_reviewed {
        true => TokenSource::Kubernetes(cluster().await),
        false => TokenSource::Issuer(PrivateKey::generate(KeyKind::P256).unwrap()),
    };
    let (mut server, secure) = start(folder.path(), &tokens).await;
    let root = folder.path().join("ca/root-cert.pem");
    let root = wait::until("the root", async || fs::read_to_string(&root).map_err(|error| error.to_string())).await;
    wait::until("the certificate of the server", async || {
        let page = client::get(server.monitoring(), "discovery", "/metrics").await?.body;
        let has = page.lines().any(|line| line.starts_with("pilotage_own_certificate_expiry_timestamp "));
        if has { Ok(()) } else { Err(page) }
    })
    .await;
    for _ in 0..ROUNDS {
        // Keys, requests and tokens are made before: on other machines agents do that. Each round has new tokens, which
        // the server has not seen.
        let mut agents = Vec::new();
        for number in 0..AGENTS {
            agents.push(agent(number, secure, &root, &tokens).await);
        }
        let cpu = server.process().cpu().unwrap();
        let begun = Instant::now();
        let mut calls = JoinSet::new();
        for (client, request) in agents {
            calls.spawn(async move { client.sign(&request, 0).await });
        }
        while let Some(reply) = calls.join_next().await {
            assert_eq!(reply.unwrap().unwrap().len(), 2, "a leaf and the root");
        }
        let (time, cpu) = (begun.elapsed(), server.process().cpu().unwrap() - cpu);
        let each = cpu / u32::try_from(AGENTS).unwrap_or(u32::MAX);
        println!(
            "{AGENTS} agents at once: {time:.2?}; CPU of the server {each:.2?} a certificate, with its TLS handshake"
        );
    }
    let (now, most) = (server.process().owned_kib().unwrap(), server.process().peak_memory_kib().unwrap());
    println!("memory of the server: {now} KiB owned, {most} KiB at most");
}

/// An API server with the accounts.
async fn cluster() -> ApiServer {
    let api = ApiServer::start().await;
    api.create("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).await.unwrap();
    for number in 0..ACCOUNTS {
        let account = json!({"metadata": {"name": format!("front-{number}")}});
        api.create("/api/v1/namespaces/shop/serviceaccounts", &account).await.unwrap();
    }
    api
}

async fn start(folder: &Path, tokens: &TokenSource) -> (DiscoveryProcess, SocketAddr) {
    let secure = SocketAddr::from(([127, 0, 0, 1], ports::free()));
    let mut options = DiscoveryOptions {
        env: vec![("ROOT_CA_DIR".to_owned(), "/nonexistent".to_owned())],
        args: vec![format!("--secureGRPCAddr={secure}"), format!("--caDir={}", folder.join("ca").display())],
        ..DiscoveryOptions::default()
    };
    match tokens {
        TokenSource::Issuer(issuer) => {
            let keys = folder.join("keys.json");
            fs::write(&keys, token::key_set(issuer, "bench").unwrap()).unwrap();
            let rule = json!({"issuer": "https://issuer.test", "audiences": ["istio-ca"],
                "jwks_uri": format!("file://{}", keys.display())});
            options.env.push(("JWT_RULE".to_owned(), rule.to_string()));
        }
        TokenSource::Kubernetes(api) => {
            let kubeconfig = format!("--kubeconfig={}", api.kubeconfig().display());
            options.args.extend(["--registries=Kubernetes".to_owned(), kubeconfig]);
        }
    }
    let binary = env::var("PILOTAGE_DISCOVERY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_pilot-discovery").to_owned());
    (DiscoveryProcess::start(&binary, options).await, secure)
}

/// A client with its own token, and its request.
async fn agent(number: usize, server: SocketAddr, root: &str, tokens: &TokenSource) -> (CaClient, String) {
    let account = format!("front-{}", number % ACCOUNTS);
    let token = match tokens {
        TokenSource::Issuer(issuer) => {
            let expires = std::time::SystemTime::now() + Duration::from_secs(3600);
            let expires = expires.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
            let claims = json!({"iss": "https://issuer.test", "aud": ["istio-ca"], "exp": expires,
                "jti": number.to_string(), "sub": format!("system:serviceaccount:shop:{account}")});
            token::sign(issuer, "bench", &claims).unwrap()
        }
        TokenSource::Kubernetes(api) => {
            let path = format!("/api/v1/namespaces/shop/serviceaccounts/{account}/token");
            let made = api.create(&path, &json!({"spec": {"audiences": ["istio-ca"]}})).await.unwrap();
            made["status"]["token"].as_str().unwrap().to_owned()
        }
    };
    let key = PrivateKey::generate(KeyKind::P256).unwrap();
    let name = SubjectName::of_text(&format!("spiffe://cluster.local/ns/shop/sa/{account}"));
    (CaClient::new(server, root, None, Some(&token)), csr::request(&key, &[name]).unwrap())
}
