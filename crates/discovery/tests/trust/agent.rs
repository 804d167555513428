//! A real pilot-agent obtains certificates from a real pilot-discovery, and keeps the last one through outages.

use std::fs;
use std::path::Path;

use testkit::process::Process;
use testkit::{programs, wait};
use trust::certificate::Certificate;
use trust::key::PrivateKey;

use crate::fixture::{FRONT, Mesh};

/// Starts an agent without an Envoy in a folder with its token and the root.
async fn agent(mesh: &Mesh, folder: &Path, lifetime: &str) -> Process {
    for (name, text) in [("tokens/istio-token", mesh.token("front")), ("istio/root-cert.pem", mesh.roots().await)] {
        let path = folder.join("var/run/secrets").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let binary = programs::binary("agent", "pilot-agent");
    let line = format!(
        "cd {} && exec {} proxy sidecar --ip 127.0.0.1 --id front.shop --domain shop.svc.cluster.local \
         --discoveryAddress {} --configPath {} --statusPort 0",
        folder.display(),
        binary.display(),
        mesh.secure,
        folder.join("proxy").display(),
    );
    let env = [
        ("DISABLE_ENVOY", "true"),
        ("POD_NAMESPACE", "shop"),
        ("SERVICE_ACCOUNT", "front"),
        ("ECC_SIGNATURE_ALGORITHM", "ECDSA"),
        ("SECRET_TTL", lifetime),
        ("OUTPUT_CERTS", "certs"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Process::start("pilot-agent", Path::new("/bin/sh"), &["-c".to_owned(), line], &env)
}

/// The certificate that the agent wrote; its key must match.
pub(crate) fn written(folder: &Path) -> Result<Certificate, String> {
    let folder = folder.join("certs/..data").canonicalize().map_err(|error| error.to_string())?;
    let read = |name: &str| fs::read_to_string(folder.join(name)).map_err(|error| error.to_string());
    let key = PrivateKey::from_pem(&read("key.pem")?).map_err(|error| error.to_string())?;
    let leaf = Certificate::all_from_pem(&read("cert-chain.pem")?).map_err(|error| error.to_string())?.remove(0);
    if leaf.is_for_key(&key) { Ok(leaf) } else { Err("the key does not match".to_owned()) }
}

async fn until_renewed(folder: &Path, before: &Certificate) -> Certificate {
    wait::until("a renewed certificate", async || {
        let leaf = written(folder)?;
        if leaf.serial != before.serial { Ok(leaf) } else { Err("the old one".to_owned()) }
    })
    .await
}

#[tokio::test]
async fn an_agent_renews_its_certificate_and_survives_an_outage() {
    let mut mesh = Mesh::start(&[("ISTIOD_CUSTOM_HOST", "127.0.0.1")]).await;
    let folder = tempfile::tempdir().unwrap();
    let mut process = agent(&mesh, folder.path(), "4s").await;
    let first = wait::until("a certificate", async || {
        process.check_alive();
        written(folder.path())
    })
    .await;
    assert_eq!(first.uris, [FRONT]);
    let second = until_renewed(folder.path(), &first).await;
    // Half of its life is before, half after the renewal.
    assert!(second.not_after - first.not_after >= 1, "{first:?} {second:?}");
    mesh.server.process().kill();
    wait::until("a failed renewal", async || {
        let output = process.output();
        if output.contains("the current certificate stays in use") { Ok(()) } else { Err(output) }
    })
    .await;
    let kept = written(folder.path()).unwrap();
    mesh.server.restart().await;
    until_renewed(folder.path(), &kept).await;
    process.check_alive();
    let key = fs::read_to_string(folder.path().join("certs/key.pem")).unwrap();
    let token = mesh.token("front");
    let secrets = key.lines().filter(|line| line.len() > 40).chain([token.split('.').nth(1).unwrap()]);
    let output = process.output();
    for secret in secrets {
        assert!(!output.contains(secret), "a secret was logged");
    }
}
