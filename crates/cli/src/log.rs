//! The log: Istio's line layout and level flag by default, JSON on request.
//! A line is `time<TAB>level<TAB>scope<TAB>message key=value …`, written to standard output through `output`. Line breaks
//! in fields are escaped, so an event is always one line.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::sync::mpsc;
use std::time::Duration;
use std::{fmt, io, panic, thread};

use anyhow::{Result, bail};
use model::printable::escaped;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber, error};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::Logging;
use crate::output::Queue;

/// Upstream's scope names with the modules that log under them. The first match counts.
pub type Scopes = &'static [(&'static str, &'static str)];

const DEFAULT: &str = "default";
/// Upstream's scope of the Kubernetes client library. It is off unless it is named: we log failures of the API server
/// ourselves, once.
const LIBRARY: &str = "klog";

/// How long a program that exits waits for its last lines to be written.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The log of this process. Dropping it writes the lines that are still queued.
#[must_use = "the last lines of the log are written when it is dropped"]
#[derive(Debug)]
pub struct Log(Queue);

impl Log {
    /// Waits until all lines are written, at most `EXIT_TIMEOUT`.
    pub fn flush(&self) {
        self.0.flush(EXIT_TIMEOUT);
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
    let registry = tracing_subscriber::registry().with(targets);
    let queue = Queue::start(io::stdout())?;
    let out = queue.clone();
    let layer = layer().with_writer(move || out.clone());
    match logging.as_json {
        true => registry.with(layer.json().flatten_event(true)).try_init()?,
        false => registry.with(layer.with_ansi(false).event_format(IstioLayout { scopes })).try_init()?,
    }
    log_panics(queue.clone());
    Ok(Log(queue))
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
        let level = match level {
            "debug" => LevelFilter::DEBUG,
            "info" => LevelFilter::INFO,
            "warn" => LevelFilter::WARN,
            "error" | "fatal" => LevelFilter::ERROR,
            "none" => LevelFilter::OFF,
            other => bail!("could not read the log level {other:?}: use debug, info, warn, error or none"),
        };
        if scope == DEFAULT || scope == "all" {
            targets = targets.with_default(level);
        }
        let modules = scopes.iter().filter(|(name, _)| scope == "all" || *name == scope);
        targets = targets.with_targets(modules.map(|(_, module)| (*module, level)));
    }
    Ok(targets)
}

fn scope_of(target: &str, scopes: Scopes) -> &'static str {
    let is_inside = |module: &str| target.strip_prefix(module).is_some_and(|r| r.is_empty() || r.starts_with("::"));
    scopes.iter().find(|(_, module)| is_inside(module)).map_or(DEFAULT, |(scope, _)| scope)
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
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG | Level::TRACE => "debug",
        };
        write!(line, "\t{level}\t{}\t", scope_of(event.metadata().target(), self.scopes))?;
        let mut fields = String::new();
        context.format_fields(Writer::new(&mut fields), event)?;
        writeln!(line, "{}", escaped(&fields))
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::{Scopes, scope_of, targets};

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

    #[test]
    fn scopes_are_found_by_module_not_by_prefix() {
        let names = ["xds::session", "xdsproxy", "server::startup"].map(|target| scope_of(target, SCOPES));
        assert_eq!(names, ["ads", "default", "default"]);
    }
}
