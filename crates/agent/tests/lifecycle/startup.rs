//! Startup until Envoy is ready, with a real pilot-discovery.

use std::time::Instant;

use testkit::backend::HttpBackend;
use testkit::{ports, servers, wait};

use crate::fixture::{AGENT, Agent, AgentSetup, ConfiguredBy, answered, discovery, envoy};

#[tokio::test]
async fn envoy_is_ready_and_serves() {
    if servers::without("envoy") {
        return;
    }
    let (port, backend) = (ports::free(), HttpBackend::start("cart").await);
    let discovery = discovery(port, &backend).await;
    for (name, flags, env) in [
        ("delta, by the relay", &[][..], &[][..]),
        ("state of the world, by the relay", &[][..], &[("ISTIO_DELTA_XDS", "false")][..]),
        ("delta, without the relay", &["--xdsRelay=false"][..], &[][..]),
    ] {
        let started = Instant::now();
        let mut agent = Agent::start(&AgentSetup {
            discovery: discovery.grpc(),
            binary: envoy(),
            flags,
            env,
            ..AgentSetup::default()
        });
        agent.ready().await;
        println!("{name}: ready {} ms after the agent's start", started.elapsed().as_millis());
        answered(port).await;
        assert!(agent.config_path().join("envoy-rev0.json").is_file());
    }
}

#[tokio::test]
async fn agent_can_be_configured_by_environment() {
    if servers::without("envoy") {
        return;
    }
    let (port, backend) = (ports::free(), HttpBackend::start("cart").await);
    let server = discovery(port, &backend).await;
    let env = [
        ("POD_NAME", "client-2"),
        ("POD_NAMESPACE", "outside"),
        ("INSTANCE_IP", "127.0.0.1"),
        ("ISTIO_META_CLUSTER_ID", "Kubernetes"),
    ];
    let (discovery, configured_by) = (server.grpc(), ConfiguredBy::Environment);
    let mut agent =
        Agent::start(&AgentSetup { discovery, binary: envoy(), env: &env, configured_by, ..AgentSetup::default() });
    agent.ready().await;
    answered(port).await;
    assert!(agent.process.output().contains("sidecar~127.0.0.1~client-2.outside~outside.svc.cluster.local"));
}

#[tokio::test]
async fn wait_returns_when_envoy_is_ready_and_fails_when_it_is_not() {
    if servers::without("envoy") {
        return;
    }
    let (port, backend) = (ports::free(), HttpBackend::start("cart").await);
    let server = discovery(port, &backend).await;
    let agent = Agent::start(&AgentSetup { discovery: server.grpc(), binary: envoy(), ..AgentSetup::default() });
    let wait = |port: u16, seconds: &str| {
        let url = format!("http://127.0.0.1:{port}/healthz/ready");
        let args = ["wait", "--url", &url, "--timeoutSeconds", seconds, "--periodMillis", "20"];
        std::process::Command::new(AGENT).args(args).output().unwrap()
    };
    let ready = wait(agent.status, "60");
    assert!(ready.status.success(), "{}", String::from_utf8_lossy(&ready.stderr));
    let never = wait(ports::free(), "0");
    assert_eq!(never.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&never.stderr).contains("Envoy was not ready within 0 s"));
    let elsewhere = std::process::Command::new(AGENT).args(["request", "GET", "stats", "--debug-port", "22"]).output();
    assert!(String::from_utf8_lossy(&elsewhere.unwrap().stderr).contains("could not send a request to port 22"));
}

#[tokio::test]
async fn without_envoy_a_grpc_bootstrap_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("grpc.json");
    let env = [("DISABLE_ENVOY", "true"), ("GRPC_XDS_BOOTSTRAP", file.to_str().unwrap())];
    let mut agent = Agent::start(&AgentSetup { env: &env, ..AgentSetup::default() });
    agent.logs("relaying xDS", 1).await;
    wait::until("the file", async || std::fs::read_to_string(&file).map(|_| ()).map_err(|e| e.to_string())).await;
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("/XDS") && text.contains("client-1.outside") && text.contains("GENERATOR"), "{text}");
    let status = agent.process.terminate().await;
    assert!(status.success() && agent.envoys().is_empty(), "{status}");
}

#[tokio::test]
async fn a_missing_envoy_ends_the_agent_at_once_with_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    for (binary, expected) in [
        (folder.path().join("none"), "/none; give its path with --binaryPath"),
        ("no-such-envoy".into(), "no-such-envoy on the PATH; give its path with --binaryPath"),
    ] {
        let mut command = std::process::Command::new(AGENT);
        command.args(["proxy", "sidecar", "--ip", "127.0.0.1", "--id", "client-1.outside", "--domain", "outside.svc"]);
        command.args(["--discoveryAddress", "127.0.0.1:1", "--controlPlaneAuthPolicy", "NONE", "--statusPort", "0"]);
        command.arg("--configPath").arg(folder.path().join("proxy")).arg("--binaryPath").arg(&binary);
        let (begun, output) = (Instant::now(), command.output().unwrap());
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("could not find Envoy at ") && text.contains(expected), "{text}");
        println!("ended after {:?}", begun.elapsed());
    }
}
