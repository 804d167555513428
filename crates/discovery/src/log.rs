//! The log: Istio's line layout and level flag by default, JSON on demand.
//! A line is `time<TAB>level<TAB>scope<TAB>message<TAB>key=value …`, on standard output.

use std::fmt;

use anyhow::{Result, bail};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::Logging;

/// Upstream's name of a scope and the modules that log under it. The first that fits counts.
const SCOPES: &[(&str, &str)] = &[
    ("ads", "discovery::serve"),
    ("ads", "xds"),
    ("model", "model"),
    ("serviceentry", "sources::registry"),
    ("file", "sources"),
    ("monitoring", "discovery::http"),
    ("tls", "discovery::tls"),
];
const DEFAULT: &str = "default";

/// Starts logging. Done once, before anything is logged.
pub fn start(logging: &Logging, rust_log: Option<&str>) -> Result<()> {
    let targets = match (&logging.output_level, rust_log) {
        (Some(levels), _) => targets(levels)?,
        (None, Some(text)) => text.parse()?,
        (None, None) => targets("info")?,
    };
    let registry = tracing_subscriber::registry().with(targets);
    match logging.as_json {
        true => registry.with(layer().json().flatten_event(true)).try_init()?,
        false => registry.with(layer().with_ansi(false).event_format(IstioLayout)).try_init()?,
    }
    Ok(())
}

/// Reads `debug` or `default:info,ads:debug`. A scope that nobody logs under is accepted and changes nothing.
fn targets(levels: &str) -> Result<Targets> {
    let mut targets = Targets::new().with_default(LevelFilter::INFO);
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
        let modules = SCOPES.iter().filter(|(name, _)| scope == "all" || *name == scope);
        targets = targets.with_targets(modules.map(|(_, module)| (*module, level)));
    }
    Ok(targets)
}

fn scope_of(target: &str) -> &'static str {
    let is_inside = |module: &str| target.strip_prefix(module).is_some_and(|r| r.is_empty() || r.starts_with("::"));
    SCOPES.iter().find(|(_, module)| is_inside(module)).map_or(DEFAULT, |(scope, _)| scope)
}

struct IstioLayout;

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
        write!(line, "\t{level}\t{}\t", scope_of(event.metadata().target()))?;
        context.format_fields(format::Writer::by_ref(&mut line), event)?;
        writeln!(line)
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::{scope_of, targets};

    #[test]
    fn levels_are_set_by_scope() {
        let levels = targets("default:warn,ads:debug").unwrap();
        assert!(levels.would_enable("xds::session", &Level::DEBUG));
        assert!(levels.would_enable("discovery::serve::world", &Level::DEBUG));
        assert!(!levels.would_enable("discovery::wire", &Level::INFO));
        assert!(targets("debug").unwrap().would_enable("discovery::wire", &Level::DEBUG));
        assert!(!targets("all:none").unwrap().would_enable("xds", &Level::ERROR));
        assert!(targets("loud").is_err() && targets("ads:loud").is_err());
        assert!(targets("kube:debug").is_ok());
    }

    #[test]
    fn scopes_are_found_by_module_not_by_prefix() {
        assert_eq!(scope_of("xds::session"), "ads");
        assert_eq!(scope_of("xdsproxy"), "default");
        assert_eq!(scope_of("discovery::wire"), "default");
    }
}
