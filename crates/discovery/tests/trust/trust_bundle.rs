//! The trust bundle of the mesh: roots of the CA, of the mesh config and of a SPIFFE bundle endpoint reach a real Envoy
//! through its agent.

use std::fs;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{Response, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use serde_json::json;
use testkit::scripted::ScriptedServer;
use testkit::{servers, wait};
use trust::bundle::RootBundle;

use crate::files::Ca;
use crate::fixture::Mesh;
use crate::loaded_mesh::{Renewal, Sidecar};

/// A SPIFFE bundle with one root.
fn spiffe_bundle(ca: &Ca) -> String {
    let root = BASE64_STANDARD.encode(ca.root.der());
    json!({"keys": [{"kty": "EC", "use": "x509-svid", "x5c": [root]}, {"kty": "EC", "use": "jwt-svid"}]}).to_string()
}

/// Waits until agent and Envoy trust exactly these roots.
async fn until_trusted(sidecar: &mut Sidecar, expected: &[&Ca]) {
    let expected = RootBundle::from_pem(&expected.iter().map(|ca| ca.root.pem()).collect::<String>()).unwrap();
    wait::until("the trusted roots", async || {
        sidecar.log();
        let written = RootBundle::from_pem(&sidecar.written("root-cert.pem")?).map_err(|error| error.to_string())?;
        let known = expected.roots().iter().all(|root| written.contains(root));
        if !known || written.roots().len() != expected.roots().len() {
            return Err(format!("{} roots", written.roots().len()));
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_of_all_sources_reach_an_agent() {
    if servers::without("envoy") {
        return;
    }
    let (own, partner, far, further) = (Ca::new(), Ca::new(), Ca::new(), Ca::new());
    let folder = tempfile::tempdir().unwrap();
    own.write(&folder.path().join("cacerts"), &own.root.pem());
    let env = [("ISTIOD_CUSTOM_HOST", "127.0.0.1"), ("ISTIO_MULTIROOT_MESH", "true")];
    let mesh = Mesh::start_in(folder, &env).await;
    let renewal = Renewal { lifetime: 3600, ratio: 0.5 };
    let trusting = [("PROXY_CONFIG_XDS_AGENT", "true")];
    let mut sidecar = Sidecar::start_with(&mesh, mesh.secure, 0, &own.root.pem(), renewal, &trusting).await;
    until_trusted(&mut sidecar, &[&own]).await;

    let served = Arc::new(Mutex::new((StatusCode::OK, spiffe_bundle(&far))));
    let script = Arc::clone(&served);
    let endpoint = ScriptedServer::start(move |_| {
        let (status, body) = script.lock().clone();
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = status;
        async move { response }
    })
    .await;
    let config = json!({"caCertificates": [
        {"pem": partner.root.pem()},
        {"spiffeBundleUrl": format!("http://{}/bundle", endpoint.address())},
    ]});
    let path = mesh.server.config().with_file_name("mesh.yaml");
    fs::write(&path, config.to_string()).unwrap();
    until_trusted(&mut sidecar, &[&own, &partner, &far]).await;

    // A second endpoint that fails is named, and changes nothing else.
    *served.lock() = (StatusCode::INTERNAL_SERVER_ERROR, String::new());
    let mut config = config;
    let entries = config["caCertificates"].as_array_mut().unwrap();
    entries.push(json!({"spiffeBundleUrl": format!("http://{}/broken", endpoint.address())}));
    entries.push(json!({"pem": further.root.pem()}));
    fs::write(&path, config.to_string()).unwrap();
    until_trusted(&mut sidecar, &[&own, &partner, &far, &further]).await;
    wait::until("a problem", async || {
        let problems = mesh.page("/debug/problems").await;
        let is_named = problems.contains("/broken") && problems.contains("last good roots");
        if is_named { Ok(()) } else { Err(problems) }
    })
    .await;
    // Without the entries only the CA's own roots are left.
    fs::write(&path, "{}").unwrap();
    until_trusted(&mut sidecar, &[&own]).await;
}
