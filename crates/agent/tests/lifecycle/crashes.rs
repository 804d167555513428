//! Envoys that crash or cannot be started.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agent::process::back_off::BackOff;
use agent::process::command::{Launch, Takeover};
use agent::process::drain::Drain;
use agent::process::exit::ExitCause;
use agent::process::lifecycle::LifecycleSender;
use agent::process::supervisor::{EpochBootstrap, Supervisor};
use testkit::process::{alive_with, signal};
use testkit::{ports, servers, wait};
use tokio::sync::watch;

use crate::fixture::{AGENT, Agent, AgentSetup, envoy, stub};

/// First restart delay in these tests; upstream's is 200 times as long.
const FIRST: Duration = Duration::from_millis(1);
const BUDGET: u32 = 10;

fn launch(binary: PathBuf) -> (Launch, Drain) {
    let fixed = vec!["-l".to_owned(), "off".to_owned()];
    let (drain, takeover, start_timeout) = (Duration::ZERO, Takeover::None, Duration::from_secs(30));
    let launch = Launch { agent: AGENT.into(), binary, drain, fixed, takeover, start_timeout };
    let drain = Drain {
        admin: (Ipv4Addr::LOCALHOST, ports::free()).into(),
        inbound_only: true,
        time: Duration::ZERO,
        until_idle: None,
        own_ports: [].into(),
    };
    (launch, drain)
}

/// Supervises a binary until the agent would exit; returns the cause and the start time of each Envoy.
async fn supervised(binary: PathBuf, bootstrap: &Path) -> (ExitCause, Vec<Instant>) {
    let (launch, drain) = launch(binary);
    let mut starts = Vec::new();
    let configure = |_| {
        starts.push(Instant::now());
        Ok(EpochBootstrap { path: bootstrap.to_owned(), remove: false, admin_file: None })
    };
    let supervisor = Supervisor::new(launch, drain, BackOff::new(FIRST, BUDGET), configure);
    let (requests, changes) = (LifecycleSender::default(), watch::Sender::new(0));
    let cause = supervisor.run(requests.subscribe(), changes.subscribe()).await;
    (cause, starts)
}

fn check_delays(starts: &[Instant]) {
    let delays: Vec<Duration> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    println!("{} starts, delays {delays:?}", starts.len());
    assert_eq!(starts.len(), 11);
    for (n, delay) in delays.iter().enumerate() {
        let least = FIRST * 2u32.pow(u32::try_from(n).unwrap());
        assert!(*delay >= least, "delay {n}: {delay:?} < {least:?}");
    }
}

#[tokio::test]
async fn agent_gives_up_after_eleven_crashes_of_a_stub() {
    let folder = tempfile::tempdir().unwrap();
    let (cause, starts) = supervised(stub(folder.path(), "exit 3"), folder.path()).await;
    assert_eq!((cause, cause.code()), (ExitCause::GaveUp, 255));
    check_delays(&starts);
}

#[tokio::test]
async fn agent_gives_up_if_the_binary_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let (cause, starts) = supervised(folder.path().join("no-envoy"), folder.path()).await;
    assert_eq!((cause, starts.len()), (ExitCause::GaveUp, 11));
}

#[tokio::test]
async fn agent_gives_up_after_eleven_kills_of_a_real_envoy() {
    if servers::without("envoy") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bootstrap = folder.path().join("idle.json");
    std::fs::write(&bootstrap, "{}").unwrap();
    let marker = bootstrap.to_string_lossy().into_owned();
    let killer = tokio::spawn(async move {
        let mut killed: Vec<u32> = Vec::new();
        loop {
            for id in alive_with(&marker).into_iter().filter(|id| !killed.contains(id)).collect::<Vec<_>>() {
                signal(id, "KILL");
                killed.push(id);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let (cause, starts) = supervised(envoy(), &bootstrap).await;
    killer.abort();
    assert_eq!(cause, ExitCause::GaveUp);
    check_delays(&starts);
}

#[tokio::test]
async fn killed_envoy_is_restarted_with_upstreams_delays() {
    if servers::without("envoy") {
        return;
    }
    let agent = Agent::start(&AgentSetup { binary: envoy(), ..AgentSetup::default() });
    let mut killed = Vec::new();
    for least in [200, 400, 800] {
        let id = agent.new_envoy(&killed).await;
        killed.push(id);
        let at = Instant::now();
        signal(id, "KILL");
        agent.new_envoy(&killed).await;
        let delay = at.elapsed();
        println!("back after {delay:?}, at least {least} ms");
        assert!(delay >= Duration::from_millis(least), "{delay:?}");
    }
    agent.logs("Envoy was killed by SIGKILL", 3).await;
}

#[tokio::test]
async fn envoy_is_restarted_until_its_port_is_free() {
    if servers::without("envoy") {
        return;
    }
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, ports::free())).unwrap();
    let admin = taken.local_addr().unwrap().port();
    let agent = Agent::start(&AgentSetup { binary: envoy(), admin, ..AgentSetup::default() });
    agent.logs("Envoy exited with code 1", 2).await;
    drop(taken);
    let admin = (Ipv4Addr::LOCALHOST, admin).into();
    wait::until("envoy's admin port", async || Ok(testkit::client::get(admin, "admin", "/stats").await.map(drop)?))
        .await;
}

#[tokio::test]
async fn agent_can_be_stopped_while_envoy_rejects_its_bootstrap() {
    if servers::without("envoy") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let custom = folder.path().join("bad.json");
    std::fs::write(&custom, r#"{"admin": {"address": 7}}"#).unwrap();
    let flags = ["--customConfigFile", custom.to_str().unwrap()];
    let mut agent = Agent::start(&AgentSetup { binary: envoy(), flags: &flags, ..AgentSetup::default() });
    agent.logs("Envoy exited with code 1", 3).await;
    let at = Instant::now();
    let status = agent.process.terminate().await;
    assert!(status.success(), "{status}");
    println!("stopped in {:?} while waiting to start Envoy again", at.elapsed());
    assert!(agent.envoys().is_empty() && custom.exists());
}
