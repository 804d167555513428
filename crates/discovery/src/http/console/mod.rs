//! The console: `/ui` and the files it is made of, compiled in. It shows what `/api/v1` answers; there is no build step, and
//! nothing is loaded from elsewhere. Access rules are those of the debug pages.

use axum::Router;
use axum::extract::Path;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};

use super::Pages;
use super::debug::loopback_only;

/// A file, its type and its content.
type Asset = (&'static str, &'static str, &'static str);

const SCRIPT: &str = "text/javascript; charset=utf-8";
const INDEX: &str = include_str!("index.html");
const ASSETS: [Asset; 9] = [
    ("app.js", SCRIPT, include_str!("app.js")),
    ("dom.js", SCRIPT, include_str!("dom.js")),
    ("icon.svg", "image/svg+xml", include_str!("icon.svg")),
    ("plots.js", SCRIPT, include_str!("plots.js")),
    ("proxy.js", SCRIPT, include_str!("proxy.js")),
    ("style.css", "text/css; charset=utf-8", include_str!("style.css")),
    ("table.js", SCRIPT, include_str!("table.js")),
    ("topology.js", SCRIPT, include_str!("topology.js")),
    ("views.js", SCRIPT, include_str!("views.js")),
];

/// Only our own scripts, styles, images and requests.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'";

pub(super) fn router() -> Router<Pages> {
    Router::new()
        .route("/ui", get(async || page()))
        .route("/ui/", get(async || page()))
        .route("/ui/{*path}", get(file))
        .layer(middleware::from_fn(loopback_only))
        .layer(middleware::map_response(headers))
}

/// A file, or the page for the address of a view.
async fn file(Path(path): Path<String>) -> Response {
    match ASSETS.iter().find(|(name, _, _)| *name == path) {
        Some((_, kind, content)) => ([(CONTENT_TYPE, *kind)], *content).into_response(),
        None => page(),
    }
}

fn page() -> Response {
    ([(CONTENT_TYPE, "text/html; charset=utf-8")], INDEX).into_response()
}

async fn headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
