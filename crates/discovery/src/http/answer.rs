//! What a page answers: JSON, indented on demand, or text where tools look for upstream's sentence.

use axum::response::{Html, IntoResponse, Response};
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

impl Answer {
    /// What the page says, without its status.
    pub(super) fn into_text(self) -> String {
        match self {
            Answer::Json(_, value, Layout::Compact) => value.to_string(),
            Answer::Json(_, value, Layout::Pretty) => format!("{value:#}"),
            Answer::Text(_, text) | Answer::Html(text) => text,
        }
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        match self {
            Answer::Json(status, value, layout) => {
                let text = match layout {
                    Layout::Compact => value.to_string(),
                    Layout::Pretty => format!("{value:#}"),
                };
                (status, [(CONTENT_TYPE, "application/json")], text).into_response()
            }
            Answer::Text(status, text) => (status, text).into_response(),
            Answer::Html(text) => Html(text).into_response(),
        }
    }
}
