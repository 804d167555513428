//! Access logs: where a line goes, how it looks and when it is written.
//! `providers` reads Telemetry and mesh config, `render` writes logs down.

mod formats;
mod providers;
mod render;

use api::Struct;
use model::names::Text;
use model::shared::Shared;

pub use providers::access_logs;
pub use render::render;

use super::Collector;

/// One log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccessLog {
    pub sink: Sink,
    /// All must hold for a line to be written.
    pub filters: Vec<LogFilter>,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sink {
    File {
        path: Text,
        format: Format,
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
        body: Text,
        attributes: Option<Shared<Struct>>,
    },
}

/// A service that is sent entries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogService {
    pub log_name: Text,
    /// A host of none means a cluster of the proxy's own.
    pub collector: Collector,
    /// Filter state that is sent beside each entry.
    pub state: Vec<Text>,
}

/// Headers that are sent beside each entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoggedHeaders {
    pub request: Vec<Text>,
    pub response: Vec<Text>,
    pub trailers: Vec<Text>,
}

/// How a line looks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    Text(Text),
    Json(Shared<Struct>),
}

/// When a line is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogFilter {
    /// The connection met one of these ends.
    ResponseFlags(Vec<Text>),
    /// A CEL expression.
    Expression(Text),
}

/// What a log is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Logged {
    Http,
    Tcp,
    /// Connections that found no filter chain.
    Listener,
}
