//! Access logs: sink, format and filters.
//! `providers` reads Telemetry and mesh config; `render` renders logs.

mod formats;
mod providers;
mod render;
mod requests;

use api::Struct;
use model::hashed::Hashed;
use model::names::Str;

pub use providers::access_logs;
pub use render::render;
pub(crate) use requests::REPORT_INTERVAL;

use super::Collector;

/// One log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccessLog {
    pub sink: LogSink,
    /// All must match for an entry to be logged.
    pub filters: Vec<LogFilter>,
}

/// Where entries are sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogSink {
    File {
        path: Str,
        format: LineFormat,
        omit_empty: bool,
    },
    /// Envoy's gRPC access log service, HTTP entries.
    Http {
        service: LogService,
        headers: LoggedHeaders,
    },
    /// Envoy's gRPC access log service, TCP entries.
    Tcp(LogService),
    /// An OpenTelemetry collector.
    OpenTelemetry {
        service: LogService,
        body: Str,
        attributes: Option<Hashed<Struct>>,
    },
    /// The agent, which makes metrics from the entries.
    RequestMetrics {
        is_inbound: bool,
        is_http: bool,
    },
}

/// A gRPC service for log entries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogService {
    pub log_name: Str,
    /// The host is empty for a cluster from the proxy's bootstrap.
    pub collector: Collector,
    /// Filter state objects added to each entry.
    pub state: Vec<Str>,
}

/// Headers added to each entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoggedHeaders {
    pub request: Vec<Str>,
    pub response: Vec<Str>,
    pub trailers: Vec<Str>,
}

/// The format of a line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LineFormat {
    Text(Str),
    Json(Hashed<Struct>),
}

/// Which entries are logged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogFilter {
    /// One of these response flags is set.
    ResponseFlags(Vec<Str>),
    /// A CEL expression.
    Expression(Str),
    /// Not while a connection is open.
    ConnectionEnd,
}

/// Where a log is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogScope {
    Http,
    Tcp,
    /// Connections that matched no filter chain.
    Listener,
}
