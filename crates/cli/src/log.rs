//! The log: Istio's line layout and level flag by default, JSON on demand.
//! A line is `time<TAB>level<TAB>scope<TAB>message key=value …`, on standard output, by way of `output`. Whatever texts
//! of others stand in it, it is one line.

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

/// Upstream's names of scopes and the modules that log under them. The first that fits counts.
pub type Scopes = &'static [(&'static str, &'static str)];

const DEFAULT: &str = "default";
/// Upstream's scope of the library that talks to API servers. It is silent unless it is asked for by name: what it
/// says of failures is said in our own words, once.
const LIBRARY: &str = "klog";

/// How long the end of a program waits for the reader of its last lines.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The log of this process. Dropped at the end of a program: lines that wait are then written.
#[must_use = "the last lines of the log are written when it is dropped"]
#[derive(Debug)]
pub struct Log(Queue);

impl Log {
    /// Waits until all lines are written, but not for a reader that is gone.
    pub fn flush(&self) {
        self.0.flush(LAST_WORDS);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Writes to standard error why a program ends. A failed program does not outlive its reader.
pub fn print_failure(text: String) {
    let (done, ended) = mpsc::channel();
    let writing = thread::Builder::new().spawn(move || {
        eprintln!("{text}");
        let _ = done.send(());
    });
    if writing.is_ok() {
        let _ = ended.recv_timeout(LAST_WORDS);
    }
}

/// Starts logging. Done once, before anything is logged.
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

/// Panics are lines of the log: standard error may have no reader either, and the default hook would wait for one.
fn log_panics(queue: Queue) {
    panic::set_hook(Box::new(move |info| {
        let trace = Backtrace::capture();
        match trace.status() {
            BacktraceStatus::Captured => error!("{info}\n{trace}"),
            _ => error!("{info}"),
        }
        queue.flush(LAST_WORDS);
    }));
}

/// Reads `debug` or `default:info,ads:debug`. A scope that nobody logs under is accepted and changes nothing.
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
            other => bail!("could not read the log level {other:?}: it is none of debug, info, warn, error, none"),
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
        assert!(levels.would_enable("server::streams::world", &Level::DEBUG));
        assert!(!levels.would_enable("server::wire", &Level::INFO));
        assert!(targets("debug").unwrap().would_enable("server::wire", &Level::DEBUG));
        assert!(!targets("all:none").unwrap().would_enable("xds", &Level::ERROR));
        assert!(targets("loud").is_err() && targets("ads:loud").is_err());
        assert!(targets("kube:debug").is_ok());
    }

    #[test]
    fn the_library_speaks_only_when_asked() {
        let shows = |levels| targets(levels, SCOPES).unwrap().would_enable("kube_runtime::watcher", &Level::ERROR);
        assert_eq!([shows("info"), shows("debug"), shows("klog:info"), shows("all:debug")], [false, false, true, true]);
    }

    #[test]
    fn scopes_are_found_by_module_not_by_prefix() {
        let names = ["xds::session", "xdsproxy", "server::wire"].map(|target| scope_of(target, SCOPES));
        assert_eq!(names, ["ads", "default", "default"]);
    }
}
