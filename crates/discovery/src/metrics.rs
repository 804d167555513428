//! Counters and histograms recorded while serving, with upstream's names, labels and buckets, so that its dashboards and
//! Kiali work unchanged. Values that can be read at any time are in `http::metrics`.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::TypeUrl;
use model::change::{Batch, Change};
use model::config::Kind;
use model::problem::{Problem, Severity, Subject};
use model::snapshot::{Delta, Snapshot};
use parking_lot::{Mutex, RwLock};
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// A counter without the suffix `_total`, which the library would add and upstream's counters do not have.
#[derive(Clone, Debug, Default)]
pub struct PlainCounter(Arc<AtomicU64>);

impl PlainCounter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

impl EncodeMetric for PlainCounter {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.encode_gauge(&self.0.load(Ordering::Relaxed))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

impl prometheus_client::metrics::TypedMetric for PlainCounter {
    const TYPE: MetricType = MetricType::Counter;
}

/// `{type="cds"}`
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabel {
    r#type: String,
}

/// `{phase="send"}`
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

/// `{type="gateway",name="shop/web"}`
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConfigLabels {
    r#type: String,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    r#type: String,
    event: String,
}

type Counters<L> = Family<L, PlainCounter>;
type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

const PUSH_SECONDS: [f64; 8] = [0.01, 0.1, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0];
const PROXY_SECONDS: [f64; 8] = [0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0];
const INIT_SECONDS: [f64; 6] = [0.01, 0.1, 0.5, 1.0, 3.0, 5.0];
const ROUND_SECONDS: [f64; 8] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0];
const SIZES: [f64; 6] = [1.0, 10e3, 1e6, 4e6, 10e6, 40e6];

/// Number, sum and maximum of times since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct RecentTimes {
    count: AtomicU64,
    micros: AtomicU64,
    longest: AtomicU64,
}

impl RecentTimes {
    pub(crate) fn add(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.longest.fetch_max(micros, Ordering::Relaxed);
    }

    /// Number, mean and maximum in milliseconds; begins again.
    pub(crate) fn take(&self) -> (u64, f64, f64) {
        let [count, micros, longest] =
            [&self.count, &self.micros, &self.longest].map(|of| of.swap(0, Ordering::Relaxed));
        (count, micros as f64 / count.max(1) as f64 / 1000.0, longest as f64 / 1000.0)
    }
}

/// All recorded metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pushes: Counters<TypeLabel>,
    push_time: Histograms<TypeLabel>,
    send_time: Histogram,
    send_size: Histograms<TypeLabel>,
    queue_time: Histogram,
    convergence_time: Histogram,
    debounce_time: Histogram,
    init_time: Histogram,
    round_time: Histograms<PhaseLabel>,
    triggers: Counters<TypeLabel>,
    inbound_updates: Counters<TypeLabel>,
    config_events: Counters<EventLabels>,
    rejects: Counters<TypeLabel>,
    expired_nonces: Counters<TypeLabel>,
    refused_streams: Counters<TypeLabel>,
    internal_errors: PlainCounter,
    rejected_configs: Counters<ConfigLabels>,
    /// Times since the last sample: until clients were sent a change, and until they acknowledged it.
    pub(crate) recent_sends: RecentTimes,
    pub(crate) recent_acknowledgements: RecentTimes,
    /// Objects with their own time series in `rejected_configs`.
    rejected_names: Mutex<BTreeSet<(String, String)>>,
    /// Metrics of responses by type, found without computing labels.
    responses: RwLock<Vec<(TypeUrl, ResponseMetrics)>>,
    /// `round_time` of phase "send".
    send_round: Histogram,
}

/// Metrics of the responses of one type.
#[derive(Clone, Debug)]
struct ResponseMetrics {
    pushes: PlainCounter,
    size: Histogram,
    time: Histogram,
}

/// Number of objects with their own time series; further ones share one.
const MOST_REJECTED: usize = 1000;

