//! What this binary is, in upstream's words: `VERSION-REVISION-STATUS`, or the JSON of the same.

use serde_json::{Value, json};

/// The release of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The release of Istio whose proxies this agent's Envoy behaves like. Control planes decide by it what they send.
pub const ISTIO: &str = "1.31.0";

const REVISION: &str = match option_env!("PILOTAGE_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

const STATUS: &str = match option_env!("PILOTAGE_BUILD_STATUS") {
    Some(status) => status,
    None => "unknown",
};

/// One line: `VERSION-REVISION-STATUS`.
pub fn line() -> String {
    format!("{VERSION}-{REVISION}-{STATUS}")
}

/// The same as upstream's build info.
pub fn info() -> Value {
    json!({"version": VERSION, "revision": REVISION, "golang_version": "none (rust)", "status": STATUS, "tag": VERSION})
}
