//! Log levels by scope, read and changed while the program runs.

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::reload::Handle;

use crate::scopes::{DEFAULT, Scopes, level_name};

/// The levels of a running log.
#[derive(Clone, Debug)]
pub struct LogLevels {
    scopes: Scopes,
    filter: Handle<Targets, Registry>,
}

/// A scope and its level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeLevel {
    pub name: &'static str,
    /// Its modules.
    pub description: String,
    /// `debug`, `info`, `warn`, `error` or `none`.
    pub level: &'static str,
}

/// Why a level could not be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelError {
    #[error("could not set the log level of {0:?}: no such scope")]
    Scope(String),
    #[error("could not set the log level {0:?}: use debug, info, warn, error or none")]
    Level(String),
    #[error("could not set a log level: the log has ended")]
    Ended,
}

impl LogLevels {
    pub(crate) fn new(scopes: Scopes, filter: Handle<Targets, Registry>) -> LogLevels {
        LogLevels { scopes, filter }
    }

    /// All scopes, by name.
    pub fn all(&self) -> Vec<ScopeLevel> {
        let targets = self.filter.clone_current().unwrap_or_default();
        let mut names: Vec<&'static str> = self.scopes.iter().map(|(name, _)| *name).chain([DEFAULT]).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().map(|name| self.scope(&targets, name)).collect()
    }

    /// Sets the level of a scope.
    pub fn set(&self, scope: &str, level: &str) -> Result<(), LevelError> {
        if scope != DEFAULT && self.scopes.iter().all(|(name, _)| *name != scope) {
            return Err(LevelError::Scope(scope.to_owned()));
        }
        let level = parse(level).ok_or_else(|| LevelError::Level(level.to_owned()))?;
        let change = |targets: &mut Targets| *targets = with_level(targets.clone(), self.scopes, scope, level);
        self.filter.modify(change).map_err(|_| LevelError::Ended)
    }

    fn scope(&self, targets: &Targets, name: &'static str) -> ScopeLevel {
        let modules: Vec<&str> = self.scopes.iter().filter(|(scope, _)| *scope == name).map(|(_, m)| *m).collect();
        // No module is called like this, so the default level counts.
        let first = modules.first().copied().unwrap_or(DEFAULT);
        let levels = [Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
        let level = levels.into_iter().find(|level| targets.would_enable(first, level)).map_or("none", level_name);
        let description = if modules.is_empty() { "everything else".to_owned() } else { modules.join(", ") };
        ScopeLevel { name, description, level }
    }
}

/// Parses upstream's word for a level.
pub(crate) fn parse(level: &str) -> Option<LevelFilter> {
    Some(match level {
        "debug" => LevelFilter::DEBUG,
        "info" => LevelFilter::INFO,
        "warn" => LevelFilter::WARN,
        "error" | "fatal" => LevelFilter::ERROR,
        "none" => LevelFilter::OFF,
        _ => return None,
    })
}

/// The filter with another level of a scope; `all` means every scope.
pub(crate) fn with_level(targets: Targets, scopes: Scopes, scope: &str, level: LevelFilter) -> Targets {
    let is_default = scope == DEFAULT || scope == "all";
    let targets = if is_default { targets.with_default(level) } else { targets };
    let modules = scopes.iter().filter(|(name, _)| scope == "all" || *name == scope);
    targets.with_targets(modules.map(|(_, module)| (*module, level)))
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::reload;

    use super::{LevelError, LevelFilter, LogLevels, Registry, Scopes};

    const SCOPES: Scopes = &[("ads", "server::streams"), ("ads", "xds"), ("model", "model")];

    #[test]
    fn levels_are_read_and_set_by_scope() {
        // The layer keeps the filter alive.
        let (_layer, handle) = reload::Layer::<Targets, Registry>::new(Targets::new().with_default(LevelFilter::INFO));
        let levels = LogLevels::new(SCOPES, handle);
        let shown = || levels.all().iter().map(|scope| format!("{}:{}", scope.name, scope.level)).collect::<Vec<_>>();
        assert_eq!(shown(), ["ads:info", "default:info", "model:info"]);
        levels.set("ads", "debug").unwrap();
        levels.set("default", "none").unwrap();
        assert_eq!(shown(), ["ads:debug", "default:none", "model:none"]);
        levels.set("ads", "warn").unwrap();
        assert_eq!(shown()[0], "ads:warn");
        assert_eq!(levels.all()[0].description, "server::streams, xds");
        assert_eq!(levels.set("loud", "info"), Err(LevelError::Scope("loud".to_owned())));
        assert_eq!(levels.set("ads", "loud"), Err(LevelError::Level("loud".to_owned())));
    }
}
