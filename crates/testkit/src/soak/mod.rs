//! A long mixed load on one server: proxies that come and go, proxies that reject, changes of endpoints, routes and
//! services, and real Envoys with requests. Shows whether memory grows and whether a request fails.

mod traffic;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::discovery::{DiscoveryOptions, DiscoveryProcess};
use crate::envoy::XdsTransport;
use crate::fleet::mesh::{service_entry, virtual_service};
use crate::fleet::{Fleet, FleetOptions};
use crate::plot::{PlottedLine, Scale, plot};
use crate::promises::History;
use crate::promises::proxy::{ProxyOptions, ProxyTarget, RecordedProxy};
use crate::trend::slope;
use traffic::Traffic;

const SERVICES: usize = 100;
/// Time between two changes.
const PAUSE: Duration = Duration::from_millis(100);
const SAMPLES_EVERY: Duration = Duration::from_secs(5);
const RECONNECTS_EVERY: Duration = Duration::from_secs(30);
/// Of 100 responses, how many a rejecting proxy rejects.
const REJECTS: u8 = 10;

#[derive(Clone, Copy, Debug)]
pub struct SoakOptions {
    pub time: Duration,
    pub proxies: usize,
    pub seed: u64,
}

/// Megabytes of resident memory in ten minutes.
pub const MOST_GROWTH: f64 = 0.5;

/// Memory of the server at some time, in megabytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemorySample {
    pub minutes: f64,
    pub resident: f64,
    /// Without pages of files.
    pub owned: f64,
}

#[derive(Debug, Default)]
pub struct SoakReport {
    pub samples: Vec<MemorySample>,
    pub changes: usize,
    pub reconnects: usize,
    pub requests: u64,
    /// Requests that failed, with the reason of the first.
    pub failed: u64,
    pub first_failure: Option<String>,
}

impl SoakReport {
    /// Growth of resident memory in megabytes in ten minutes: the slope of the best line through the samples after the
    /// first third, in which caches fill.
    pub fn slope(&self) -> f64 {
        self.slope_of(|sample| sample.resident)
    }

    fn slope_of(&self, megabytes: impl Fn(&MemorySample) -> f64) -> f64 {
        let settled = &self.samples[self.samples.len() / 3..];
        let points: Vec<(f64, f64)> = settled.iter().map(|sample| (sample.minutes, megabytes(sample))).collect();
        10.0 * slope(&points).unwrap_or_default()
    }

    /// What is not as it must be: memory that grows, or a request that failed.
    pub fn goals(&self) -> Result<(), String> {
        if self.failed > 0 {
            return Err(format!("{} of {} requests failed", self.failed, self.requests));
        }
        let slope = self.slope();
        if slope > MOST_GROWTH {
            return Err(format!("RSS grew by {slope:.2} MB in ten minutes, at most {MOST_GROWTH} MB are allowed"));
        }
        Ok(())
    }

    /// The samples as a picture.
    pub fn plot(&self) -> String {
        let line = |label: &str, megabytes: fn(&MemorySample) -> f64| PlottedLine {
            label: label.to_owned(),
            points: self.samples.iter().map(|sample| (sample.minutes, megabytes(sample))).collect(),
        };
        let lines = [line("RSS (MB)", |sample| sample.resident), line("RssAnon (MB)", |sample| sample.owned)];
        plot("Memory of pilot-discovery", "minutes", Scale::Linear, &lines)
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.samples.last().map(|sample| sample.minutes).unwrap_or_default();
        let megabytes = || self.samples.iter().map(|sample| sample.resident);
        write!(
            f,
            "{last:.1} min: {} changes, {} reconnects, {} requests of which {} failed; RSS {:.1} to {:.1} MB, slope \
             {:+.2} MB in ten minutes (RssAnon {:+.2}), at most {MOST_GROWTH} allowed",
            self.changes,
            self.reconnects,
            self.requests,
            self.failed,
            megabytes().fold(f64::INFINITY, f64::min),
            megabytes().fold(0.0, f64::max),
            self.slope(),
            self.slope_of(|sample| sample.owned)
        )?;
        self.first_failure.iter().try_for_each(|failure| write!(f, "; first failure: {failure}"))
    }
}

