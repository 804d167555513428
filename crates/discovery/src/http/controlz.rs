//! ControlZ, upstream's port for one process, as far as `istioctl admin log` uses it: log levels by scope. Served to callers
//! on loopback only; `kubectl port-forward` connects from there.

use axum::extract::{DefaultBodyLimit, Path, State};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use cli::levels::{LogLevels, ScopeLevel};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::info;

use super::PageResponse;
use super::debug::loopback_only;

/// Size limit of a request: a scope's name and level.
const REQUEST_BYTES: usize = 16 * 1024;

/// The body of a request that changes a scope. Upstream's other fields have no meaning here.
#[derive(Deserialize)]
struct ScopeChange {
    #[serde(default)]
    output_level: String,
}

pub(super) fn router(levels: LogLevels) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/scopej", get(scopes))
        .route("/scopej/", get(scopes))
        .route("/scopej/{scope}", get(scope).put(change_scope))
        .fallback(async || PageResponse::refused(StatusCode::NOT_FOUND, "no such page; /scopej lists log levels"))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES))
        .layer(middleware::from_fn(loopback_only))
        .with_state(levels)
}

async fn index() -> PageResponse {
    let text = "GET /scopej: log levels\nPUT /scopej/SCOPE {\"output_level\": \"debug\"}: set one\n";
    PageResponse::Text(StatusCode::OK, text.to_owned())
}

async fn scopes(State(levels): State<LogLevels>) -> Json<Value> {
    Json(levels.all().iter().map(shown).collect())
}

async fn scope(State(levels): State<LogLevels>, Path(name): Path<String>) -> Response {
    match levels.all().iter().find(|scope| scope.name == name) {
        Some(scope) => Json(shown(scope)).into_response(),
        None => PageResponse::refused(StatusCode::BAD_REQUEST, "no such scope; /scopej lists all").into_response(),
    }
}

/// Sets a level. As in upstream, a request without a level changes nothing: istioctl sets stack traces apart.
async fn change_scope(
    State(levels): State<LogLevels>,
    Path(name): Path<String>,
    // istioctl sends JSON without a content type.
    body: Bytes,
) -> Response {
    let Ok(change) = serde_json::from_slice::<ScopeChange>(&body) else {
        return PageResponse::refused(StatusCode::BAD_REQUEST, "could not read the request as JSON").into_response();
    };
    if change.output_level.is_empty() {
        return StatusCode::ACCEPTED.into_response();
    }
    match levels.set(&name, &change.output_level) {
        Ok(()) => {
            info!(scope = name, level = change.output_level, "log level set");
            StatusCode::ACCEPTED.into_response()
        }
        Err(error) => PageResponse::refused(StatusCode::BAD_REQUEST, &error.to_string()).into_response(),
    }
}

/// Upstream's format. Stack traces are never logged.
fn shown(scope: &ScopeLevel) -> Value {
    json!({
        "name": scope.name,
        "description": scope.description,
        "output_level": scope.level,
        "stack_trace_level": "none",
        "log_callers": false,
    })
}
