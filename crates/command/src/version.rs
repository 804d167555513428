//! What this binary is, in upstream's words: istioctl and Kiali read `VERSION-REVISION-STATUS`
//! or the JSON of the same.

use serde_json::{Value, json};

/// The release of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit of this build, where the one who built it told.
const REVISION: &str = match option_env!("PILOTAGE_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

/// `Clean`, or `Modified` for a build with local changes, as upstream's release scripts say it.
const STATUS: &str = match option_env!("PILOTAGE_BUILD_STATUS") {
    Some(status) => status,
    None => "unknown",
};

/// One line: `VERSION-REVISION-STATUS`.
pub fn line() -> String {
    format!("{VERSION}-{REVISION}-{STATUS}")
}

/// The same as upstream's build info; the field named after Go tells that there is none.
pub fn info() -> Value {
    json!({
        "version": VERSION,
        "revision": REVISION,
        "golang_version": "none (rust)",
        "status": STATUS,
        "tag": VERSION,
    })
}
