//! The measured phases. CPU time is that of the server alone; the simulated proxies run on the same machine.

use std::time::{Duration, Instant};

use api::TypeUrl;
use testkit::fleet::mesh::{ControlPlane, SimulatedMesh};
use testkit::fleet::{Fleet, FleetOptions};

use crate::report::{Figure, Unit};

/// The service whose endpoints and routes change.
const CHANGED: usize = 7;
const CHURN_CHANGES: u32 = 100;

/// One fleet on one server. The fleet is dropped first, so that its streams end before the server does.
pub(crate) struct Run<'a> {
    pub(crate) figures: Vec<Figure>,
    mesh: &'a SimulatedMesh,
    fleet: Fleet,
    server: ControlPlane,
}

impl<'a> Run<'a> {
    /// Connects the fleet to a server and measures it.
    pub(crate) async fn sync(mesh: &'a SimulatedMesh, server: ControlPlane, options: FleetOptions) -> Run<'a> {
        let before = cpu(&server);
        let owned = mib(server.process.owned_kib());
        let begun = Instant::now();
        let fleet = Fleet::connect(server.grpc, options).await;
        let took = begun.elapsed();
        fleet.settle(&server.process).await;
        let figures = vec![
            Figure::new("memory without proxies (RssAnon)", Unit::Mebibytes, owned),
            Figure::new("sync: CPU", Unit::Seconds, (cpu(&server) - before).as_secs_f64()),
            Figure::new("sync: time", Unit::Seconds, took.as_secs_f64()),
            Figure::new("sync: sent", Unit::Mebibytes, fleet.bytes() as f64 / f64::from(1 << 20)),
            Figure::new("memory with proxies (RssAnon)", Unit::Mebibytes, mib(server.process.owned_kib())),
            Figure::new("memory with proxies (VmRSS)", Unit::Mebibytes, mib(server.process.memory_kib())),
        ];
        Run { figures, mesh, fleet, server }
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
        let each = (cpu(&self.server) - before).as_secs_f64() * 1000.0 / rounds as f64;
        arrivals.sort();
        let at = |share: f64| arrivals[((arrivals.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
        self.figures.extend([
            Figure::new(format!("{what}: CPU"), Unit::Milliseconds, each),
            Figure::new(format!("{what}: median"), Unit::Milliseconds, at(0.5)),
            Figure::new(format!("{what}: p99"), Unit::Milliseconds, at(0.99)),
        ]);
    }

    /// Changes endpoints of `spread` services in turn, this often a second.
    pub(crate) async fn churn(&mut self, a_second: u32, time: Duration, spread: usize) {
        self.fleet.staleness().clear();
        let (before, owned) = (cpu(&self.server), mib(self.server.process.owned_kib()));
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / a_second);
        let changes = time.as_secs() * u64::from(a_second);
        for number in 0..changes {
            ticks.tick().await;
            let service = (CHANGED + number as usize % spread) % self.mesh.services();
            let change = self.fleet.staleness().change(service);
            self.mesh.change_endpoint(service, change).await;
        }
        self.fleet.settle(&self.server.process).await;
        let staleness = self.fleet.staleness();
        let name = format!("churn, {a_second} changes/s of {spread} services for {} s", time.as_secs());
        let millis = |share| staleness.percentile(share).as_secs_f64() * 1000.0;
        let minutes = time.as_secs_f64() / 60.0;
        let growth = (mib(self.server.process.owned_kib()) - owned) / minutes;
        let figures = [
            Figure::new(format!("{name}: staleness median"), Unit::Milliseconds, millis(0.5)),
            Figure::new(format!("{name}: staleness p99"), Unit::Milliseconds, millis(0.99)),
            Figure::new(format!("{name}: CPU"), Unit::Seconds, (cpu(&self.server) - before).as_secs_f64()),
            Figure::new(format!("{name}: growth of RssAnon in a minute"), Unit::Mebibytes, growth),
        ];
        self.figures.extend(figures);
    }

    /// The churn of the table: one service, 100 changes a second for 10 seconds.
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
}

pub(crate) fn cpu(server: &ControlPlane) -> Duration {
    server.process.cpu().unwrap_or_default()
}

fn mib(kib: Option<u64>) -> f64 {
    kib.unwrap_or_default() as f64 / 1024.0
}
