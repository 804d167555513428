//! From nothing to a ready Envoy, against a real pilot-discovery.

use std::time::Instant;

use testkit::backend::HttpBackend;
use testkit::{ports, servers};

use crate::stage::{Agent, Era, Wanted, answered, discovery, envoy};

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
        let mut agent =
            Agent::start(&Wanted { discovery: discovery.grpc(), binary: envoy(), flags, env, ..Wanted::default() });
        agent.ready().await;
        println!("{name}: ready {} ms after the agent's start", started.elapsed().as_millis());
        answered(port).await;
        assert!(agent.config_path().join("envoy-rev0.json").is_file());
    }
}

#[tokio::test]
async fn todays_form_by_environment_works_too() {
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
    let (discovery, era) = (server.grpc(), Era::Environment);
    let mut agent = Agent::start(&Wanted { discovery, binary: envoy(), env: &env, era, ..Wanted::default() });
    agent.ready().await;
    answered(port).await;
    assert!(agent.process.output().contains("sidecar~127.0.0.1~client-2.outside~outside.svc.cluster.local"));
}
