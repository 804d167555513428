//! Hot restarts that fail under load: which Envoy is killed, or cannot start, and what is lost.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use testkit::backend::HttpBackend;
use testkit::discovery::DiscoveryProcess;
use testkit::process::signal;
use testkit::{ports, servers, wait};

use crate::fixture::{Agent, AgentSetup, answered, discovery, envoy, gone, stub};
use crate::load::{Load, write_certificates};

/// `--parentShutdownDuration`: the new epoch then asks the old one to exit.
const SHUTDOWN: Duration = Duration::from_secs(4);
/// Requests until those that the old epoch had accepted are answered.
const FLIGHT: u64 = 40;

/// An agent with hot restart, its control plane and backend.
struct Mesh {
    agent: Agent,
    discovery: DiscoveryProcess,
    certificates: TempDir,
    port: u16,
    /// From the start of the agent to the first answer.
    first_start: Duration,
    _backend: HttpBackend,
}

impl Mesh {
    async fn start(binary: PathBuf, more: &[&str]) -> Mesh {
        let (port, backend) = (ports::free(), HttpBackend::start("cart").await);
        backend.answer_after(Duration::from_millis(5));
        let discovery = discovery(port, &backend).await;
        let certificates = tempfile::tempdir().unwrap();
        write_certificates(certificates.path());
        let path = |name: &str| certificates.path().join(name).display().to_string();
        let paths = ["cert-chain.pem", "key.pem", "root-cert.pem"].map(path);
        let env = [
            ("ISTIO_META_TLS_CLIENT_CERT_CHAIN", &*paths[0]),
            ("ISTIO_META_TLS_CLIENT_KEY", &*paths[1]),
            ("ISTIO_META_TLS_CLIENT_ROOT_CERT", &*paths[2]),
            ("PROXY_CONFIG", "terminationDrainDuration: 0s"),
            ("PILOTAGE_ENVOY_START_TIMEOUT", "5s"),
        ];
        let flags = ["--hotRestart", "--drainDuration", "2s", "--parentShutdownDuration", "4s"];
        let flags = [&flags, more].concat();
        let grpc = discovery.grpc();
        let started = Instant::now();
        let mut agent =
            Agent::start(&AgentSetup { discovery: grpc, binary, flags: &flags, env: &env, ..AgentSetup::default() });
        agent.ready().await;
        answered(port).await;
        Mesh { agent, discovery, certificates, port, first_start: started.elapsed(), _backend: backend }
    }

    fn rotate(&self) {
        write_certificates(self.certificates.path());
    }

    /// Waits until this epoch has the admin port, in this state.
    async fn epoch(&self, number: u32, state: &str) {
        let [epoch, state] = [format!("\"restart_epoch\": {number},"), format!("\"state\": \"{state}\"")];
        wait::until(&format!("{epoch} {state}"), async || {
            let page = self.agent.admin_page("/server_info").await?;
            if page.contains(&epoch) && page.contains(&state) { Ok(()) } else { Err(page) }
        })
        .await;
    }

    /// Rotates the certificates; returns the old Envoy and the new one, which has taken over.
    async fn two_epochs(&self) -> (u32, u32) {
        let old = self.agent.new_envoy(&[]).await;
        self.rotate();
        self.epoch(1, "LIVE").await;
        (old, self.newer(old))
    }

    fn newer(&self, old: u32) -> u32 {
        let all = self.agent.envoys();
        all.iter().copied().find(|id| *id != old).unwrap_or_else(|| panic!("no second Envoy: {all:?}"))
    }

    /// Time until requests are answered again after the Envoys are killed.
    async fn outage(&self, killed: &[u32]) -> Duration {
        let at = Instant::now();
        killed.iter().for_each(|id| signal(*id, "KILL"));
        for id in killed {
            gone(*id).await;
        }
        answered(self.port).await;
        at.elapsed()
    }
}

/// Repeats a case until its outage is below a second, or below the time of a first start if this takes longer. On a busy
/// machine a single time says little: the best of three counts.
async fn check_outage(case: &str, run: impl AsyncFn() -> (Duration, Duration)) {
    let mut times = Vec::new();
    for _ in 0..3 {
        let (outage, first_start) = run().await;
        if outage < first_start.max(Duration::from_secs(1)) {
            return;
        }
        times.push((outage, first_start));
    }
    panic!("{case}: outages and first starts are {times:?}");
}

