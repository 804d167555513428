//! Leaves, intermediates and the root are replaced while requests pass between real Envoys, the CA is away for a while, and
//! an Envoy is restarted meanwhile: no request and no handshake fails.
//!
//! The long form takes a minute and more: `cargo test --workspace --test trust -- --ignored rotation_for_a_minute`.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use testkit::backend::HttpBackend;
use testkit::clock::skewed;
use testkit::{servers, wait};
use trust::certificate::Certificate;

use crate::files::Ca;
use crate::fixture::Mesh;
use crate::loaded_mesh::{ControlPlane, Load, MeshPorts, Renewal, Sidecar};

/// How long everything takes.
#[derive(Clone, Copy)]
struct Timing {
    renewal: Renewal,
    /// Time without a CA.
    outage: Duration,
    /// The load lasts at least this long.
    load: Duration,
    /// How far the clocks of both servers are ahead of those of the Envoys, in seconds.
    skew: i64,
}

const SHORT: Timing = Timing {
    renewal: Renewal { lifetime: 40, ratio: 0.96 },
    outage: Duration::from_secs(3),
    load: Duration::ZERO,
    skew: 0,
};

/// A leaf every five seconds: those of a server whose clock is ahead end later, so they are requested for a shorter time.
const fn long(skew: i64) -> Timing {
    let renewal = Renewal { lifetime: 100 - skew, ratio: 0.95 };
    Timing { renewal, outage: Duration::from_secs(20), load: Duration::from_secs(60), skew }
}

