//! `/ready`: whether this instance should get clients: every source is synced, the snapshot writer is alive, the TLS ports
//! have their certificate, and the server is not stopping.

use axum::extract::State;
use http::StatusCode;

use super::Pages;

/// 200, or 503 with the reason.
pub(super) async fn page(State(pages): State<Pages>) -> (StatusCode, String) {
    match not_ready_reason(&pages) {
        None => (StatusCode::OK, String::new()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

fn not_ready_reason(pages: &Pages) -> Option<String> {
    if pages.is_stopping() {
        return Some("the server is stopping".to_owned());
    }
    if pages.pilot().world().changes().is_closed() {
        return Some("the snapshot writer has stopped".to_owned());
    }
    // The API server calls the webhooks of a ready server. The settings of injection are not waited for, as in upstream:
    // they may come later.
    if pages.pilot().trust.as_ref().is_some_and(|trust| trust.awaits_own_certificate()) {
        return Some("waiting for the certificate of this server".to_owned());
    }
    let missing = pages.pilot().missing_sources();
    let names: Vec<&str> = missing.iter().map(|source| &*source.0).collect();
    (!names.is_empty()).then(|| format!("waiting for {} to sync", names.join(", ")))
}