impl Default for Metrics {
    fn default() -> Metrics {
        let timings = |edges: fn() -> Histogram| Histograms::new_with_constructor(edges);
        let round_time = Histograms::new_with_constructor(|| Histogram::new(ROUND_SECONDS));
        let send_round = round_time.get_or_create(&PhaseLabel { phase: "send" }).clone();
        let mut metrics = Metrics {
            registry: Registry::default(),
            pushes: Family::default(),
            push_time: timings(|| Histogram::new(PUSH_SECONDS)),
            send_time: Histogram::new(PUSH_SECONDS),
            send_size: timings(|| Histogram::new(SIZES)),
            queue_time: Histogram::new(PROXY_SECONDS),
            convergence_time: Histogram::new(PROXY_SECONDS),
            debounce_time: Histogram::new(PUSH_SECONDS),
            init_time: Histogram::new(INIT_SECONDS),
            round_time,
            send_round,
            responses: RwLock::default(),
            triggers: Family::default(),
            inbound_updates: Family::default(),
            config_events: Family::default(),
            rejects: Family::default(),
            expired_nonces: Family::default(),
            refused_streams: Family::default(),
            internal_errors: PlainCounter::default(),
            rejected_configs: Family::default(),
            recent_sends: RecentTimes::default(),
            recent_acknowledgements: RecentTimes::default(),
            rejected_names: Mutex::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let all = &mut self.registry;
        all.register("pilot_xds_pushes", "Responses sent to clients, by type", self.pushes.clone());
        all.register("pilot_xds_push_time", "Seconds to make and send a response", self.push_time.clone());
        let help = "Seconds until the connection takes a response";
        all.register("pilot_xds_send_time", help, self.send_time.clone());
        all.register("pilot_xds_config_size_bytes", "Bytes of responses", self.send_size.clone());
        all.register(
            "pilot_proxy_queue_time",
            "Seconds until a change is processed for a client",
            self.queue_time.clone(),
        );
        let help = "Seconds from a change until it is sent to a client";
        all.register("pilot_proxy_convergence_time", help, self.convergence_time.clone());
        let help = "Seconds from the first change of a push until all of them are applied";
        all.register("pilot_debounce_time", help, self.debounce_time.clone());
        all.register("pilot_pushcontext_init_seconds", "Seconds to apply changes", self.init_time.clone());
        let help = "Seconds of a push round, by phase: to apply changes (ingest), and from then until a client was sent them (send)";
        all.register("pilotage_round_seconds", help, self.round_time.clone());
        all.register("pilot_push_triggers", "Changes that were pushed, by reason", self.triggers.clone());
        all.register("pilot_inbound_updates", "Updates received from sources", self.inbound_updates.clone());
        all.register("pilot_k8s_cfg_events", "Changes of configuration objects", self.config_events.clone());
        all.register("pilot_total_xds_rejects", "Responses rejected by clients (NACK)", self.rejects.clone());
        all.register("pilot_xds_expired_nonce", "Requests with an outdated nonce", self.expired_nonces.clone());
        let help = "Streams ended because of their client, by gRPC status";
        all.register("pilotage_refused_streams", help, self.refused_streams.clone());
        let help = "Streams ended by an error of this server";
        all.register("pilot_total_xds_internal_errors", help, self.internal_errors.clone());
        let help = "Objects that were rejected, or ignored in part, counted when they change";
        all.register("pilot_total_rejected_configs", help, self.rejected_configs.clone());
    }

    /// The metrics in order of registration.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Records a response that was sent, and how long it took to make.
    pub fn sent(&self, kind: &TypeUrl, bytes: usize, took: Option<Duration>) {
        let known = self.responses.read().iter().find(|(of, _)| of == kind).map(|(_, metrics)| metrics.clone());
        let metrics = known.unwrap_or_else(|| self.responses_of(kind));
        metrics.pushes.add(1);
        metrics.size.observe(bytes as f64);
        if let Some(took) = took {
            metrics.time.observe(took.as_secs_f64());
        }
    }

    fn responses_of(&self, kind: &TypeUrl) -> ResponseMetrics {
        let is_known = is_known(kind);
        let whole = if is_known { kind.as_str() } else { OTHER };
        let metrics = ResponseMetrics {
            pushes: self.pushes.get_or_create(&of_type(kind)).clone(),
            size: self.send_size.get_or_create(&TypeLabel { r#type: whole.to_owned() }).clone(),
            time: self.push_time.get_or_create(&of_type(kind)).clone(),
        };
        // Clients choose unknown types, so these are not kept.
        if is_known {
            self.responses.write().push((kind.clone(), metrics.clone()));
        }
        metrics
    }

    /// Records a NACK.
    pub fn refused(&self, kind: &TypeUrl) {
        self.rejects.get_or_create(&of_type(kind)).add(1);
    }

    /// Records an ACK or NACK of a response that is not the last.
    pub fn expired(&self, kind: &TypeUrl) {
        self.expired_nonces.get_or_create(&of_type(kind)).add(1);
    }

    /// Records how long the connection took to accept a response.
    pub fn delivered(&self, took: Duration) {
        self.send_time.observe(took.as_secs_f64());
    }

    /// Records a new problem of an object.
    pub fn rejected(&self, problem: &Problem) {
        if problem.severity == Severity::Info {
            return;
        }
        let (kind, name) = match &problem.about {
            Subject::Object(key) => (key.kind.as_str().to_lowercase(), format!("{}/{}", key.namespace, key.name)),
            Subject::Document { kind, namespace, name } => {
                let namespace = namespace.as_ref().map_or("", |namespace| namespace.as_str());
                (kind.to_lowercase(), format!("{namespace}/{name}"))
            }
            _ => return,
        };
        let labels = self.rejected_labels(kind, name);
        self.rejected_configs.get_or_create(&labels).add(1);
    }

    fn rejected_labels(&self, kind: String, name: String) -> ConfigLabels {
        let mut names = self.rejected_names.lock();
        let object = (kind, name);
        if names.len() >= MOST_REJECTED && !names.contains(&object) {
            return ConfigLabels { r#type: OTHER.to_owned(), name: OTHER.to_owned() };
        }
        names.insert(object.clone());
        let (kind, name) = object;
        ConfigLabels { r#type: kind, name }
    }

    /// Records a stream that was ended because of its client, or by an error of this server.
    pub fn refused_stream(&self, code: tonic::Code) {
        if code == tonic::Code::Internal {
            self.internal_errors.add(1);
        }
        self.refused_streams.get_or_create(&TypeLabel { r#type: format!("{code:?}") }).add(1);
    }

    /// Records how long after its publication a change is processed for a client.
    pub fn taken_up(&self, after: Duration) {
        self.queue_time.observe(after.as_secs_f64());
    }

    /// Records how long after its publication a change is completely sent to a client.
    pub fn converged(&self, after: Duration) {
        self.recent_sends.add(after);
        self.convergence_time.observe(after.as_secs_f64());
        self.send_round.observe(after.as_secs_f64());
    }

    /// Records batches received from sources.
    pub fn received(&self, batches: &[Batch]) {
        let (mut config, mut eds, mut svc, mut svcdelete) = (0, 0, 0, 0);
        for change in batches.iter().flat_map(|batch| &batch.changes) {
            match change {
                Change::Applied(_) | Change::Deleted(_) | Change::Mesh(_) | Change::Networks(_) => config += 1,
                Change::Endpoints(..) => eds += 1,
                Change::ServiceApplied(_) => svc += 1,
                Change::ServiceDeleted(_) => svcdelete += 1,
                Change::WorkloadApplied(_) | Change::WorkloadDeleted(_) => eds += 1,
                Change::Namespace(..)
                | Change::Credential(..)
                | Change::KeySet(..)
                | Change::ConflictSettings(_)
                | Change::Renew
                | Change::Problems(_)
                | Change::Synced => {}
            }
        }
        add(&self.inbound_updates, &[("config", config), ("eds", eds), ("svc", svc), ("svcdelete", svcdelete)]);
    }

    /// Records the application of batches, of which the first arrived this long ago.
    pub fn applied(&self, before: &Snapshot, after: &Snapshot, delta: &Delta, took: Duration, waited: Duration) {
        self.debounce_time.observe(waited.as_secs_f64());
        self.round_time.get_or_create(&PhaseLabel { phase: "ingest" }).observe(took.as_secs_f64());
        self.init_time.observe(took.as_secs_f64());
        for key in &delta.objects {
            let event = match (before.objects.get(key), after.objects.get(key)) {
                (None, _) => "add",
                (Some(_), Some(_)) => "update",
                (Some(_), None) => "delete",
            };
            let labels = EventLabels { r#type: key.kind.as_str().to_owned(), event: event.to_owned() };
            self.config_events.get_or_create(&labels).add(1);
        }
        let reasons = [
            ("config", u64::from(!delta.objects.is_empty())),
            ("endpoint", u64::from(!delta.endpoints.is_empty())),
            ("service", u64::from(!delta.services.is_empty())),
            ("global", u64::from(delta.settings)),
        ];
        add(&self.triggers, &reasons);
    }
}

fn add(tallies: &Counters<TypeLabel>, counts: &[(&str, u64)]) {
    for (name, count) in counts.iter().filter(|(_, count)| *count > 0) {
        tallies.get_or_create(&TypeLabel { r#type: (*name).to_owned() }).add(*count);
    }
}

fn of_type(kind: &TypeUrl) -> TypeLabel {
    TypeLabel { r#type: short(kind) }
}

/// Label of unknown types: clients must not be able to create time series.
const OTHER: &str = "other";

/// `cds`, the whole name of a config kind, or `other`.
pub(crate) fn short(kind: &TypeUrl) -> String {
    let short = kind.short();
    match is_known(kind) {
        true if short != kind.as_str() => short.to_lowercase(),
        true => short.to_owned(),
        false => OTHER.to_owned(),
    }
}

/// Whether it is a type of Envoy or a config kind. Their number is fixed.
fn is_known(kind: &TypeUrl) -> bool {
    let of_envoy = kind.short() != kind.as_str();
    let of_config = || kind.as_str().rsplit_once('/').is_some_and(|(version, kind)| Kind::of(version, kind).is_some());
    of_envoy || of_config()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use api::TypeUrl;
    use model::problem::{Problem, Subject};
    use prometheus_client::encoding::text::encode;

    use super::{MOST_REJECTED, Metrics};

    fn text(metrics: &Metrics) -> String {
        let mut text = String::new();
        encode(&mut text, metrics.registry()).unwrap();
        text
    }

    #[test]
    fn only_errors_of_this_server_are_internal_errors() {
        let metrics = Metrics::default();
        metrics.refused_stream(tonic::Code::InvalidArgument);
        metrics.refused_stream(tonic::Code::Internal);
        let text = text(&metrics);
        assert!(text.lines().any(|line| line == "pilot_total_xds_internal_errors 1"), "{text}");
    }

    #[test]
    fn names_and_labels_equal_upstreams() {
        let metrics = Metrics::default();
        metrics.sent(&TypeUrl::CLUSTER, 12_000, Some(Duration::from_millis(50)));
        metrics.refused(&TypeUrl::LISTENER);
        metrics.expired(&TypeUrl::ROUTE);
        metrics.converged(Duration::from_millis(200));
        let text = text(&metrics);
        for line in [
            "# TYPE pilot_xds_pushes counter",
            r#"pilot_xds_pushes{type="cds"} 1"#,
            r#"pilot_xds_push_time_bucket{le="0.01",type="cds"} 0"#,
            r#"pilot_xds_push_time_bucket{le="0.1",type="cds"} 1"#,
            r#"pilot_xds_config_size_bytes_bucket{le="1000000.0",type="type.googleapis.com/envoy.config.cluster.v3.Cluster"} 1"#,
            r#"pilot_total_xds_rejects{type="lds"} 1"#,
            r#"pilot_xds_expired_nonce{type="rds"} 1"#,
            r#"pilot_proxy_convergence_time_bucket{le="0.5"} 1"#,
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line} in\n{text}");
        }
    }

    #[test]
    fn rejected_objects_are_counted_by_name_up_to_a_limit() {
        let metrics = Metrics::default();
        let about =
            |name: usize| Subject::Document { kind: "Gateway".into(), namespace: None, name: name.to_string().into() };
        for name in 0..MOST_REJECTED + 5 {
            metrics.rejected(&Problem::error(about(name), "bad"));
        }
        metrics.rejected(&Problem::error(about(7), "bad in another way"));
        let text = text(&metrics);
        for line in [
            "# TYPE pilot_total_rejected_configs counter",
            r#"pilot_total_rejected_configs{type="gateway",name="/7"} 2"#,
            r#"pilot_total_rejected_configs{type="other",name="other"} 5"#,
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line}");
        }
    }

    #[test]
    fn hole_06_unknown_types_share_one_series() {
        let metrics = Metrics::default();
        let kind = |url: String| TypeUrl::from(url);
        let before = text(&metrics).lines().count();
        for i in 0..1000 {
            for url in
                [format!("type.googleapis.com/x.Y{i}"), format!("a/v{i}/VirtualService"), format!("istio.io/debug/{i}")]
            {
                metrics.sent(&kind(url.clone()), 1, Some(Duration::ZERO));
                metrics.refused(&kind(url.clone()));
                metrics.expired(&kind(url));
            }
        }
        metrics.sent(&kind("networking.istio.io/v1/VirtualService".to_owned()), 1, None);
        let text = text(&metrics);
        assert!(text.lines().count() < before + 60, "{text}");
        assert!(text.contains(r#"pilot_xds_pushes{type="other"} 3000"#), "{text}");
        assert!(text.contains(r#"pilot_xds_pushes{type="networking.istio.io/v1/VirtualService"} 1"#), "{text}");
    }
}