/// Ends the load, and prints what was lost.
async fn report(case: &str, outage: Duration, load: Load) {
    let (sent, lost) = load.end().await;
    println!("{case}: answered again after {} ms; {sent} requests, {} lost", outage.as_millis(), lost.len());
}

fn check_lost(load: (u64, Vec<String>), case: &str) {
    println!("{case}: {} requests, {} lost", load.0, load.1.len());
    assert_eq!(load.1, Vec::<String>::new(), "{case}");
}

#[tokio::test]
async fn new_epoch_survives_the_death_of_the_old_one() {
    if servers::without("envoy") {
        return;
    }
    let mesh = Mesh::start(envoy(), &[]).await;
    let load = Load::start(mesh.port);
    let (old, new) = mesh.two_epochs().await;
    let taken_over = Instant::now();
    load.more(FLIGHT).await;
    signal(old, "KILL");
    gone(old).await;
    // The new epoch asks its dead parent to exit, and would abort.
    wait::until("the time to end the old epoch", async || match taken_over.elapsed() {
        time if time > SHUTDOWN + Duration::from_secs(1) => Ok(()),
        time => Err(format!("{time:?}")),
    })
    .await;
    mesh.epoch(1, "LIVE").await;
    assert_eq!(mesh.agent.envoys(), [new]);
    check_lost(load.end().await, "old epoch killed");
    // The next rotation works.
    mesh.rotate();
    mesh.epoch(2, "LIVE").await;
    answered(mesh.port).await;
}

#[tokio::test]
async fn requests_are_answered_again_when_the_new_epoch_or_both_are_killed() {
    if servers::without("envoy") {
        return;
    }
    for (case, kills_old) in [("new epoch killed", false), ("both epochs killed", true)] {
        check_outage(case, async || {
            let mesh = Mesh::start(envoy(), &[]).await;
            let load = Load::start(mesh.port);
            let (old, new) = mesh.two_epochs().await;
            let killed = if kills_old { vec![old, new] } else { vec![new] };
            let outage = mesh.outage(&killed).await;
            report(case, outage, load).await;
            mesh.epoch(u32::from(!kills_old), "LIVE").await;
            (outage, mesh.first_start)
        })
        .await;
    }
}

#[tokio::test]
async fn requests_are_answered_again_when_the_old_epoch_is_killed_while_the_new_one_starts() {
    if servers::without("envoy") {
        return;
    }
    let case = "old epoch killed while the new one starts";
    check_outage(case, async || {
        let mut mesh = Mesh::start(envoy(), &[]).await;
        let load = Load::start(mesh.port);
        let old = mesh.agent.new_envoy(&[]).await;
        // The new epoch has connected to the old one, and waits for its configuration.
        let control_plane = mesh.discovery.process().id();
        signal(control_plane, "STOP");
        mesh.rotate();
        mesh.epoch(1, "PRE_INITIALIZING").await;
        let new = mesh.newer(old);
        let at = Instant::now();
        signal(old, "KILL");
        signal(control_plane, "CONT");
        gone(old).await;
        gone(new).await;
        answered(mesh.port).await;
        let outage = at.elapsed();
        report(case, outage, load).await;
        mesh.epoch(0, "LIVE").await;
        // The next rotation works.
        mesh.rotate();
        mesh.epoch(1, "LIVE").await;
        answered(mesh.port).await;
        (outage, mesh.first_start)
    })
    .await;
}

#[tokio::test]
async fn old_epoch_survives_the_death_of_a_starting_one() {
    if servers::without("envoy") {
        return;
    }
    let mut mesh = Mesh::start(envoy(), &[]).await;
    let load = Load::start(mesh.port);
    let old = mesh.agent.new_envoy(&[]).await;
    // A new epoch waits for its configuration.
    let control_plane = mesh.discovery.process().id();
    signal(control_plane, "STOP");
    mesh.rotate();
    mesh.epoch(1, "PRE_INITIALIZING").await;
    signal(mesh.newer(old), "KILL");
    mesh.agent.logs("the previous epoch of Envoy keeps running", 1).await;
    mesh.agent.logs("--restart-epoch\", \"1\"", 2).await;
    signal(control_plane, "CONT");
    mesh.epoch(1, "LIVE").await;
    check_lost(load.end().await, "new epoch killed while starting");
}

