//! Scopes of the log, by upstream's names, and its words for levels.

use tracing::Level;

/// Upstream's scope names with the modules that log under them. The first match counts.
pub type Scopes = &'static [(&'static str, &'static str)];

pub(crate) const DEFAULT: &str = "default";

/// The scope of a module.
pub(crate) fn scope_of(target: &str, scopes: Scopes) -> &'static str {
    let is_inside = |module: &str| target.strip_prefix(module).is_some_and(|r| r.is_empty() || r.starts_with("::"));
    scopes.iter().find(|(_, module)| is_inside(module)).map_or(DEFAULT, |(scope, _)| scope)
}

/// Upstream's word for a level.
pub(crate) fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG | Level::TRACE => "debug",
    }
}

#[cfg(test)]
mod tests {
    use super::{Scopes, scope_of};

    const SCOPES: Scopes = &[("ads", "server::streams"), ("ads", "xds"), ("model", "model")];

    #[test]
    fn scopes_are_found_by_module_not_by_prefix() {
        let names = ["xds::session", "xdsproxy", "server::startup"].map(|target| scope_of(target, SCOPES));
        assert_eq!(names, ["ads", "default", "default"]);
    }
}
