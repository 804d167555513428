//! Tokens whose keys the control plane fetches: valid tokens pass, new keys apply, and without keys all are denied.

use std::sync::{Arc, Mutex};

use http::Response;
use serde_json::json;
use testkit::envoy::XdsTransport;
use testkit::scripted::ScriptedServer;
use testkit::wait;

use super::jwt::{Issuer, seconds};
use super::{Guarded, policy, raw_request};

testkit::over_both!(fetched_keys_verify_tokens_and_are_refreshed);

const ISSUER: &str = "https://first.example";

async fn fetched_keys_verify_tokens_and_are_refreshed(transport: XdsTransport) {
    let (old, new) = (Issuer::new(), Issuer::new());
    let served = Arc::new(Mutex::new((200, old.key_set())));
    let answers = served.clone();
    let server = ScriptedServer::start(move |_| {
        let (status, text) = answers.lock().expect("no test panics in between").clone();
        async move { Response::builder().status(status).body(text).expect("a good response") }
    })
    .await;
    let policies = [
        format!(
            "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\n\
             metadata: {{name: tokens, namespace: shop}}\n\
             spec: {{jwtRules: [{{issuer: {ISSUER}, jwksUri: \"{}/keys\"}}]}}\n",
            server.url()
        ),
        policy("require", "ALLOW", "  - from: [{source: {requestPrincipals: ['*']}}]"),
    ];
    let env = [("PILOT_JWT_PUB_KEY_REFRESH_INTERVAL", "100ms"), ("PILOTAGE_JWKS_ALLOWED_CIDRS", "127.0.0.0/8")];
    let guarded = Guarded::start_with(transport, &policies, "", &env).await;
    let claims = json!({"iss": ISSUER, "sub": "alice", "exp": seconds(3600)});
    let [of_old, of_new] = [&old, &new].map(|issuer| format!("authorization: Bearer {}", issuer.token(&claims)));

    // The server is ready only with keys, so the first request passes.
    guarded.check(&[(200, "GET /", &[&of_old]), (401, "GET /", &[&of_new]), (403, "GET /", &[])]).await;

    *served.lock().expect("no test panics in between") = (503, String::new());
    guarded.has_problem("the last keys stay in use").await;
    guarded.check(&[(200, "GET /", &[&of_old]), (401, "GET /", &[&of_new])]).await;

    *served.lock().expect("no test panics in between") = (200, new.key_set());
    wait::until("the new keys", async || {
        let status = raw_request(guarded.mesh.address, "GET /", &[&of_new]).await?;
        if status == 200 { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    guarded.check(&[(200, "GET /", &[&of_new]), (401, "GET /", &[&of_old])]).await;
    guarded.mesh.assert_settled().await;
}
