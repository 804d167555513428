//! Consul with mutual TLS: clients without a certificate, with the wrong CA, and with certificates that are replaced at
//! run time.

use std::fs;
use std::path::Path;

use serde_json::json;
use sources::health::SourceState;
use sources::registry::consul::ConsulOptions;
use sources::registry::shared_options::TlsOptions;
use tempfile::TempDir;
use testkit::certificates::Authority;
use testkit::consul::Consul;
use testkit::{ports, servers};

use crate::conformance::Instance;
use crate::consul::{NODE, adapter, options, service};
use crate::follower::Follower;

const HOST: &str = "web.service.consul";

/// Writes the trusted CA, certificate and key of a server or a client.
fn put(folder: &Path, name: &str, authority: &Authority) {
    let own = authority.workload(&format!("spiffe://test/{name}"));
    fs::write(folder.join(format!("{name}-ca.pem")), authority.root()).unwrap();
    fs::write(folder.join(format!("{name}.pem")), own.chain).unwrap();
    fs::write(folder.join(format!("{name}.key")), own.key).unwrap();
}

fn client(folder: &TempDir, https: u16) -> ConsulOptions {
    let file = |name: &str| Some(folder.path().join(name));
    let tls = TlsOptions {
        ca_file: file("client-ca.pem"),
        cert_file: file("client.pem"),
        key_file: file("client.key"),
        server_name: None,
    };
    ConsulOptions { tls, ..options(vec![format!("https://127.0.0.1:{https}")]) }
}

/// Waits until the failure of a source contains these parts. The TLS alert may arrive after the end of the connection.
async fn refused(options: ConsulOptions, parts: &[&str]) {
    let mut seen = Follower::new(adapter(options));
    let says = |text: &str| parts.iter().all(|part| text.contains(part));
    let reason = format!("the reason {parts:?}");
    seen.until_state(&reason, |r| r.last_failure.as_ref().is_some_and(|f| says(&f.message))).await;
    assert_eq!(seen.report().state, SourceState::Syncing);
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_checked_on_both_sides_and_replaced_while_running() {
    if servers::without("consul") {
        return;
    }
    let (folder, https) = (tempfile::tempdir().unwrap(), ports::free());
    let [first, second, third] = [(); 3].map(|()| Authority::new());
    put(folder.path(), "server", &first);
    put(folder.path(), "client", &first);
    let file = |name: &str| folder.path().join(name).display().to_string();
    let settings = json!({
        "ports": {"https": https},
        "tls": {"https": {
            "ca_file": file("server-ca.pem"), "cert_file": file("server.pem"), "key_file": file("server.key"),
            "verify_incoming": true,
        }},
    });
    let mut server = Consul::start_with(settings).await;
    server.register(NODE, &service(&Instance::new("web", 1)), "passing").await;

    // No client certificate, the wrong CA, and a missing file: each failure says why.
    let mut bare = client(&folder, https);
    (bare.tls.cert_file, bare.tls.key_file) = (None, None);
    refused(bare, &["no client certificate is configured"]).await;
    put(folder.path(), "stranger", &third);
    let mut other = client(&folder, https);
    other.tls.ca_file = Some(folder.path().join("stranger-ca.pem"));
    refused(other.clone(), &["not signed by a CA in", "stranger-ca.pem"]).await;
    other.tls.ca_file = Some(folder.path().join("absent.pem"));
    refused(other, &["could not read", "absent.pem"]).await;

    let mut seen = Follower::synced(adapter(client(&folder, https))).await;
    assert_eq!(seen.serving(HOST), ["10.0.0.1"]);

    // The server moves to another CA, which is not trusted: its services stay.
    server.kill();
    put(folder.path(), "server", &second);
    server.restart().await;
    seen.until_state(
        "a stale source",
        |r| matches!(&r.state, SourceState::Stale { reason, .. } if reason.contains("client-ca.pem")),
    )
    .await;
    server.register(NODE, &service(&Instance::new("web", 2)), "passing").await;
    assert_eq!((seen.serving(HOST).len(), seen.lost), (1, 0));

    // A certificate and a key that do not match are ignored; matching ones are used without a restart.
    fs::write(folder.path().join("client.key"), "half a key").unwrap();
    put(folder.path(), "client", &second);
    seen.until("the instance registered in between", |f| f.serving(HOST).len() == 2).await;
    seen.until_state("a live source", |r| r.state == SourceState::Live).await;
    server.register(NODE, &service(&Instance::new("web", 3)), "passing").await;
    seen.until("a change after the replacement", |f| f.serving(HOST).len() == 3).await;
    assert_eq!((seen.lost, seen.report().counts.restarts), (0, 0), "endpoints lost, restarts of the source");
}
