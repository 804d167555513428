//! Tokens of an OpenID provider: its keys are found by URL or by its discovery document, whatever it does first, and the last
//! good keys stay in use when it is gone.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::json;
use testkit::ca_client::CaClient;
use testkit::fake_api::{FakeResponse, full, repeated};
use testkit::scripted::ScriptedServer;
use testkit::wait;
use tonic::Code;

use crate::fixture::{FRONT, Mesh, assert_refused};

/// The path of the discovery document.
const DOCUMENT: &str = "/.well-known/openid-configuration";
/// Failures are retried every five seconds.
const HEALED: Duration = Duration::from_secs(30);

type Pages = Arc<Mutex<Box<dyn Fn(&str) -> FakeResponse + Send>>>;

/// An OpenID provider whose pages a test replaces.
struct Provider {
    server: ScriptedServer,
    pages: Pages,
}

fn missing() -> FakeResponse {
    let mut response = full("not found");
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

impl Provider {
    async fn start() -> Provider {
        let pages: Pages = Arc::new(Mutex::new(Box::new(|_| missing())));
        let asked_of = Arc::clone(&pages);
        let server = ScriptedServer::start(move |asked| {
            let response = asked_of.lock()(&asked.path);
            async move { response }
        })
        .await;
        Provider { server, pages }
    }

    fn serve(&self, pages: impl Fn(&str) -> FakeResponse + Send + 'static) {
        *self.pages.lock() = Box::new(pages);
    }

    /// Serves the document and the keys.
    fn serve_keys(&self, keys: String) {
        let document = json!({"issuer": self.server.url(), "jwks_uri": format!("{}/keys", self.server.url())});
        self.serve(move |path| match path {
            DOCUMENT => full(document.to_string()),
            "/keys" => full(keys.clone()),
            _ => missing(),
        });
    }
}

struct Stage {
    mesh: Mesh,
    provider: Provider,
    client: CaClient,
    keys: String,
}

/// A server with this rule, in which `URL` is the provider's.
async fn start(rule: &str) -> Stage {
    let provider = Provider::start().await;
    let rule = rule.replace("URL", &provider.server.url());
    let mesh = Mesh::start(&[("JWT_RULE", &rule)]).await;
    let token = mesh.token_with("front", json!({"iss": provider.server.url()}));
    let client = CaClient::new(mesh.secure, &mesh.roots().await, None, Some(&token));
    let keys = fs::read_to_string(mesh.path("keys.json")).unwrap();
    Stage { mesh, provider, client, keys }
}

impl Stage {
    async fn accepts(&self) -> Duration {
        let begun = Instant::now();
        wait::until_within(HEALED, "a certificate", async || {
            self.client.certificate(FRONT, 0).await.map(drop).map_err(|refusal| format!("{refusal:?}"))
        })
        .await;
        begun.elapsed()
    }

    async fn refuses_and_names(&self, reason: &str) {
        wait::until_within(HEALED, reason, async || {
            let page = self.mesh.page("/debug/problems").await;
            let is_named = page.contains("token keys") && page.contains(reason);
            if is_named { Ok(()) } else { Err(page) }
        })
        .await;
        assert_refused(reason, self.client.certificate(FRONT, 0).await, Code::Unauthenticated);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_found_by_the_discovery_document_once_it_is_good() {
    let stage = start(r#"{"issuer": "URL", "audiences": ["istio-ca"]}"#).await;
    stage.refuses_and_names("status 404").await;
    let keys_elsewhere = json!({"jwks_uri": format!("{}/missing", stage.provider.server.url())}).to_string();
    for (document, reason) in [("<html>", "expected value"), ("{\"issuer\": 1}", "has no jwks_uri")] {
        stage.provider.serve(move |_| full(document));
        stage.refuses_and_names(reason).await;
    }
    stage.provider.serve(move |path| if path == DOCUMENT { full(keys_elsewhere.clone()) } else { missing() });
    stage.refuses_and_names("status 404").await;
    stage.provider.serve(|_| repeated(Bytes::from_static(&[b' '; 4096]), None));
    stage.refuses_and_names("1048576").await;
    stage.provider.serve_keys(stage.keys.clone());
    eprintln!("accepted {:?} after the provider was good", stage.accepts().await);
    // Tokens of another issuer or audience, and of another key, are refused.
    let url = stage.provider.server.url();
    for (what, replaced) in [
        ("another issuer", json!({"iss": "https://issuer.test"})),
        ("another audience", json!({"iss": url, "aud": ["vault"]})),
        ("expired", json!({"iss": url, "exp": 1})),
    ] {
        let token = stage.mesh.token_with("front", replaced);
        let client = CaClient::new(stage.mesh.secure, &stage.mesh.roots().await, None, Some(&token));
        assert_refused(what, client.certificate(FRONT, 0).await, Code::Unauthenticated);
    }
    // The provider is gone.
    stage.provider.serve(|_| missing());
    stage.accepts().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_read_from_a_url() {
    let stage = start(r#"{"issuer": "URL", "audiences": ["istio-ca"], "jwks_uri": "URL/keys"}"#).await;
    stage.refuses_and_names("/keys").await;
    stage.provider.serve(|_| full("{\"keys\": [{\"kty\": \"RSA\"}]}"));
    stage.refuses_and_names("could not use the token keys").await;
    stage.provider.serve_keys(stage.keys.clone());
    stage.accepts().await;
}