#[tokio::test]
async fn all_epochs_are_dead_before_the_next_one_starts() {
    if servers::without("envoy") {
        return;
    }
    let mut mesh = Mesh::start(envoy(), &[]).await;
    let old = mesh.agent.new_envoy(&[]).await;
    let control_plane = mesh.discovery.process().id();
    signal(control_plane, "STOP");
    mesh.rotate();
    mesh.epoch(1, "PRE_INITIALIZING").await;
    let new = mesh.newer(old);
    // It must not wait for its dead parent, nor be taken for the parent of the next one, even if it ignores SIGTERM.
    signal(new, "STOP");
    signal(old, "KILL");
    gone(new).await;
    mesh.agent.logs("--restart-epoch\", \"0\"", 2).await;
    signal(control_plane, "CONT");
    answered(mesh.port).await;
    mesh.epoch(0, "LIVE").await;
}

/// A binary that runs Envoy, except for epoch 1 while the file exists.
fn failing(folder: &Path, instead: &str) -> (PathBuf, PathBuf) {
    let mark = folder.join("fail");
    std::fs::write(&mark, "").unwrap();
    let script = format!(
        "case \"$*\" in *--restart-epoch\\ 1*) if [ -e {} ]; then {instead}; fi;; esac\nexec {} \"$@\"",
        mark.display(),
        envoy().display()
    );
    (stub(folder, &script), mark)
}

#[tokio::test]
async fn old_epoch_survives_a_new_one_that_cannot_start() {
    if servers::without("envoy") {
        return;
    }
    for (case, instead, reason) in [
        ("new epoch exits", "exit 7", "Envoy exited with code 7"),
        ("new epoch hangs", "exec sleep 1000", "Envoy did not open its admin port within 5s"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (binary, mark) = failing(folder.path(), instead);
        let mut mesh = Mesh::start(binary, &[]).await;
        let load = Load::start(mesh.port);
        mesh.rotate();
        mesh.agent.logs(reason, 1).await;
        mesh.agent.ready().await;
        std::fs::remove_file(mark).unwrap();
        mesh.epoch(1, "LIVE").await;
        check_lost(load.end().await, case);
    }
}

#[tokio::test]
async fn old_epoch_keeps_its_admin_port_when_a_new_bootstrap_is_invalid() {
    if servers::without("envoy") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("bootstrap.json");
    let seed = Agent::start(&AgentSetup { binary: envoy(), ..AgentSetup::default() });
    let generated = seed.config_path().join("envoy-rev0.json");
    // The agent may still be writing it.
    let text = wait::until("a bootstrap", async || {
        let text = std::fs::read_to_string(&generated).map_err(|e| e.to_string())?;
        serde_json::from_str::<serde_json::Value>(&text).map(|_| text).map_err(|e| e.to_string())
    })
    .await;
    // Parameters take the place of what differs between two agents.
    let own = seed.config_path().display().to_string();
    let text = text.replace(&format!(":{}}}", seed.admin), ":{{.config.ProxyAdminPort}}}");
    let text = text.replace(&format!(":{}}}", seed.status), ":{{.config.StatusPort}}}");
    let text = text.replace(&own, "{{.config.ConfigPath}}");
    drop(seed);
    std::fs::write(&template, &text).unwrap();
    let mut mesh = Mesh::start(envoy(), &["--templateFile", template.to_str().unwrap()]).await;
    let load = Load::start(mesh.port);
    // Envoy parses it, and rejects it only after it has closed the admin port of its parent.
    std::fs::write(&template, text.replacen("\"STATIC\"", "\"ORIGINAL_DST\"", 1)).unwrap();
    mesh.rotate();
    mesh.agent.logs("Envoy rejected its bootstrap and was not started", 2).await;
    mesh.agent.ready().await;
    mesh.epoch(0, "LIVE").await;
    std::fs::write(&template, text).unwrap();
    mesh.epoch(1, "LIVE").await;
    check_lost(load.end().await, "new bootstrap invalid");
}
