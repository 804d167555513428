//! `/ready`: whether this instance should get clients. It should when every source has told all it had,
//! the writer of the world still lives, and nobody asked the server to stop.

use axum::extract::State;
use http::StatusCode;

use super::Pages;

/// 200, or 503 with the reason.
pub(super) async fn page(State(pages): State<Pages>) -> (StatusCode, String) {
    match reason_not_to_be(&pages) {
        None => (StatusCode::OK, String::new()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

fn reason_not_to_be(pages: &Pages) -> Option<String> {
    if pages.is_stopping() {
        return Some("the server is stopping".to_owned());
    }
    if pages.pilot().world().changes().is_closed() {
        return Some("the world is not followed any more".to_owned());
    }
    let missing = pages.pilot().missing_sources();
    let names: Vec<&str> = missing.iter().map(|source| &*source.0).collect();
    (!names.is_empty()).then(|| format!("waiting for {} to be in sync", names.join(", ")))
}
