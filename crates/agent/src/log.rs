//! The agent's log: Istio's line layout and level flag by default, JSON on demand. Envoy writes its own
//! lines in the same layout to the same streams.

use std::fmt;

use anyhow::{Result, bail};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::Logging;

/// Upstream's name of a scope and the module that logs under it.
const SCOPES: &[(&str, &str)] = &[
    ("envoy", "agent::process"),
    ("xdsproxy", "agent::relay"),
    ("sds", "agent::sds"),
    ("cache", "agent::certificates"),
    ("dns", "agent::dns"),
    ("healthcheck", "agent::status"),
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

/// Reads `debug` or `default:info,xdsproxy:debug`. A scope that nobody logs under changes nothing.
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
        context.format_fields(line.by_ref(), event)?;
        writeln!(line)
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::{scope_of, targets};

    #[test]
    fn levels_are_set_by_scope() {
        let levels = targets("default:warn,envoy:debug").unwrap();
        assert!(levels.would_enable("agent::process::keeper", &Level::DEBUG));
        assert!(!levels.would_enable("agent::wire", &Level::INFO));
        assert!(targets("loud").is_err() && targets("any:debug").is_ok());
        assert_eq!((scope_of("agent::sds"), scope_of("agent::wire")), ("sds", "default"));
    }
}
