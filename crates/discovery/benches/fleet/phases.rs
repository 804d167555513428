//! The measured phases. CPU time is that of the server alone; the simulated proxies run on the same machine.

use std::time::{Duration, Instant};

use api::TypeUrl;
use testkit::fleet::mesh::{ControlPlane, SimulatedMesh};
use testkit::fleet::staleness::Arrivals;
use testkit::fleet::{Fleet, FleetOptions, SlowReaders};
use testkit::trend::slope;
use testkit::wait;

use crate::report::{Figure, Series, Unit};

/// The service whose endpoints and routes change.
pub(crate) const CHANGED: usize = 7;
const CHURN_CHANGES: u32 = 100;
/// Time in which a slow reader can be disconnected: several times the server's limit for sending.
const SLOW_TIME: Duration = Duration::from_secs(20);
/// Samples of a churn.
const SAMPLES: u32 = 60;

/// One fleet on one server. The fleet is dropped first, so that its streams end before the server does.
pub(crate) struct Run<'a> {
    pub(crate) figures: Vec<Figure>,
    pub(crate) series: Vec<Series>,
    mesh: &'a SimulatedMesh,
    fleet: Fleet,
    server: ControlPlane,
}

impl<'a> Run<'a> {
    /// Connects the fleet to a server and measures it.
    pub(crate) async fn sync(mesh: &'a SimulatedMesh, server: ControlPlane, options: FleetOptions) -> Run<'a> {
        let before = cpu(&server);
        let owned = owned(&server);
        let begun = Instant::now();
        let fleet = Fleet::connect(server.grpc, options).await;
        let took = begun.elapsed();
        fleet.settle(&server.process).await;
        let figures = vec![
            Figure::new("start to ready: time", Unit::Seconds, server.start.as_secs_f64()),
            Figure::new("start to ready: CPU", Unit::Seconds, before.as_secs_f64()),
            Figure::new("memory without proxies (RssAnon)", Unit::Mebibytes, owned),
            Figure::new("sync: CPU", Unit::Seconds, (cpu(&server) - before).as_secs_f64()),
            Figure::new("sync: time", Unit::Seconds, took.as_secs_f64()),
            Figure::new("sync: sent", Unit::Mebibytes, fleet.bytes() as f64 / f64::from(1 << 20)),
            Figure::new("memory with proxies (RssAnon)", Unit::Mebibytes, self::owned(&server)),
            Figure::new("memory with proxies (VmRSS)", Unit::Mebibytes, mib(server.process.memory_kib())),
        ];
        Run { figures, series: Vec::new(), mesh, fleet, server }
    }

    /// Changes one endpoint again and again, each time after all proxies have the change before.
    pub(crate) async fn endpoint(&mut self, rounds: usize) {
        let (before, mut arrivals) = (cpu(&self.server), Vec::new());
        for _ in 0..rounds {
            let (begun, change) = (Instant::now(), self.fleet.staleness().change(CHANGED));
            self.mesh.change_endpoint(CHANGED, change).await;
            arrivals.extend(self.fleet.arrivals(&TypeUrl::ENDPOINT, begun).await);
        }
        self.changed("one endpoint", before, arrivals, rounds).await;
    }

    /// Changes one VirtualService that all proxies see.
    pub(crate) async fn route(&mut self, rounds: usize) {
        let mut arrivals = Vec::new();
        // The first change creates the object.
        let begun = Instant::now();
        self.mesh.change_route(CHANGED, 0).await;
        self.fleet.arrivals(&TypeUrl::ROUTE, begun).await;
        self.fleet.settle(&self.server.process).await;
        let before = cpu(&self.server);
        for round in 1..=rounds {
            let begun = Instant::now();
            self.mesh.change_route(CHANGED, round).await;
            arrivals.extend(self.fleet.arrivals(&TypeUrl::ROUTE, begun).await);
        }
        self.changed("one VirtualService", before, arrivals, rounds).await;
    }

    async fn changed(&mut self, what: &str, before: Duration, mut arrivals: Vec<Duration>, rounds: usize) {
        self.fleet.settle(&self.server.process).await;
        let each = millis(cpu(&self.server) - before) / rounds as f64;
        arrivals.sort();
        let at = |share: f64| millis(arrivals[((arrivals.len() - 1) as f64 * share) as usize]);
        self.figures.extend([
            Figure::new(format!("{what}: CPU"), Unit::Milliseconds, each),
            Figure::new(format!("{what}: median"), Unit::Milliseconds, at(0.5)),
            Figure::new(format!("{what}: p99"), Unit::Milliseconds, at(0.99)),
        ]);
    }

    /// Changes endpoints of `spread` services in turn, this often a second.
    pub(crate) async fn churn(&mut self, a_second: u32, time: Duration, spread: usize) {
        let name = format!("churn, {a_second} changes/s of {spread} services for {:.0} s", time.as_secs_f64());
        let (first, before) = (self.fleet.staleness().arrivals(), cpu(&self.server));
        let mut samples = ChurnSamples::new(&self.server, first.clone(), time / SAMPLES);
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / a_second);
        let changes = (time.as_secs_f64() * f64::from(a_second)) as u64;
        for number in 0..changes {
            ticks.tick().await;
            let service = (CHANGED + number as usize % spread) % self.mesh.services();
            let change = self.fleet.staleness().change(service);
            self.mesh.change_endpoint(service, change).await;
            samples.take(&self.fleet, &self.server);
        }
        let achieved = changes as f64 / samples.begun.elapsed().as_secs_f64();
        self.fleet.settle(&self.server.process).await;
        let arrived = self.fleet.staleness().arrivals().since(&first);
        let late = |share| arrived.percentile(share).map_or(f64::NAN, millis);
        let missing = (changes * self.fleet.len() as u64).saturating_sub(arrived.count());
        let used = (cpu(&self.server) - before).as_secs_f64();
        self.figures.extend([
            Figure::new(format!("{name}: staleness median"), Unit::Milliseconds, late(0.5)),
            Figure::new(format!("{name}: staleness p99"), Unit::Milliseconds, late(0.99)),
            Figure::new(format!("{name}: staleness p99 of the worst interval"), Unit::Milliseconds, samples.worst()),
            Figure::new(format!("{name}: changes that proxies never got"), Unit::Count, missing as f64),
            Figure::new(format!("{name}: CPU"), Unit::Seconds, used),
            Figure::new(format!("{name}: achieved rate"), Unit::ASecond, achieved),
        ]);
        if time > Duration::from_secs(30) {
            let growth = samples.growth();
            self.figures.push(Figure::new(format!("{name}: growth of RssAnon"), Unit::MebibytesAMinute, growth));
            self.series.extend(samples.series());
        }
    }

