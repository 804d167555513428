//! `/metrics` in Prometheus' text format: recorded metrics, and values that are read on request.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use api::TypeUrl;
use axum::extract::State;
use axum::response::Response;
use cli::{output, version};
use model::config::Kind;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use sources::health::{self, SourceHealth, SourceReport};

use super::Pages;
use crate::metrics::short;
use crate::serve::clients::Connection;
use crate::serve::session::ControlPlane;
use crate::trust::{Trust, unix_now};

/// Not OpenMetrics, which does not allow counters without `_total`.
pub(super) const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Readers within this interval share one text.
const EDITION: Duration = Duration::from_millis(100);

pub(super) async fn page(State(pages): State<Pages>) -> Response {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let edition = u64::try_from(since_epoch.as_millis() / EDITION.as_millis()).unwrap_or_default();
    let shared = pages.clone();
    shared.0.metrics.read(edition, move || text(&pages).ok()).await
}

fn text(pages: &Pages) -> Result<String, fmt::Error> {
    let mut text = String::new();
    encode_registry(&mut text, pages.pilot().metrics().registry())?;
    encode(&mut text, pages.current())?;
    Ok(text)
}

/// Metrics that are read on request.
pub(super) fn current(pilot: Arc<ControlPlane>) -> Registry {
    let mut registry = Registry::default();
    if let Some(trust) = &pilot.trust {
        trust.metrics.register(&mut registry);
    }
    if let Some(registrar) = &pilot.registrar {
        registrar.metrics().register(&mut registry);
    }
    if let Some(metrics) = &pilot.webhook_metrics {
        metrics.register(&mut registry);
    }
    registry.register_collector(Box::new(CurrentValues { pilot, started: Instant::now() }));
    registry
}

struct CurrentValues {
    pilot: Arc<ControlPlane>,
    started: Instant,
}

impl fmt::Debug for CurrentValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").finish_non_exhaustive()
    }
}

impl Collector for CurrentValues {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let world = self.pilot.world().now().snapshot.clone();
        let routes = world.objects.of(Kind::VirtualService).count();
        gauge(&mut encoder, "pilot_services", "Services known", world.services.len() as f64)?;
        gauge(&mut encoder, "pilot_virt_services", "VirtualServices known", routes as f64)?;
        if let Some(trust) = &self.pilot.trust {
            trust_gauges(&mut encoder, trust)?;
        }
        let uptime = self.started.elapsed().as_secs_f64();
        gauge(&mut encoder, "istiod_uptime_seconds", "Seconds since the start", uptime)?;
        let line = version::line();
        labelled(&mut encoder, "pilot_info", "Version of this server", &[(&[("version", &line)], 1.0)])?;
        let build: &[(&str, &str)] = &[("component", "pilot"), ("tag", version::VERSION)];
        labelled(&mut encoder, "istio_build", "Version of a component", &[(build, 1.0)])?;
        let (held, known): (Vec<_>, Vec<_>) =
            world.credentials.iter().partition(|(_, credential)| credential.has_content());
        let help = "Secrets and ConfigMaps, by whether their certificates and keys are kept in memory";
        let yes: &[(&str, &str)] = &[("held", "true")];
        let no: &[(&str, &str)] = &[("held", "false")];
        labelled(&mut encoder, "pilotage_credentials", help, &[(yes, held.len() as f64), (no, known.len() as f64)])?;
        self.clients(&mut encoder)?;
        let problems = world.problems.values().map(Vec::len).sum::<usize>();
        gauge(&mut encoder, "pilot_total_rejected_configs", "Problems in configuration", problems as f64)?;
        let register = self.pilot.register();
        let objects: &[(&str, &str)] = &[("what", "object")];
        let resources: &[(&str, &str)] = &[("what", "resource")];
        let (many, few) = (register.objects(&world).len() as f64, register.resources().len() as f64);
        let help = "Objects and resources withheld from clients that rejected them";
        labelled(&mut encoder, "pilotage_quarantined", help, &[(objects, many), (resources, few)])?;
        let [resources, endpoints, routes] = self.pilot.views().layers().len().map(|count| count as f64);
        let (of_type, of_endpoints, of_routes) = ([("of", "resources")], [("of", "endpoints")], [("of", "routes")]);
        let layers: &[(&[(&str, &str)], f64)] =
            &[(&of_type, resources), (&of_endpoints, endpoints), (&of_routes, routes)];
        labelled(&mut encoder, "pilotage_layers", "Parts of the configuration that clients share", layers)?;
        self.sources(&mut encoder)?;
        let help = "Log lines dropped because the log was not read fast enough";
        let name = "pilotage_log_lines_dropped_total";
        let mut dropped = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        dropped.encode_gauge(&(output::dropped() as f64))?;
        process(&mut encoder)
    }
}

