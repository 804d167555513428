//! `/api/v1`: what pilotctl asks. JSON, read-only, for callers on the same machine as the debug pages are; `/debug` keeps
//! upstream's formats.

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use translate::names::config_path;

use super::debug::loopback_only;
use super::{Layout, PageResponse, Pages};

/// Which objects to list; all if nothing is given.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ObjectQuery {
    /// The path of an object as Envoy's metadata has it.
    config: Option<String>,
    kind: Option<String>,
    namespace: Option<String>,
}

pub(super) fn router() -> Router<Pages> {
    Router::new().route("/api/v1/objects", get(objects)).layer(middleware::from_fn(loopback_only))
}

async fn objects(State(pages): State<Pages>, query: Result<Query<ObjectQuery>, QueryRejection>) -> Response {
    let Ok(Query(query)) = query else {
        return PageResponse::refused(StatusCode::BAD_REQUEST, "could not parse the query").into_response();
    };
    pages.make(Layout::Compact, move |pages| PageResponse::json(listed(pages, &query))).await
}

/// Objects with the file and line that they were read from.
fn listed(pages: &Pages, query: &ObjectQuery) -> Value {
    let published = pages.pilot().world().now();
    let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|wanted| wanted == value);
    let chosen = published.snapshot.objects.iter().filter(|(key, _)| {
        is(&query.kind, key.kind.as_str())
            && is(&query.namespace, &key.namespace)
            && query.config.as_ref().is_none_or(|path| *path == config_path(key.kind, &key.namespace, &key.name))
    });
    let shown = chosen.map(|(key, object)| {
        let location = object.meta.location.as_ref();
        json!({
            "kind": key.kind.as_str(),
            "namespace": &*key.namespace,
            "name": &*key.name,
            "config": config_path(key.kind, &key.namespace, &key.name),
            "file": location.map(|location| &*location.file),
            "line": location.map(|location| location.line).filter(|line| *line > 0),
        })
    });
    shown.collect()
}