#[tokio::test(flavor = "multi_thread")]
async fn rotation_under_load_loses_no_request() {
    rotate(SHORT).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute"]
async fn rotation_for_a_minute_loses_no_request() {
    rotate(long(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute"]
async fn rotation_for_a_minute_with_a_fast_clock_loses_no_request() {
    rotate(long(90)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute"]
async fn rotation_for_a_minute_with_a_slow_clock_loses_no_request() {
    rotate(long(-90)).await;
}

/// Everything that runs.
struct Scene {
    control: ControlPlane,
    sidecars: Vec<Sidecar>,
    backends: [HttpBackend; 2],
    ports: MeshPorts,
    serials: BTreeSet<String>,
}

impl Scene {
    async fn start(root: &Ca, timing: Timing) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        root.write(&folder.path().join("cacerts"), &root.root.pem());
        let mut env = skewed(folder.path(), timing.skew);
        env.push(("ISTIOD_CUSTOM_HOST".to_owned(), "127.0.0.1".to_owned()));
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (&**name, &**value)).collect();
        let backends = [HttpBackend::start("one").await, HttpBackend::start("two").await];
        let ports = MeshPorts::free();
        let files = vec![
            ("service.yaml".to_owned(), ports.service(&[1, 2])),
            ("sidecars.yaml".to_owned(), ports.sidecars([&backends[0], &backends[1]])),
        ];
        let mesh = Mesh::start_with(folder, &env, files).await;
        let (ca, address) = mesh.second(&env).await;
        let mut sidecars = Vec::new();
        for index in 0..3 {
            sidecars.push(Sidecar::start(&mesh, address, index, &root.root.pem(), timing.renewal).await);
        }
        Scene { control: ControlPlane { mesh, ca }, sidecars, backends, ports, serials: BTreeSet::new() }
    }

    /// Waits until the certificates that all agents wrote are like this, given as chain and roots.
    async fn all_have(&mut self, what: &str, is_expected: impl Fn(&str, &str) -> bool) {
        for sidecar in &mut self.sidecars {
            wait::until(what, async || {
                sidecar.log();
                let (chain, roots) = (sidecar.written("cert-chain.pem")?, sidecar.written("root-cert.pem")?);
                if !is_expected(&chain, &roots) {
                    return Err(chain + &roots);
                }
                // Envoy uses them too.
                let serial = |text: &str| Certificate::all_from_pem(text).map(|all| all[0].serial.clone());
                let (leaf, last) = (serial(&chain).unwrap(), roots.matches("BEGIN").count());
                let (leaves, trusted) = sidecar.serials().await?;
                let distinct = trusted.iter().collect::<BTreeSet<_>>().len();
                if leaves.iter().all(|used| !is_same_serial(used, &leaf)) || distinct < last {
                    return Err(format!("Envoy has {leaves:?} and {trusted:?}, not {leaf}"));
                }
                self.serials.insert(leaf);
                Ok(())
            })
            .await;
        }
    }

    /// A new intermediate under a root, with these trusted roots; returns when all sidecars have leaves of it.
    async fn replace(&mut self, issuer: &Ca, roots: &str) {
        let cacerts = self.control.mesh.path("cacerts");
        let intermediate = issuer.write(&cacerts, roots).replace("\r\n", "\n");
        let roots = roots.replace("\r\n", "\n");
        self.all_have("leaves of the new intermediate", |chain, found| {
            chain.contains(intermediate.trim()) && found.trim() == roots.trim()
        })
        .await;
    }

    /// The CA is away. One replica is taken out, its Envoy restarted, and it serves again with its old certificate.
    async fn outage(&mut self, timing: Timing) -> (u64, Vec<String>) {
        self.control.ca.process().kill();
        let begun = tokio::time::Instant::now();
        let before = self.sidecars[2].written("cert-chain.pem").unwrap();
        let failed = "the current certificate stays in use";
        wait::until("a failed renewal", async || {
            let log = self.sidecars[2].log();
            if log.contains(failed) { Ok(()) } else { Err(log) }
        })
        .await;
        self.control.mesh.server.write("service.yaml", &self.ports.service(&[1]));
        wait::until("no connection to the replica", async || {
            match self.sidecars[2].inbound_connections(self.ports).await? {
                0 => Ok(()),
                count => Err(format!("{count} connections")),
            }
        })
        .await;
        let handshakes = self.sidecars[2].handshakes().await;
        self.sidecars[2].restart_envoy().await;
        let served = self.backends[1].requests();
        self.control.mesh.server.write("service.yaml", &self.ports.service(&[1, 2]));
        wait::until("requests at the restarted replica", async || {
            if self.backends[1].requests() > served + 20 { Ok(()) } else { Err("none".to_owned()) }
        })
        .await;
        assert_eq!(self.sidecars[2].written("cert-chain.pem").unwrap(), before, "there was no CA");
        tokio::time::sleep_until(begun + timing.outage).await;
        self.control.ca.restart().await;
        handshakes
    }
}

/// Envoy prints serial numbers without leading zeros.
fn is_same_serial(shown: &str, serial: &str) -> bool {
    shown.trim_start_matches('0').eq_ignore_ascii_case(serial.trim_start_matches('0'))
}

async fn rotate(timing: Timing) {
    if servers::without("envoy") {
        return;
    }
    let (old, new) = (Ca::new(), Ca::new());
    let mut scene = Scene::start(&old, timing).await;
    scene.all_have("the first leaves", |_, _| true).await;
    let entrance = scene.ports.entrance();
    wait::until("the first response", async || {
        let reply =
            testkit::client::get(entrance, &format!("cart.shop.svc.cluster.local:{}", entrance.port()), "/").await?;
        if reply.status.is_success() { Ok(()) } else { Err(reply.body) }
    })
    .await;
    let load = Load::start(entrance);
    let both = old.root.pem() + &new.root.pem();
    // The intermediate twice, then the root in three steps, with an outage between.
    scene.replace(&old, &old.root.pem()).await;
    scene.replace(&old, &old.root.pem()).await;
    scene.replace(&old, &both).await;
    let mut handshakes = scene.outage(timing).await;
    scene.replace(&new, &both).await;
    scene.replace(&new, &new.root.pem()).await;
    while load.time() < timing.load {
        let before = fs::read_to_string(scene.control.mesh.path("front-0/certs/cert-chain.pem")).unwrap();
        scene.all_have("further leaves", |chain, _| chain != before).await;
    }
    let result = load.end().await;
    for sidecar in &scene.sidecars {
        let (count, failures) = sidecar.handshakes().await;
        handshakes.0 += count;
        handshakes.1.extend(failures);
    }
    eprintln!(
        "{} requests in {:?} ({:.0} a second), {} failed; {} handshakes, {} statistics of failures; {} leaves seen",
        result.sent,
        result.time,
        result.sent as f64 / result.time.as_secs_f64(),
        result.failures.len(),
        handshakes.0,
        handshakes.1.len(),
        scene.serials.len(),
    );
    assert_eq!(result.failures, Vec::<String>::new());
    assert_eq!(handshakes.1, Vec::<String>::new());
    assert!(result.sent > 100 && handshakes.0 > 20, "{} {}", result.sent, handshakes.0);
    assert!(scene.serials.len() >= 15, "{:?}", scene.serials);
    assert!(scene.backends.iter().all(|backend| backend.requests() > 20));
}