    /// The churn of the comparison: one service, 100 changes a second for 10 seconds.
    pub(crate) async fn short_churn(&mut self) {
        self.churn(CHURN_CHANGES, Duration::from_secs(10), 1).await;
    }

    /// Cuts all streams; the proxies return with everything they hold.
    pub(crate) async fn reconnect(&mut self) {
        let (before, bytes) = (cpu(&self.server), self.fleet.bytes());
        self.fleet.reconnect().await;
        self.fleet.settle(&self.server.process).await;
        let each = (self.fleet.bytes() - bytes) as f64 / self.fleet.len() as f64;
        self.figures.extend([
            Figure::new("reconnect: CPU", Unit::Seconds, (cpu(&self.server) - before).as_secs_f64()),
            Figure::new("reconnect: sent to each", Unit::Bytes, each),
        ]);
    }

    pub(crate) fn slow_readers(&self) -> SlowReaders {
        self.fleet.slow_readers()
    }

    /// Fails unless the slow readers were really there since an earlier time: each has read something, and those that the
    /// server must keep had one stream all the time. Of the others it is measured how many streams end, with time for one.
    pub(crate) async fn note_slow_readers(&mut self, before: &SlowReaders, are_kept: bool) {
        let begun = Instant::now();
        let check = async || {
            let now = self.fleet.slow_readers();
            let have_read = now.read.iter().zip(&before.read).all(|(now, before)| now > before);
            let is_right = match are_kept {
                true => now.ended == 0 && now.connected == now.read.len(),
                false => now.ended > before.ended || begun.elapsed() > SLOW_TIME,
            };
            if have_read && is_right { Ok(now) } else { Err(format!("before {before:?}, now {now:?}")) }
        };
        let now = wait::until_within(2 * SLOW_TIME, "slow readers as expected", check).await;
        let ended = now.ended - before.ended;
        let read: u64 = now.read.iter().zip(&before.read).map(|(now, before)| now - before).sum();
        self.figures.extend([
            Figure::new("slow readers with a stream at the end", Unit::Count, now.connected as f64),
            Figure::new("slow readers: streams that ended meanwhile", Unit::Count, ended as f64),
            Figure::new("slow readers: read meanwhile by each", Unit::Bytes, read as f64 / now.read.len() as f64),
        ]);
    }
}

/// Memory and staleness at intervals of a churn.
struct ChurnSamples {
    begun: Instant,
    every: Duration,
    taken: u32,
    last: Arrivals,
    /// Over minutes, in MiB.
    memory: Vec<(f64, f64)>,
    /// Over minutes, in milliseconds: median and 99th percentile of the interval.
    staleness: [Vec<(f64, f64)>; 2],
}

impl ChurnSamples {
    fn new(server: &ControlPlane, last: Arrivals, every: Duration) -> ChurnSamples {
        let (memory, staleness) = (vec![(0.0, owned(server))], Default::default());
        ChurnSamples { begun: Instant::now(), every, taken: 0, last, memory, staleness }
    }

    /// Takes a sample if an interval is over.
    fn take(&mut self, fleet: &Fleet, server: &ControlPlane) {
        let elapsed = self.begun.elapsed();
        if elapsed < self.every * (self.taken + 1) {
            return;
        }
        self.taken += 1;
        let minutes = elapsed.as_secs_f64() / 60.0;
        self.memory.push((minutes, owned(server)));
        let now = fleet.staleness().arrivals();
        let arrived = now.since(&self.last);
        for (share, points) in [0.5, 0.99].into_iter().zip(&mut self.staleness) {
            points.extend(arrived.percentile(share).map(|late| (minutes, millis(late))));
        }
        self.last = now;
    }

    /// MiB a minute, by the best line through the samples after the first third, in which caches fill.
    fn growth(&self) -> f64 {
        slope(&self.memory[self.memory.len() / 3..]).unwrap_or(f64::NAN)
    }

    fn worst(&self) -> f64 {
        self.staleness[1].iter().map(|(_, late)| *late).fold(0.0, f64::max)
    }

    fn series(self) -> Vec<Series> {
        let [median, p99] = self.staleness;
        vec![
            Series { label: "memory (RssAnon, MiB)".to_owned(), points: self.memory },
            Series { label: "staleness, median (ms)".to_owned(), points: median },
            Series { label: "staleness, p99 (ms)".to_owned(), points: p99 },
        ]
    }
}

fn cpu(server: &ControlPlane) -> Duration {
    server.process.cpu().unwrap_or_default()
}

/// MiB that the server owns.
fn owned(server: &ControlPlane) -> f64 {
    mib(server.process.owned_kib())
}

fn mib(kib: Option<u64>) -> f64 {
    kib.unwrap_or_default() as f64 / 1024.0
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
