//! The time series of requests and connections: bounded in number, printed in Prometheus' text format.

use std::collections::HashMap;
use std::fmt::Write;

use parking_lot::Mutex;

use super::entries::{CONNECTED, CommonProperties, HttpEntry, PERIODIC, TcpEntry};
use super::labels::{LabelInput, Reporter, WorkloadLabels};

/// Upper bounds of histogram buckets: Envoy's, as upstream's metrics have them.
const BUCKETS: [f64; 19] = [
    0.5,
    1.0,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1000.0,
    2500.0,
    5000.0,
    10_000.0,
    30_000.0,
    60_000.0,
    300_000.0,
    600_000.0,
    1_800_000.0,
    3_600_000.0,
];

/// Open connections whose bytes are reported while they are open. Bytes of others are counted when they close.
const MOST_CONNECTIONS: usize = 10_000;

/// All series of this proxy.
#[derive(Debug)]
pub struct RequestSeries {
    own: WorkloadLabels,
    /// Label sets for requests, and for connections; further ones share one.
    most: usize,
    state: Mutex<SeriesState>,
}

#[derive(Debug, Default)]
struct SeriesState {
    http: HashMap<String, HttpSeries>,
    tcp: HashMap<String, TcpSeries>,
    connections: HashMap<String, OpenConnection>,
    /// Entries that were counted under shared labels.
    overflowed: u64,
}

#[derive(Debug, Default)]
struct HttpSeries {
    labels: String,
    duration: Distribution,
    request_bytes: Distribution,
    response_bytes: Distribution,
}

#[derive(Debug, Default)]
struct TcpSeries {
    labels: String,
    opened: u64,
    closed: u64,
    sent: u64,
    received: u64,
}

/// What was counted of an open connection.
#[derive(Clone, Copy, Debug, Default)]
struct OpenConnection {
    sent: u64,
    received: u64,
}

#[derive(Debug, Default)]
struct Distribution {
    buckets: [u64; BUCKETS.len() + 1],
    sum: f64,
}

impl Distribution {
    fn observe(&mut self, value: f64) {
        self.buckets[BUCKETS.iter().position(|bound| value <= *bound).unwrap_or(BUCKETS.len())] += 1;
        self.sum += value;
    }

    fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl RequestSeries {
    pub fn new(own: WorkloadLabels, most: usize) -> RequestSeries {
        RequestSeries { own, most, state: Mutex::default() }
    }

    pub(super) fn request(&self, reporter: Reporter, entry: &HttpEntry) {
        let common = entry.common.as_ref().unwrap_or(&NO_PROPERTIES);
        let (request, response) = (entry.request.unwrap_or_default(), entry.response.unwrap_or_default());
        let code = Some(response.code.unwrap_or_default());
        let input = LabelInput { reporter, cluster: &common.upstream_cluster, tags: &common.tags, code };
        let state = &mut *self.state.lock();
        let (key, labels) = self.place(&input, state.http.len(), |key| state.http.contains_key(key));
        state.overflowed += u64::from(labels.as_deref() == Some(""));
        let series = state.http.entry(key).or_default();
        if let Some(labels) = labels.filter(|labels| !labels.is_empty()) {
            series.labels = labels;
        }
        let duration = common.duration.unwrap_or_default();
        series.duration.observe(duration.seconds as f64 * 1e3 + f64::from(duration.nanos) / 1e6);
        series.request_bytes.observe((request.headers_bytes + request.body_bytes) as f64);
        series.response_bytes.observe((response.headers_bytes + response.body_bytes) as f64);
    }

    pub(super) fn connection(&self, reporter: Reporter, entry: &TcpEntry) {
        let common = entry.common.as_ref().unwrap_or(&NO_PROPERTIES);
        let totals = entry.connection.unwrap_or_default();
        let input = LabelInput { reporter, cluster: &common.upstream_cluster, tags: &common.tags, code: None };
        let state = &mut *self.state.lock();
        let (key, labels) = self.place(&input, state.tcp.len(), |key| state.tcp.contains_key(key));
        state.overflowed += u64::from(labels.as_deref() == Some(""));
        let series = state.tcp.entry(key).or_default();
        if let Some(labels) = labels.filter(|labels| !labels.is_empty()) {
            series.labels = labels;
        }
        let is_open = matches!(common.log_type, CONNECTED | PERIODIC);
        let known = state.connections.get(&common.stream_id).copied();
        if is_open && known.is_none() && (common.stream_id.is_empty() || state.connections.len() >= MOST_CONNECTIONS) {
            return;
        }
        let before = known.unwrap_or_default();
        series.opened += u64::from(known.is_none());
        series.sent += totals.sent_bytes.saturating_sub(before.sent);
        series.received += totals.received_bytes.saturating_sub(before.received);
        if is_open {
            let now = OpenConnection { sent: totals.sent_bytes, received: totals.received_bytes };
            state.connections.insert(common.stream_id.clone(), now);
        } else {
            series.closed += 1;
            state.connections.remove(&common.stream_id);
        }
    }

    /// The key of the series of an entry, and the labels if it is new. Past the limit one series per reporter takes all
    /// new entries; its labels are empty here.
    fn place(&self, input: &LabelInput<'_>, known: usize, is_known: impl Fn(&str) -> bool) -> (String, Option<String>) {
        let key = input.key();
        if is_known(&key) {
            return (key, None);
        }
        if known < self.most {
            let labels = input.text(&self.own);
            return (key, Some(labels));
        }
        (format!("{:?}", input.reporter), Some(String::new()))
    }

    /// All series, followed by the number of entries that were counted under shared labels.
    pub fn text(&self) -> String {
        let state = self.state.lock();
        let mut page = SeriesText::default();
        let mut http: Vec<(&String, &HttpSeries)> = state.http.iter().collect();
        http.sort_by(|a, b| (&a.1.labels, a.0).cmp(&(&b.1.labels, b.0)));
        page.counter("istio_requests_total", "Requests that Envoy handled", &http, |series| series.duration.count());
        page.histogram("istio_request_duration_milliseconds", "Duration of requests", &http, |s| &s.duration);
        page.histogram("istio_request_bytes", "Size of requests, headers included", &http, |s| &s.request_bytes);
        page.histogram("istio_response_bytes", "Size of responses, headers included", &http, |s| &s.response_bytes);
        let mut tcp: Vec<(&String, &TcpSeries)> = state.tcp.iter().collect();
        tcp.sort_by(|a, b| (&a.1.labels, a.0).cmp(&(&b.1.labels, b.0)));
        page.counter("istio_tcp_connections_opened_total", "Connections opened", &tcp, |series| series.opened);
        page.counter("istio_tcp_connections_closed_total", "Connections closed", &tcp, |series| series.closed);
        page.counter("istio_tcp_sent_bytes_total", "Bytes sent in responses", &tcp, |series| series.sent);
        page.counter("istio_tcp_received_bytes_total", "Bytes received in requests", &tcp, |series| series.received);
        let (name, help) = (
            "istio_agent_requests_without_series_total",
            "Requests and connections counted without labels because there are too many label sets",
        );
        let _ = writeln!(page.0, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {}", state.overflowed);
        page.0
    }
}

static NO_PROPERTIES: CommonProperties = CommonProperties {
    upstream_cluster: String::new(),
    tags: std::collections::BTreeMap::new(),
    duration: None,
    stream_id: String::new(),
    log_type: 0,
};

/// A series with labels.
trait Labelled {
    fn labels(&self) -> &str;
}

impl Labelled for HttpSeries {
    fn labels(&self) -> &str {
        &self.labels
    }
}

impl Labelled for TcpSeries {
    fn labels(&self) -> &str {
        &self.labels
    }
}

/// The labels of a series; those of the shared one are made from its key.
fn labels_of<S: Labelled>((key, series): &(&String, &S)) -> String {
    match series.labels() {
        "" => format!("reporter=\"{}\"", key.to_lowercase()),
        labels => labels.to_owned(),
    }
}

#[derive(Default)]
struct SeriesText(String);

impl SeriesText {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn counter<S: Labelled>(&mut self, name: &str, help: &str, all: &[(&String, &S)], value: impl Fn(&S) -> u64) {
        if all.is_empty() {
            return;
        }
        self.head(name, "counter", help);
        for series in all {
            let _ = writeln!(self.0, "{name}{{{}}} {}", labels_of(series), value(series.1));
        }
    }

    fn histogram<S: Labelled>(
        &mut self,
        name: &str,
        help: &str,
        all: &[(&String, &S)],
        value: impl Fn(&S) -> &Distribution,
    ) {
        if all.is_empty() {
            return;
        }
        self.head(name, "histogram", help);
        for series in all {
            let (labels, distribution) = (labels_of(series), value(series.1));
            let mut total = 0;
            for (at, count) in distribution.buckets.iter().enumerate() {
                total += count;
                let bound = BUCKETS.get(at).map_or("+Inf".to_owned(), f64::to_string);
                let _ = writeln!(self.0, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
            }
            let _ = writeln!(self.0, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {total}", distribution.sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use api::Duration;

    use super::super::entries::{
        CommonProperties, ConnectionProperties, HttpEntry, RequestProperties, ResponseProperties, TcpEntry,
    };
    use super::{CONNECTED, PERIODIC, Reporter, RequestSeries};

    fn request(cluster: &str, code: u32) -> HttpEntry {
        HttpEntry {
            common: Some(CommonProperties {
                upstream_cluster: cluster.to_owned(),
                duration: Some(Duration { seconds: 0, nanos: 7_000_000 }),
                ..CommonProperties::default()
            }),
            request: Some(RequestProperties { headers_bytes: 100, body_bytes: 20 }),
            response: Some(ResponseProperties { code: Some(code), headers_bytes: 50, body_bytes: 1 }),
        }
    }

    fn value(text: &str, start: &str, label: &str) -> Option<f64> {
        let line = text.lines().find(|line| line.starts_with(start) && line.contains(label))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    #[test]
    fn requests_are_counted_with_their_duration_and_size() {
        let series = RequestSeries::new(Default::default(), 10);
        (0..3).for_each(|_| series.request(Reporter::Source, &request("a", 200)));
        series.request(Reporter::Source, &request("a", 503));
        let text = series.text();
        assert_eq!(value(&text, "istio_requests_total", "\"200\""), Some(3.0));
        assert_eq!(value(&text, "istio_requests_total", "\"503\""), Some(1.0));
        assert_eq!(value(&text, "istio_request_duration_milliseconds_sum", "\"200\""), Some(21.0));
        let bucket = |bound: &str| value(&text, "istio_request_duration_milliseconds_bucket", bound);
        assert_eq!((bucket("le=\"5\""), bucket("le=\"10\""), bucket("le=\"+Inf\"")), (Some(0.0), Some(3.0), Some(3.0)));
        assert_eq!(value(&text, "istio_request_bytes_sum", "\"200\""), Some(360.0));
        assert_eq!(value(&text, "istio_response_bytes_sum", "\"200\""), Some(153.0));
    }

    #[test]
    fn label_sets_are_bounded() {
        let series = RequestSeries::new(Default::default(), 5);
        (0..100).for_each(|code| series.request(Reporter::Destination, &request("a", code)));
        series.request(Reporter::Destination, &request("a", 3));
        let text = series.text();
        assert_eq!(text.lines().filter(|line| line.starts_with("istio_requests_total")).count(), 6, "{text}");
        assert_eq!(value(&text, "istio_requests_total{reporter=\"destination\"} ", ""), Some(95.0));
        assert_eq!(value(&text, "istio_requests_total", "response_code=\"3\""), Some(2.0));
        assert_eq!(value(&text, "istio_agent_requests_without_series_total", ""), Some(95.0));
    }

    #[test]
    fn bytes_of_open_connections_are_counted_once() {
        let series = RequestSeries::new(Default::default(), 5);
        let entry = |log_type, sent_bytes| TcpEntry {
            common: Some(CommonProperties { stream_id: "c1".to_owned(), log_type, ..CommonProperties::default() }),
            connection: Some(ConnectionProperties { received_bytes: 1, sent_bytes }),
        };
        for (log_type, sent) in [(CONNECTED, 0), (PERIODIC, 10), (PERIODIC, 30), (3, 35)] {
            series.connection(Reporter::Source, &entry(log_type, sent));
        }
        let text = series.text();
        let of = |name: &str| value(&text, name, "");
        assert_eq!(
            (of("istio_tcp_connections_opened_total{"), of("istio_tcp_connections_closed_total{")),
            (Some(1.0), Some(1.0))
        );
        assert_eq!((of("istio_tcp_sent_bytes_total{"), of("istio_tcp_received_bytes_total{")), (Some(35.0), Some(1.0)));
    }
}
