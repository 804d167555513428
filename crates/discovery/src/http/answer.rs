//! What a page answers: JSON, indented on demand, or text where tools look for upstream's sentence.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

/// One answer.
pub(super) enum Answer {
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

impl Answer {
    pub(super) fn json(value: Value) -> Answer {
        Answer::Json(StatusCode::OK, value, Layout::Compact)
    }

    /// A request that makes no sense.
    pub(super) fn refused(status: StatusCode, reason: &str) -> Answer {
        Answer::Json(status, json!({"error": reason}), Layout::Compact)
    }

    pub(super) fn failed(reason: &str) -> Answer {
        Answer::refused(StatusCode::INTERNAL_SERVER_ERROR, reason)
    }

    pub(super) fn laid_out(self, layout: Layout) -> Answer {
        match self {
            Answer::Json(status, value, _) => Answer::Json(status, value, layout),
            other => other,
        }
    }
}

/// An answer as it goes out.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) status: StatusCode,
    pub(super) content: &'static str,
    pub(super) text: String,
}

impl Answer {
    /// Its text, which takes a while to write for a large page.
    pub(super) fn written(self) -> Written {
        match self {
            Answer::Json(status, value, layout) => {
                let text = match layout {
                    Layout::Compact => value.to_string(),
                    Layout::Pretty => format!("{value:#}"),
                };
                Written { status, content: "application/json", text }
            }
            Answer::Text(status, text) => Written { status, content: "text/plain; charset=utf-8", text },
            Answer::Html(text) => Written { status: StatusCode::OK, content: "text/html; charset=utf-8", text },
        }
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let Written { status, content, text } = self.written();
        (status, [(CONTENT_TYPE, content)], text).into_response()
    }
}