/// Name, help and value of a metric of each source.
type OfSource = (&'static str, &'static str, fn(&SourceReport) -> f64);

const OF_SOURCES: [OfSource; 8] = [
    ("pilotage_source_synced", "Whether a source is synced", |r| number_of(r.state != health::SourceState::Syncing)),
    ("pilotage_source_stale", "Whether the last good state is served", |r| number_of(is_stale(r))),
    ("pilotage_source_age_seconds", "Seconds since the state of a source was last confirmed", age),
    ("pilotage_source_services", "Services of a registry", |r| r.counts.services as f64),
    ("pilotage_source_endpoints", "Endpoints of a registry", |r| r.counts.endpoints as f64),
    ("pilotage_source_watches", "Open watches and blocking queries", |r| r.counts.watches as f64),
    ("pilotage_source_requests", "Requests sent", |r| r.counts.requests as f64),
    ("pilotage_source_restarts", "Restarts of a source after a failure", |r| r.counts.restarts as f64),
];

fn number_of(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

fn is_stale(report: &SourceReport) -> bool {
    matches!(report.state, health::SourceState::Stale { .. })
}

fn age(report: &SourceReport) -> f64 {
    report.last_seen.and_then(|seen| seen.elapsed().ok()).map_or(0.0, |age| age.as_secs_f64())
}

impl CurrentValues {
    fn sources(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let reports: Vec<SourceReport> = self.pilot.sources().healths().iter().map(SourceHealth::report).collect();
        let labels: Vec<[(&str, &str); 1]> = reports.iter().map(|r| [("source", &*r.source.0)]).collect();
        for (name, help, of) in OF_SOURCES {
            let values: Vec<Labelled<'_>> = labels.iter().map(|l| &l[..]).zip(reports.iter().map(of)).collect();
            labelled(encoder, name, help, &values)?;
        }
        Ok(())
    }

    fn clients(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let connections = self.pilot.clients().all();
        let mut versions: BTreeMap<&str, f64> = BTreeMap::new();
        for connection in &connections {
            let version = version_label(connection.proxy.meta("ISTIO_VERSION"));
            *versions.entry(at_most(MOST_VERSIONS, &versions, version)).or_default() += 1.0;
        }
        let values: Vec<([(&str, &str); 1], f64)> =
            versions.iter().map(|(v, count)| ([("version", *v)], *count)).collect();
        let values: Vec<Labelled<'_>> = values.iter().map(|(labels, count)| (&labels[..], *count)).collect();
        labelled(encoder, "pilot_xds", "Connected clients, by version", &values)?;
        OF_REFUSALS.iter().try_for_each(|kind| refusals(encoder, kind, &connections))
    }
}

/// Types whose rejections are counted by client, as in upstream.
const OF_REFUSALS: [TypeUrl; 4] = [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER, TypeUrl::ROUTE];
/// Number of clients with their own time series; further clients share one.
const MOST_NODES: usize = 1000;
/// Number of client versions with their own time series.
const MOST_VERSIONS: usize = 50;
const LONGEST_VERSION: usize = 64;
const OTHER: &str = "other";

/// Rejections by connected clients. A series ends with its client; upstream's stay forever.
fn refusals(encoder: &mut DescriptorEncoder<'_>, kind: &TypeUrl, connections: &[Arc<Connection>]) -> fmt::Result {
    let mut nodes: BTreeMap<&str, BTreeMap<i32, u64>> = BTreeMap::new();
    for connection in connections {
        let refused = connection.refusals(kind);
        if !refused.is_empty() {
            let node = nodes.entry(at_most(MOST_NODES, &nodes, &connection.proxy.id)).or_default();
            refused.into_iter().for_each(|(code, count)| *node.entry(code).or_default() += count);
        }
    }
    let counts = nodes.iter().flat_map(|(node, codes)| codes.iter().map(move |(code, count)| (*node, *code, *count)));
    let named = |(node, code, count)| (node, format!("{:?}", tonic::Code::from_i32(code)), count as f64);
    let counts: Vec<(&str, String, f64)> = counts.map(named).collect();
    let labels: Vec<[(&str, &str); 2]> = counts.iter().map(|(node, err, _)| [("node", *node), ("err", err)]).collect();
    let values: Vec<Labelled<'_>> = labels.iter().map(|l| &l[..]).zip(counts.iter().map(|(_, _, n)| *n)).collect();
    let (name, help) = (format!("pilot_xds_{}_reject", short(kind)), format!("Refused {}", kind.short()));
    labelled(encoder, &name, &help, &values)
}

/// The label if fewer than `most` are known, else `other`.
fn at_most<'a, V>(most: usize, known: &BTreeMap<&'a str, V>, label: &'a str) -> &'a str {
    if known.len() < most || known.contains_key(label) { label } else { OTHER }
}

/// The version that a client reports, if it looks like one.
fn version_label(version: Option<&str>) -> &str {
    let is_version = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_+".contains(&byte));
    match version {
        None | Some("") => "unknown",
        Some(version) if version.len() <= LONGEST_VERSION && is_version(version) => version,
        Some(_) => OTHER,
    }
}

/// Labels and value of a sample.
type Labelled<'a> = (&'a [(&'a str, &'a str)], f64);

