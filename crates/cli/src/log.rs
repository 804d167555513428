//! The log: Istio's line layout and level flag by default, JSON on request (`json_layout`). Levels can be changed while
//! the program runs (`levels`).
//! A line is `time<TAB>level<TAB>scope<TAB>message key=value …`, written to standard output through `output`. Line breaks
//! in fields are escaped, so an event is always one line.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::sync::mpsc;
use std::time::Duration;
use std::{fmt, io, panic, thread};

use anyhow::{Result, bail};
use model::printable::escaped;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber, error};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::Logging;
use crate::json_layout::JsonLayout;
use crate::levels::{self, LogLevels};
use crate::output::Queue;
use crate::scopes::{DEFAULT, Scopes, level_name, scope_of};

/// Upstream's scope of the Kubernetes client library. It is off unless it is named: we log failures of the API server
/// ourselves, once.
const LIBRARY: &str = "klog";

/// How long a program that exits waits for its last lines to be written.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The log of this process. Dropping it writes the lines that are still queued.
#[must_use = "the last lines of the log are written when it is dropped"]
#[derive(Debug)]
pub struct Log {
    queue: Queue,
    levels: LogLevels,
}

impl Log {
    /// The levels, to read and change them.
    pub fn levels(&self) -> LogLevels {
        self.levels.clone()
    }

    /// Waits until all lines are written, at most `EXIT_TIMEOUT`.
    pub fn flush(&self) {
        self.queue.flush(EXIT_TIMEOUT);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Writes the error that ends a program to standard error. Does not wait for a stuck reader.
pub fn print_failure(text: String) {
    let (done, ended) = mpsc::channel();
    let writing = thread::Builder::new().spawn(move || {
        eprintln!("{text}");
        let _ = done.send(());
    });
    if writing.is_ok() {
        let _ = ended.recv_timeout(EXIT_TIMEOUT);
    }
}

/// Starts logging. Called once, before the first event.
pub fn start(logging: &Logging, scopes: Scopes, rust_log: Option<&str>) -> Result<Log> {
    let targets = match (&logging.output_level, rust_log) {
        (Some(levels), _) => targets(levels, scopes)?,
        (None, Some(text)) => text.parse()?,
        (None, None) => targets("info", scopes)?,
    };
    let (filter, handle) = reload::Layer::new(targets);
    let registry = tracing_subscriber::registry().with(filter);
    let queue = Queue::start(io::stdout())?;
    let out = queue.clone();
    let layer = layer().with_writer(move || out.clone());
    match logging.as_json {
        true => registry.with(layer.event_format(JsonLayout { scopes })).try_init()?,
        false => registry.with(layer.with_ansi(false).event_format(IstioLayout { scopes })).try_init()?,
    }
    log_panics(queue.clone());
    Ok(Log { queue, levels: LogLevels::new(scopes, handle) })
}

/// Logs panics. The default hook writes to standard error and would block if nothing reads it.
fn log_panics(queue: Queue) {
    panic::set_hook(Box::new(move |info| {
        let trace = Backtrace::capture();
        match trace.status() {
            BacktraceStatus::Captured => error!("{info}\n{trace}"),
            _ => error!("{info}"),
        }
        queue.flush(EXIT_TIMEOUT);
    }));
}

/// Parses `debug` or `default:info,ads:debug`. Unknown scopes are accepted and have no effect.
fn targets(levels: &str, scopes: Scopes) -> Result<Targets> {
    let of_library = scopes.iter().filter(|(name, _)| *name == LIBRARY).map(|(_, module)| (*module, LevelFilter::OFF));
    let mut targets = Targets::new().with_default(LevelFilter::INFO).with_targets(of_library);
    for item in levels.split(',').filter(|item| !item.is_empty()) {
        let (scope, level) = item.split_once(':').unwrap_or((DEFAULT, item));
        let Some(level) = levels::parse(level) else {
            bail!("could not read the log level {level:?}: use debug, info, warn, error or none")
        };
        targets = levels::with_level(targets, scopes, scope, level);
    }
    Ok(targets)
}

struct IstioLayout {
    scopes: Scopes,
}

impl<S, N> FormatEvent<S, N> for IstioLayout
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        SystemTime.format_time(&mut line)?;
        let level = level_name(*event.metadata().level());
        write!(line, "\t{level}\t{}\t", scope_of(event.metadata().target(), self.scopes))?;
        let mut fields = String::new();
        context.format_fields(Writer::new(&mut fields), event)?;
        writeln!(line, "{}", escaped(&fields))
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::{Scopes, targets};

    const SCOPES: Scopes = &[("ads", "server::streams"), ("ads", "xds"), ("model", "model"), ("klog", "kube_runtime")];

    #[test]
    fn levels_are_set_by_scope() {
        let targets = |levels| targets(levels, SCOPES);
        let levels = targets("default:warn,ads:debug").unwrap();
        assert!(levels.would_enable("xds::session", &Level::DEBUG));
        assert!(levels.would_enable("server::streams::snapshot", &Level::DEBUG));
        assert!(!levels.would_enable("server::startup", &Level::INFO));
        assert!(targets("debug").unwrap().would_enable("server::startup", &Level::DEBUG));
        assert!(!targets("all:none").unwrap().would_enable("xds", &Level::ERROR));
        assert!(targets("loud").is_err() && targets("ads:loud").is_err());
        assert!(targets("kube:debug").is_ok());
    }

    #[test]
    fn the_kubernetes_library_logs_only_when_its_scope_is_named() {
        let shows = |levels| targets(levels, SCOPES).unwrap().would_enable("kube_runtime::watcher", &Level::ERROR);
        assert_eq!([shows("info"), shows("debug"), shows("klog:info"), shows("all:debug")], [false, false, true, true]);
    }
}
