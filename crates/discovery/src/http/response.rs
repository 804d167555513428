//! The response of a page: JSON, indented on request, or text where tools look for upstream's wording.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

/// One response.
pub(super) enum PageResponse {
    Json(StatusCode, Value, Layout),
    Text(StatusCode, String),
    Html(String),
}

/// How JSON is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Compact,
    Pretty,
}

impl PageResponse {
    pub(super) fn json(value: Value) -> PageResponse {
        PageResponse::Json(StatusCode::OK, value, Layout::Compact)
    }

    /// A rejected request.
    pub(super) fn refused(status: StatusCode, reason: &str) -> PageResponse {
        PageResponse::Json(status, json!({"error": reason}), Layout::Compact)
    }

    pub(super) fn failed(reason: &str) -> PageResponse {
        PageResponse::refused(StatusCode::INTERNAL_SERVER_ERROR, reason)
    }

    pub(super) fn with_layout(self, layout: Layout) -> PageResponse {
        match self {
            PageResponse::Json(status, value, _) => PageResponse::Json(status, value, layout),
            other => other,
        }
    }
}

/// A response as it is sent.
#[derive(Debug)]
pub(super) struct RenderedPage {
    pub(super) status: StatusCode,
    pub(super) content: &'static str,
    pub(super) text: String,
}

impl PageResponse {
    /// Renders the text. Takes a while for a large page.
    pub(super) fn render(self) -> RenderedPage {
        match self {
            PageResponse::Json(status, value, layout) => {
                let text = match layout {
                    Layout::Compact => value.to_string(),
                    Layout::Pretty => format!("{value:#}"),
                };
                RenderedPage { status, content: "application/json", text }
            }
            PageResponse::Text(status, text) => RenderedPage { status, content: "text/plain; charset=utf-8", text },
            PageResponse::Html(text) => {
                RenderedPage { status: StatusCode::OK, content: "text/html; charset=utf-8", text }
            }
        }
    }
}

impl IntoResponse for PageResponse {
    fn into_response(self) -> Response {
        let RenderedPage { status, content, text } = self.render();
        (status, [(CONTENT_TYPE, content)], text).into_response()
    }
}
