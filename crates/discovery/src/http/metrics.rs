//! `/metrics` in Prometheus' text format: recorded metrics, and values that are read on request.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use api::TypeUrl;
use axum::extract::State;
use axum::response::Response;
use cli::{output, version};
use model::config::Kind;
use model::problem::Severity;
use model::snapshot::Snapshot;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use sources::health::{self, SourceHealth, SourceReport};

use super::Pages;
use super::debug::status::gap_counts;
use super::samples::{Labelled, counters, gauge, labelled};
use super::{histogram, process};
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
    Ok(histogram::with_gos_edges(&text))
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
        for (name, help, count) in gap_counts(&self.pilot, &world) {
            gauge(&mut encoder, name, help, count as f64)?;
        }
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
        self.problems(&mut encoder, &world)?;
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
        process::metrics(&mut encoder)
    }
}

/// Name, help and value of a metric of each source.
type OfSource = (&'static str, &'static str, fn(&SourceReport) -> f64);

const OF_SOURCES: [OfSource; 6] = [
    ("pilotage_source_synced", "Whether a source is synced", |r| number_of(r.state != health::SourceState::Syncing)),
    ("pilotage_source_stale", "Whether the last good state is served", |r| number_of(is_stale(r))),
    ("pilotage_source_age_seconds", "Seconds since the state of a source was last confirmed", age),
    ("pilotage_source_services", "Services of a registry", |r| r.counts.services as f64),
    ("pilotage_source_endpoints", "Endpoints of a registry", |r| r.counts.endpoints as f64),
    ("pilotage_source_watches", "Open watches and blocking queries", |r| r.counts.watches as f64),
];

const COUNTERS_OF_SOURCES: [OfSource; 2] = [
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
        for (name, help, of) in COUNTERS_OF_SOURCES {
            let values: Vec<Labelled<'_>> = labels.iter().map(|l| &l[..]).zip(reports.iter().map(of)).collect();
            counters(encoder, name, help, &values)?;
        }
        registry_events(encoder, &reports)?;
        let (fetched, failed) =
            reports.iter().map(|r| r.counts.key_fetches).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let help = "Fetches of JSON Web Key Sets that succeeded";
        counters(encoder, "pilot_jwks_resolver_network_fetch_success_total", help, &[(&[], fetched as f64)])?;
        let help = "Fetches of JSON Web Key Sets that failed";
        counters(encoder, "pilot_jwks_resolver_network_fetch_fail_total", help, &[(&[], failed as f64)])?;
        let (services, endpoints) =
            reports.iter().map(|r| r.counts.without_pod).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        gauge(encoder, "endpoint_no_pod", "Services with endpoints whose pod is not known", services as f64)?;
        let help = "Endpoints whose pod is not known; they are sent when it is";
        gauge(encoder, "pilot_k8s_endpoints_pending_pod", help, endpoints as f64)?;
        self.clusters(encoder, &reports)
    }

    /// Kubernetes clusters whose services are read.
    fn clusters(&self, encoder: &mut DescriptorEncoder<'_>, reports: &[SourceReport]) -> fmt::Result {
        let local = reports.iter().filter(|report| &*report.source.0 == "Kubernetes").count();
        let remote = self.pilot.sources().remotes().len();
        let (of_local, of_remote) = ([("cluster_type", "local")], [("cluster_type", "remote")]);
        let values: &[Labelled<'_>] = &[(&of_local, local as f64), (&of_remote, remote as f64)];
        labelled(encoder, "istiod_managed_clusters", "Kubernetes clusters that are read", values)
    }

    /// Current problems in the configuration.
    fn problems(&self, encoder: &mut DescriptorEncoder<'_>, world: &Snapshot) -> fmt::Result {
        let of = |severity: Severity| {
            world.problems.values().flatten().filter(|problem| problem.severity == severity).count() as f64
        };
        let labels = [Severity::Info, Severity::Warning, Severity::Error]
            .map(|severity| ([("severity", severity.as_str())], of(severity)));
        let values: Vec<Labelled<'_>> = labels.iter().map(|(labels, count)| (&labels[..], *count)).collect();
        labelled(encoder, "pilotage_problems", "Problems in the configuration, by severity", &values)
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

/// Upstream's names of kinds and events.
const REGISTRY_KINDS: [&str; 4] = ["Services", "EndpointSlice", "Pods", "Nodes"];
const REGISTRY_EVENTS: [&str; 3] = ["add", "update", "delete"];

/// Events of API servers, of all clusters together.
fn registry_events(encoder: &mut DescriptorEncoder<'_>, reports: &[SourceReport]) -> fmt::Result {
    let mut samples = Vec::new();
    for (kind, kind_name) in REGISTRY_KINDS.into_iter().enumerate() {
        for (event, event_name) in REGISTRY_EVENTS.into_iter().enumerate() {
            let count: u64 = reports.iter().map(|report| report.counts.registry_events[kind][event]).sum();
            if count > 0 {
                samples.push(([("type", kind_name), ("event", event_name)], count as f64));
            }
        }
    }
    let values: Vec<Labelled<'_>> = samples.iter().map(|(labels, count)| (&labels[..], *count)).collect();
    counters(encoder, "pilot_k8s_reg_events", "Events of Kubernetes services, endpoints, pods and nodes", &values)
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
