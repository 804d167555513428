//! A server with a CA in a folder, and tokens of an issuer whose keys are in a file.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::ca_client::{CaClient, Refusal};
use testkit::certificates::Certificate;
use testkit::client;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::{ports, wait};
use trust::key::{KeyFormat, KeyKind, PrivateKey};
use trust::token;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_pilot-discovery");
pub(crate) const FRONT: &str = "spiffe://cluster.local/ns/shop/sa/front";

/// A running server.
pub(crate) struct Mesh {
    pub(crate) server: DiscoveryProcess,
    pub(crate) secure: SocketAddr,
    pub(crate) folder: TempDir,
    issuer: PrivateKey,
}

impl Mesh {
    /// Starts with a self-signed root.
    pub(crate) async fn start(env: &[(&str, &str)]) -> Mesh {
        let mesh = Mesh::start_in(tempfile::tempdir().unwrap(), env).await;
        mesh.certified().await;
        mesh
    }

    /// Waits until the server has its certificate.
    pub(crate) async fn certified(&self) {
        wait::until("the certificate of the server", async || {
            let end = self.metric("pilotage_own_certificate_expiry_timestamp").await;
            if end > 0.0 { Ok(()) } else { Err(self.page("/debug/trustz").await) }
        })
        .await;
    }

    /// Starts with files that are in the folder: `ca` is `--caDir`, `cacerts` is `ROOT_CA_DIR`.
    pub(crate) async fn start_in(folder: TempDir, env: &[(&str, &str)]) -> Mesh {
        Mesh::start_with(folder, env, Vec::new()).await
    }

    /// The same with configuration files, given by name and text.
    pub(crate) async fn start_with(folder: TempDir, env: &[(&str, &str)], files: Vec<(String, String)>) -> Mesh {
        Mesh::start_with_args(folder, env, files, Vec::new()).await
    }

    /// The same with further arguments.
    pub(crate) async fn start_with_args(
        folder: TempDir,
        env: &[(&str, &str)],
        files: Vec<(String, String)>,
        args: Vec<String>,
    ) -> Mesh {
        let mut mesh = Mesh::start_unready(folder, env, files, args).await;
        mesh.server.ready().await;
        mesh
    }

    /// The same, and returns when the server responds, ready or not.
    pub(crate) async fn start_unready(
        folder: TempDir,
        env: &[(&str, &str)],
        files: Vec<(String, String)>,
        args: Vec<String>,
    ) -> Mesh {
        Mesh::start_adjusted(folder, env, |options, _| {
            options.files = files;
            options.args.extend(args);
        })
        .await
    }

    /// Starts with a self-signed root and with all ports open on all addresses of this machine.
    pub(crate) async fn start_open() -> Mesh {
        let mut mesh = Mesh::start_adjusted(tempfile::tempdir().unwrap(), &[], |options, secure| {
            options.open = true;
            options.args.push(format!("--secureGRPCAddr=0.0.0.0:{}", secure.port()));
        })
        .await;
        mesh.server.ready().await;
        mesh.certified().await;
        mesh
    }

    /// Starts after its options were changed, given the address of the TLS port. Returns when the server responds.
    async fn start_adjusted(
        folder: TempDir,
        env: &[(&str, &str)],
        adjust: impl FnOnce(&mut DiscoveryOptions, SocketAddr),
    ) -> Mesh {
        let issuer = PrivateKey::generate(KeyKind::P256).unwrap();
        fs::write(folder.path().join("keys.json"), token::key_set(&issuer, "test").unwrap()).unwrap();
        let (secure, mut options) = options(folder.path(), env);
        adjust(&mut options, secure);
        let server = DiscoveryProcess::start_unready(BINARY, options).await;
        Mesh { server, secure, folder, issuer }
    }

    /// Starts a second server with the same CA and the same issuer of tokens.
    pub(crate) async fn second(&self, env: &[(&str, &str)]) -> (DiscoveryProcess, SocketAddr) {
        let (secure, options) = options(self.folder.path(), env);
        (DiscoveryProcess::start(BINARY, options).await, secure)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The roots of the self-signed CA, once they are written.
    pub(crate) async fn roots(&self) -> String {
        let path = self.path("ca/root-cert.pem");
        wait::until("the root certificate", async || fs::read_to_string(&path).map_err(|error| error.to_string())).await
    }

    /// A good token of a service account.
    pub(crate) fn token(&self, account: &str) -> String {
        self.token_with(account, json!({}))
    }

    /// A token with some claims replaced.
    pub(crate) fn token_with(&self, account: &str, replaced: Value) -> String {
        let mut claims = json!({"iss": "https://issuer.test", "aud": ["istio-ca"],
            "sub": format!("system:serviceaccount:shop:{account}"), "exp": now() + 3600});
        for (name, value) in replaced.as_object().unwrap() {
            claims[name] = value.clone();
        }
        self.signed(&claims)
    }

    /// A token with any payload, signed by the issuer.
    pub(crate) fn signed(&self, payload: &Value) -> String {
        token::sign(&self.issuer, "test", payload).unwrap()
    }

    /// The key that signs tokens, in PEM.
    pub(crate) fn issuer_key(&self) -> String {
        self.issuer.to_pem(KeyFormat::Pkcs8).unwrap().to_string()
    }

    /// A client with the token of service account `front`.
    pub(crate) async fn client(&self) -> CaClient {
        CaClient::new(self.secure, &self.roots().await, None, Some(&self.token("front")))
    }

    /// Fails if an honest caller gets no certificate.
    pub(crate) async fn serves_an_honest_caller(&self) -> Certificate {
        let client = self.client().await;
        wait::until("a certificate", async || {
            client.certificate(FRONT, 0).await.map_err(|refusal| format!("{refusal:?}"))
        })
        .await
        .0
    }

    pub(crate) async fn page(&self, path: &str) -> String {
        client::get(self.server.monitoring(), "discovery", path).await.unwrap().body
    }

    /// The value of a metric; 0 if it is missing.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let page = self.page("/metrics").await;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }
}

/// A free address of the TLS port, and the options of a server whose files are in the folder.
fn options(folder: &Path, env: &[(&str, &str)]) -> (SocketAddr, DiscoveryOptions) {
    let rule = json!({"issuer": "https://issuer.test", "audiences": ["istio-ca"],
        "jwks_uri": format!("file://{}", folder.join("keys.json").display())});
    let mut all = vec![
        ("JWT_RULE".to_owned(), rule.to_string()),
        ("ROOT_CA_DIR".to_owned(), folder.join("cacerts").display().to_string()),
    ];
    all.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let secure = SocketAddr::from(([127, 0, 0, 1], ports::free()));
    let args = vec![format!("--secureGRPCAddr={secure}"), format!("--caDir={}", folder.join("ca").display())];
    (secure, DiscoveryOptions { env: all, args, ..DiscoveryOptions::default() })
}

pub(crate) fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    since.as_secs() as i64
}

/// Asserts on the gRPC code of a refusal.
pub(crate) fn assert_refused<T: std::fmt::Debug>(what: &str, result: Result<T, Refusal>, code: tonic::Code) {
    match result {
        Err((found, message)) if found == code as i32 => {
            assert!(message.len() < 300, "{what}: {message}");
        }
        other => panic!("{what}: {other:?} instead of {code:?}"),
    }
}