/// Runs the load on a new server of this binary.
pub async fn run(binary: &Path, options: SoakOptions) -> SoakReport {
    let files = (0..SERVICES).map(|service| (format!("s{service}.yaml"), service_entry(service, None))).collect();
    // Envoys have no certificates here.
    let mesh = "enableAutoMtls: false\n".to_owned();
    let setup = DiscoveryOptions { files, mesh, ..DiscoveryOptions::default() };
    let mut server = DiscoveryProcess::start(&binary.display().to_string(), setup).await;
    let rejecting = options.proxies / 10;
    let moving = options.proxies / 3;
    let steady = Fleet::connect(server.grpc(), fleet(options.proxies - rejecting - moving)).await;
    let mut moving = Fleet::connect(server.grpc(), fleet(moving)).await;
    let (_target, targets) = watch::channel(ProxyTarget { address: server.grpc(), replica: 0 });
    let history = History::discarding();
    let _rejecting: Vec<RecordedProxy> =
        (0..rejecting).map(|number| rejecting_proxy(&history, number, targets.clone())).collect();
    let mut traffic = Traffic::start(&server).await;
    let mut load = Load { random: fastrand::Rng::with_seed(options.seed), changes: 0, steady };
    let (begun, mut report) = (Instant::now(), SoakReport::default());
    let (mut sampled, mut reconnected) = (begun, begun);
    while begun.elapsed() < options.time {
        load.change(&server);
        traffic.change(&server, &mut load.random);
        server.process().check_alive();
        if sampled.elapsed() > SAMPLES_EVERY {
            sampled = Instant::now();
            let megabytes = |kib: Option<u64>| kib.unwrap_or_default() as f64 / 1024.0;
            let (resident, owned) = (server.process().memory_kib(), server.process().owned_kib());
            report.samples.push(MemorySample {
                minutes: begun.elapsed().as_secs_f64() / 60.0,
                resident: megabytes(resident),
                owned: megabytes(owned),
            });
        }
        if reconnected.elapsed() > RECONNECTS_EVERY {
            reconnected = Instant::now();
            moving.reconnect().await;
            report.reconnects += moving.len();
            (report.changes, report.requests, report.failed) = (load.changes, traffic.requests(), traffic.failed());
            println!("{report}");
        }
        tokio::time::sleep(PAUSE).await;
    }
    (report.changes, report.requests, report.failed) = (load.changes, traffic.requests(), traffic.failed());
    report.first_failure = traffic.first_failure();
    report
}

fn fleet(proxies: usize) -> FleetOptions {
    FleetOptions { workloads: proxies / 2, replicas: proxies - proxies / 2, ..FleetOptions::default() }
}

fn rejecting_proxy(history: &History, number: usize, targets: watch::Receiver<ProxyTarget>) -> RecordedProxy {
    let transport = if number.is_multiple_of(2) { XdsTransport::Delta } else { XdsTransport::Sotw };
    let mut options = ProxyOptions::sidecar(&format!("rejecting{number}"), 1000 + number, transport);
    (options.rejects, options.seed) = (REJECTS, number as u64);
    RecordedProxy::start(history, options, targets)
}

/// The changes of the mesh.
struct Load {
    random: fastrand::Rng,
    changes: usize,
    /// Kept connected; it numbers the changes.
    steady: Fleet,
}

impl Load {
    fn change(&mut self, server: &DiscoveryProcess) {
        let service = self.random.usize(..SERVICES);
        self.changes += 1;
        let staleness = Arc::clone(self.steady.staleness());
        match self.random.u8(..20) {
            0 => server
                .write(&format!("s{service}-route.yaml"), &virtual_service(service, self.changes % 60).to_string()),
            // A further service comes or goes.
            1 => server.write("extra.yaml", &service_entry(SERVICES + service, None)),
            2 => server.write("extra.yaml", "# nothing\n"),
            3 => server.write("broken.yaml", "kind: [unclosed\n"),
            _ => {
                let change = staleness.change(service);
                server.write(&format!("s{service}.yaml"), &service_entry(service, Some(change)));
            }
        }
    }
}
