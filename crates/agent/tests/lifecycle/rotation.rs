//! Certificate rotation: by hot restart as in Pilot 0.8, without losing requests, or pushed over SDS.

use std::fs;
use std::path::Path;
use std::time::Duration;

use testkit::backend::HttpBackend;
use testkit::process::signal;
use testkit::{ports, servers, wait};

use crate::fixture::{Agent, AgentSetup, answered, discovery, envoy};
use crate::load::{Load, write_certificates};

#[tokio::test]
async fn hot_restart_loses_no_request() {
    if servers::without("envoy") {
        return;
    }
    let (port, backend) = (ports::free(), HttpBackend::start("cart").await);
    // Some requests are in flight at any time.
    backend.answer_after(Duration::from_millis(20));
    let discovery = discovery(port, &backend).await;
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let paths = ["cert-chain.pem", "key.pem", "root-cert.pem"].map(|n| folder.path().join(n).display().to_string());
    let env = [
        ("ISTIO_META_TLS_CLIENT_CERT_CHAIN", &*paths[0]),
        ("ISTIO_META_TLS_CLIENT_KEY", &*paths[1]),
        ("ISTIO_META_TLS_CLIENT_ROOT_CERT", &*paths[2]),
    ];
    let flags = ["--hotRestart", "--drainDuration", "2s", "--parentShutdownDuration", "3s"];
    let env = env.into_iter().chain([("PROXY_CONFIG", "terminationDrainDuration: 0s")]).collect::<Vec<_>>();
    let mut agent = Agent::start(&AgentSetup {
        discovery: discovery.grpc(),
        binary: envoy(),
        flags: &flags,
        env: &env,
        ..AgentSetup::default()
    });
    agent.ready().await;
    answered(port).await;
    let first = agent.new_envoy(&[]).await;
    let load = Load::start(port);
    write_certificates(folder.path());
    agent.logs("--restart-epoch\", \"1\"", 1).await;
    wait::until("the new epoch alone", async || match agent.envoys()[..] {
        [one] if one != first => Ok(()),
        ref others => Err(format!("{others:?}")),
    })
    .await;
    answered(port).await;
    let (sent, failures) = load.end().await;
    println!("{sent} requests over the change of epochs, {} lost", failures.len());
    assert!(sent > 50, "{sent}");
    assert_eq!(failures, Vec::<String>::new());
    agent.logs("Envoy exited with code 0", 1).await;
    assert!(agent.config_path().join("envoy-rev1.json").exists());
    assert!(!agent.config_path().join("envoy-rev0.json").exists());
    // After a failure epochs restart at 0.
    let second = agent.new_envoy(&[first]).await;
    signal(second, "KILL");
    agent.logs("--restart-epoch\", \"0\"", 2).await;
    agent.ready().await;
    answered(port).await;
    let id = fs::read_to_string(agent.config_path().join("envoy-base-id")).unwrap();
    let shared = format!("/dev/shm/envoy_shared_memory_{}0", id.trim());
    assert!(Path::new(&shared).exists(), "{shared}");
    agent.process.terminate().await;
    assert!(!Path::new(&shared).exists(), "{shared}");
}

#[tokio::test]
async fn new_certificates_are_pushed_by_default() {
    if servers::without("envoy") {
        return;
    }
    let (port, backend) = (ports::free(), HttpBackend::start("cart").await);
    let discovery = discovery(port, &backend).await;
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let paths = ["cert-chain.pem", "key.pem", "root-cert.pem"].map(|n| folder.path().join(n).display().to_string());
    // A listener that needs the workload's certificate.
    let secure = ports::free().to_string();
    let env = [
        ("ISTIO_META_TLS_CLIENT_CERT_CHAIN", &*paths[0]),
        ("ISTIO_META_TLS_CLIENT_KEY", &*paths[1]),
        ("ISTIO_META_TLS_CLIENT_ROOT_CERT", &*paths[2]),
        ("ENVOY_SECURE_METRICS_PORT", &*secure),
    ];
    let mut agent =
        Agent::start(&AgentSetup { discovery: discovery.grpc(), binary: envoy(), env: &env, ..AgentSetup::default() });
    agent.ready().await;
    let shown = async || {
        let page: serde_json::Value =
            serde_json::from_str(&agent.admin_page("/certs").await?).map_err(|e| e.to_string())?;
        let serial = page["certificates"][0]["cert_chain"][0]["serial_number"].as_str().unwrap_or_default().to_owned();
        if serial.is_empty() { Err(page.to_string()) } else { Ok(serial) }
    };
    let before = wait::until("the first certificate", shown).await;
    let first = agent.new_envoy(&[]).await;
    write_certificates(folder.path());
    let after = wait::until("the new certificate", async || {
        shown().await.and_then(|serial| if serial == before { Err(serial) } else { Ok(serial) })
    })
    .await;
    println!("certificate {before} was replaced by {after}");
    assert_eq!(agent.envoys(), [first]);
}