/// Ends of certificates, and the step of a root's rotation.
fn trust_gauges(encoder: &mut DescriptorEncoder<'_>, trust: &Trust) -> fmt::Result {
    let Some(state) = trust.now() else { return Ok(()) };
    let now = unix_now();
    let roots = state.authority.roots().roots();
    let root = roots.iter().map(|root| root.not_after).min().unwrap_or_default();
    let chain = state.authority.chain().iter().map(|certificate| certificate.not_after).min().unwrap_or(root);
    let own = trust.own_certificate().map_or(0, |own| own.not_after);
    for (name, help, value) in [
        ("citadel_server_root_cert_expiry_timestamp", "End of the first root that expires, since 1970", root),
        ("citadel_server_root_cert_expiry_seconds", "Seconds until a root expires", root - now),
        ("citadel_server_cert_chain_expiry_timestamp", "End of the signing chain, since 1970", chain),
        ("citadel_server_cert_chain_expiry_seconds", "Seconds until the signing chain expires", chain - now),
        ("pilotage_own_certificate_expiry_timestamp", "End of this server's certificate, since 1970", own),
        ("pilotage_root_certificates", "Root certificates that the mesh trusts", roots.len() as i64),
    ] {
        gauge(encoder, name, help, value as f64)?;
    }
    let help = "Step of the replacement of a self-signed root: alone, announced or signing";
    let current: &[(&str, &str)] = &[("step", state.step.name())];
    labelled(encoder, "pilotage_root_rotation_step", help, &[(current, 1.0)])
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    let gauge = ConstGauge::new(value);
    gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

fn labelled(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, values: &[Labelled<'_>]) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        ConstGauge::new(*value).encode(metric.encode_family(labels)?)?;
    }
    Ok(())
}

/// Clock ticks per second in `/proc`: 100 on every Linux architecture.
const TICKS: f64 = 100.0;
const PAGE: f64 = 4096.0;

/// Standard process metrics from `/proc`; none if it cannot be read.
fn process(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The process name is in parentheses and may contain spaces.
    let fields: Vec<f64> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(1).map(number).collect();
    // Indexes count from the field after the state: user and system time, start time, virtual and resident size.
    if let [user, system, .., start, virtual_size, resident] = fields.get(10..=20).unwrap_or_default() {
        let (name, help) = ("process_cpu_seconds_total", "CPU time in seconds");
        let mut cpu = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        cpu.encode_gauge(&((user + system) / TICKS))?;
        gauge(encoder, "process_resident_memory_bytes", "Resident memory", resident * PAGE)?;
        gauge(encoder, "process_virtual_memory_bytes", "Virtual memory", *virtual_size)?;
        gauge(encoder, "process_start_time_seconds", "When the process started", started(*start))?;
    }
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    gauge(encoder, "process_open_fds", "Open file descriptors", open as f64)
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_default()
}

/// Start time since the epoch; `/proc` has it in ticks since boot.
fn started(ticks: f64) -> f64 {
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let since_boot = uptime.split_whitespace().next().map_or(0.0, number);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
    now - since_boot + ticks / TICKS
}
