//! Access logs: where a line goes, how it looks and when it is written.
//! `providers` reads Telemetry and mesh config, `render` writes logs down.

mod formats;
mod providers;
mod render;

use api::Struct;
use model::hashed::Hashed;
use model::names::Str;

pub use providers::access_logs;
pub use render::render;

use super::Collector;

/// One log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccessLog {
    pub sink: LogSink,
    /// All must hold for a line to be written.
    pub filters: Vec<LogFilter>,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogSink {
    File {
        path: Str,
        format: LineFormat,
        omit_empty: bool,
    },
    /// Envoy's access log service, for requests.
    Http {
        service: LogService,
        headers: LoggedHeaders,
    },
    /// Envoy's access log service, for connections.
    Tcp(LogService),
    /// A collector of OpenTelemetry.
    OpenTelemetry {
        service: LogService,
        body: Str,
        attributes: Option<Hashed<Struct>>,
    },
}

/// A service that is sent entries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogService {
    pub log_name: Str,
    /// A host of none means a cluster of the proxy's own.
    pub collector: Collector,
    /// Filter state that is sent beside each entry.
    pub state: Vec<Str>,
}

/// Headers that are sent beside each entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoggedHeaders {
    pub request: Vec<Str>,
    pub response: Vec<Str>,
    pub trailers: Vec<Str>,
}

/// How a line looks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LineFormat {
    Text(Str),
    Json(Hashed<Struct>),
}

/// When a line is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogFilter {
    /// The connection met one of these ends.
    ResponseFlags(Vec<Str>),
    /// A CEL expression.
    Expression(Str),
}

/// What a log is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogScope {
    Http,
    Tcp,
    /// Connections that found no filter chain.
    Listener,
}
