//! Shutdown of the agent; no Envoy is left running.

use std::time::{Duration, Instant};

use testkit::backend::HttpBackend;
use testkit::process::signal;
use testkit::{ports, servers};

use crate::fixture::{Agent, AgentSetup, answered, discovery, envoy, get, gone, stub};

/// PROXY_CONFIG with a short drain time.
const SHORT: (&str, &str) = ("PROXY_CONFIG", "terminationDrainDuration: 1s");

#[tokio::test]
async fn killed_agent_leaves_no_envoy() {
    if servers::without("envoy") {
        return;
    }
    let mut agent = Agent::start(&AgentSetup { binary: envoy(), ..AgentSetup::default() });
    let id = agent.new_envoy(&[]).await;
    agent.process.kill();
    let at = Instant::now();
    gone(id).await;
    println!("envoy gone {:?} after the agent was killed", at.elapsed());
    assert!(agent.envoys().is_empty());
}

#[tokio::test]
async fn request_in_flight_completes_before_envoy_exits() {
    if servers::without("envoy") {
        return;
    }
    let (port, backend) = (ports::free(), HttpBackend::start("cart").await);
    let discovery = discovery(port, &backend).await;
    let env = [("PROXY_CONFIG", "terminationDrainDuration: 3s")];
    let mut agent =
        Agent::start(&AgentSetup { discovery: discovery.grpc(), binary: envoy(), env: &env, ..AgentSetup::default() });
    agent.ready().await;
    answered(port).await;
    let id = agent.new_envoy(&[]).await;
    backend.answer_after(Duration::from_millis(1000));
    let (before, slow) = (backend.requests(), tokio::spawn(get(port)));
    testkit::wait::until("the slow request", async || {
        if backend.requests() > before { Ok(()) } else { Err("not there yet".to_owned()) }
    })
    .await;
    let status = agent.process.terminate().await;
    assert!(status.success(), "{status}");
    let reply = slow.await.unwrap().unwrap_or_else(|e| panic!("the request was lost: {e}"));
    assert!(reply.status.is_success(), "{}", reply.status);
    gone(id).await;
    assert!(agent.process.output().contains("stopped by a signal"), "{}", agent.process.output());
    assert!(!agent.config_path().join("envoy-rev0.json").exists());
}

#[tokio::test]
async fn hanging_envoy_is_terminated() {
    if servers::without("envoy") {
        return;
    }
    let mut agent = Agent::start(&AgentSetup { binary: envoy(), env: &[SHORT], ..AgentSetup::default() });
    let admin = (std::net::Ipv4Addr::LOCALHOST, agent.admin).into();
    testkit::wait::until("envoy's admin port", async || {
        Ok(testkit::client::get(admin, "admin", "/stats").await.map(drop)?)
    })
    .await;
    let id = agent.new_envoy(&[]).await;
    signal(id, "STOP");
    let at = Instant::now();
    let status = agent.process.terminate().await;
    println!("a hanging envoy was ended in {:?}", at.elapsed());
    assert!(status.success(), "{status}");
    gone(id).await;
}

#[tokio::test]
async fn stub_that_ignores_sigterm_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let stubborn = stub(folder.path(), "trap '' TERM INT\nwhile :; do sleep 0.05; done");
    let mut agent = Agent::start(&AgentSetup { binary: stubborn, env: &[SHORT], ..AgentSetup::default() });
    let id = agent.new_envoy(&[]).await;
    let at = Instant::now();
    let status = agent.process.terminate().await;
    let took = at.elapsed();
    println!("a stubborn stub was ended in {took:?}");
    assert!(status.success(), "{status}");
    assert!(took >= Duration::from_secs(2), "drain and grace take 2 s, not {took:?}");
    gone(id).await;
}

#[tokio::test]
async fn quitquitquit_ends_the_agent_at_once() {
    if servers::without("envoy") {
        return;
    }
    let (port, backend) = (ports::free(), HttpBackend::start("cart").await);
    let discovery = discovery(port, &backend).await;
    let mut agent = Agent::start(&AgentSetup { discovery: discovery.grpc(), binary: envoy(), ..AgentSetup::default() });
    agent.ready().await;
    let id = agent.new_envoy(&[]).await;
    let request = http::Request::post("/quitquitquit").header("host", "localhost").body(String::new()).unwrap();
    let status = (std::net::Ipv4Addr::LOCALHOST, agent.status).into();
    let reply = testkit::client::send(status, request).await.unwrap();
    assert!(reply.status.is_success(), "{}", reply.status);
    gone(agent.process.id()).await;
    gone(id).await;
    assert!(agent.process.output().contains("quit at once; Envoy"), "{}", agent.process.output());
}

#[tokio::test]
async fn agent_exits_when_envoy_exits_successfully() {
    let folder = tempfile::tempdir().unwrap();
    let done = stub(folder.path(), "exit 0");
    let agent = Agent::start(&AgentSetup { binary: done, ..AgentSetup::default() });
    agent.logs("Envoy exited by itself with code 0", 1).await;
    gone(agent.process.id()).await;
}
