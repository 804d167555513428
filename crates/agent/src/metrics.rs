//! The agent's own metrics with upstream's names, in Prometheus text format. Written by hand to keep an idle agent
//! small.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cli::output;

/// Upper bounds of histogram buckets in seconds.
const BUCKETS: [f64; 6] = [0.001, 0.005, 0.01, 0.1, 1.0, 5.0];

/// A monotonic counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A gauge that is set.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// A gauge that counts up and down.
#[derive(Debug, Default)]
pub struct UpDownCounter(AtomicU64);

impl UpDownCounter {
    pub fn rise(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn fall(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; BUCKETS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    pub fn observe(&self, took: Duration) {
        let bucket = BUCKETS.iter().position(|bound| took.as_secs_f64() <= *bound);
        self.buckets[bucket.unwrap_or(BUCKETS.len())].add();
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// All metrics of the agent.
#[derive(Debug, Default)]
pub struct Metrics {
    pub xds_requests: Counter,
    pub xds_responses: Counter,
    /// xDS streams that Envoy opened.
    pub envoy_connections: Counter,
    pub envoy_terminations: Counter,
    /// Streams to the control plane that were opened.
    pub pilot_connections: Counter,
    /// Streams opened after a previous one was lost.
    pub pilot_reconnections: Counter,
    pub pilot_connection_failures: Counter,
    /// Streams ended by the control plane or the network.
    pub pilot_terminations: Counter,
    /// Open streams to the control plane.
    pub pilot_connected: UpDownCounter,
    pub dns_requests: Counter,
    pub dns_upstream_requests: Counter,
    pub dns_upstream_failures: Counter,
    /// Queries answered with SERVFAIL because too many were waiting.
    pub dns_upstream_refused: Counter,
    pub dns_upstream_duration: Histogram,
    pub startup_seconds: Gauge,
    pub scrapes: Counter,
    pub envoy_scrape_failures: Counter,
    pub application_scrape_failures: Counter,
    /// Requests to the certificate authority.
    pub csr_requests: Counter,
    pub csr_failures: Counter,
    pub csr_duration: Histogram,
    /// End of the workload's certificate in seconds since 1970; 0 before there is one.
    pub certificate_expiry: Gauge,
}

impl Metrics {
    /// All metrics in Prometheus text format.
    pub fn text(&self) -> String {
        let mut text = MetricsText::default();
        text.counter("xds_proxy_requests", "Envoy requests forwarded to the control plane", &self.xds_requests);
        text.counter("xds_proxy_responses", "Responses from the control plane", &self.xds_responses);
        text.counter("envoy_connections", "xDS streams opened by Envoy", &self.envoy_connections);
        text.counter("envoy_connection_terminations", "xDS streams ended by Envoy", &self.envoy_terminations);
        text.counter("istiod_connections", "Streams opened to the control plane", &self.pilot_connections);
        text.counter("istiod_reconnections", "Streams opened after a lost one", &self.pilot_reconnections);
        let failures = "Failed attempts to connect to the control plane";
        text.counter("istiod_connection_failures", failures, &self.pilot_connection_failures);
        let terminations = "Streams ended by the control plane or the network";
        text.counter("istiod_connection_terminations", terminations, &self.pilot_terminations);
        text.gauge("istiod_connected", "Open streams to the control plane", self.pilot_connected.get() as f64);
        text.counter("dns_requests_total", "DNS queries", &self.dns_requests);
        let forwarded = "DNS queries forwarded to the servers in resolv.conf";
        text.counter("dns_upstream_requests_total", forwarded, &self.dns_upstream_requests);
        text.counter(
            "dns_upstream_failures_total",
            "Forwarded DNS queries without a response",
            &self.dns_upstream_failures,
        );
        let refused = "DNS queries refused because too many forwarded queries are waiting";
        text.counter("dns_upstream_refused_total", refused, &self.dns_upstream_refused);
        let took = "Response time of the servers in resolv.conf";
        text.histogram("dns_upstream_request_duration_seconds", took, &self.dns_upstream_duration);
        let startup = "Time from start until Envoy was first ready";
        text.gauge("startup_duration_seconds", startup, self.startup_seconds.get());
        text.counter("scrapes_total", "Scrapes of merged metrics", &self.scrapes);
        text.head("scrape_failures_total", "counter", "Failed scrapes of one source");
        text.line("scrape_failures_total", "{type=\"application\"}", self.application_scrape_failures.get() as f64);
        text.line("scrape_failures_total", "{type=\"envoy\"}", self.envoy_scrape_failures.get() as f64);
        self.add_certificates(&mut text);
        let name = "log_lines_dropped_total";
        text.head(name, "counter", "Log lines dropped because the log output was not read fast enough");
        text.line(name, "", output::dropped() as f64);
        text.0
    }
}

impl Metrics {
    fn add_certificates(&self, text: &mut MetricsText) {
        let label = "{request_type=\"csr\"}";
        text.head("num_outgoing_requests", "counter", "Requests to the certificate authority");
        text.line("num_outgoing_requests", label, self.csr_requests.get() as f64);
        text.head("num_failed_outgoing_requests", "counter", "Failed requests to the certificate authority");
        text.line("num_failed_outgoing_requests", label, self.csr_failures.get() as f64);
        let took = "Seconds until the certificate authority responded or the request failed";
        text.histogram("csr_duration_seconds", took, &self.csr_duration);
        let end = self.certificate_expiry.get();
        if end > 0.0 {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            text.head("cert_expiry_seconds", "gauge", "Seconds until the workload's certificate expires");
            text.line("cert_expiry_seconds", "{resource_name=\"default\"}", end - now);
        }
    }
}

#[derive(Default)]
struct MetricsText(String);

impl MetricsText {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP istio_agent_{name} {help}\n# TYPE istio_agent_{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.0, "istio_agent_{name}{labels} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, counter: &Counter) {
        self.head(name, "counter", help);
        self.line(name, "", counter.get() as f64);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.line(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let mut total = 0;
        for (at, bucket) in histogram.buckets.iter().enumerate() {
            total += bucket.get();
            let bound = BUCKETS.get(at).map_or("+Inf".to_owned(), f64::to_string);
            self.line(&format!("{name}_bucket"), &format!("{{le=\"{bound}\"}}"), total as f64);
        }
        let seconds = histogram.micros.load(Ordering::Relaxed) as f64 / 1e6;
        self.line(&format!("{name}_sum"), "", seconds);
        self.line(&format!("{name}_count"), "", total as f64);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Metrics;

    #[test]
    fn text_has_upstream_names_and_cumulative_buckets() {
        let metrics = Metrics::default();
        metrics.xds_requests.add();
        metrics.startup_seconds.set(0.25);
        metrics.dns_upstream_duration.observe(Duration::from_millis(4));
        metrics.dns_upstream_duration.observe(Duration::from_secs(9));
        let text = metrics.text();
        for line in [
            "istio_agent_xds_proxy_requests 1",
            "istio_agent_startup_duration_seconds 0.25",
            "istio_agent_dns_upstream_request_duration_seconds_bucket{le=\"0.001\"} 0",
            "istio_agent_dns_upstream_request_duration_seconds_bucket{le=\"5\"} 1",
            "istio_agent_dns_upstream_request_duration_seconds_bucket{le=\"+Inf\"} 2",
            "istio_agent_dns_upstream_request_duration_seconds_count 2",
            "istio_agent_scrape_failures_total{type=\"envoy\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
        }
    }
}
