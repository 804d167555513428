//! HTTP of the webhooks: limits on size, memory and time of requests; the answers come from `injector` and `validate`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Webhooks, validate};

/// Largest body, as in upstream.
const MOST_BYTES: usize = 6 << 20;
/// Bodies that are in memory at the same time.
const ALL_BYTES: usize = 24 << 20;
/// Most values of a body: decoded they take much more memory than encoded.
const MOST_VALUES: usize = 200_000;
/// Time to wait for memory and to read a body. API servers wait ten seconds for an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Reviews that are computed at the same time.
const AT_ONCE: usize = 4;

/// Limits that all requests share.
pub(super) struct RequestLimits {
    bytes: Arc<Semaphore>,
    turns: Semaphore,
}

impl Default for RequestLimits {
    fn default() -> RequestLimits {
        RequestLimits { bytes: Arc::new(Semaphore::new(ALL_BYTES >> 10)), turns: Semaphore::new(AT_ONCE) }
    }
}

/// `/inject`, `/validate` and everything below them.
pub(crate) fn router(webhooks: Arc<Webhooks>) -> Router {
    Router::new()
        .route("/inject", any(inject))
        .route("/inject/{*parameters}", any(inject))
        .route("/validate", any(validate))
        .route("/validate/{*parameters}", any(validate))
        .with_state(webhooks)
}

/// A body that may be read, with its share of memory.
struct ReviewBody {
    bytes: Bytes,
    _share: OwnedSemaphorePermit,
}

async fn inject(State(webhooks): State<Arc<Webhooks>>, request: Request) -> Response {
    webhooks.metrics.requests.add(1);
    let begin = Instant::now();
    let path = request.uri().path().to_owned();
    let body = match read(&webhooks.limits, request).await {
        Ok(body) => body,
        Err(refusal) => {
            webhooks.metrics.failed.add(1);
            return refusal.into_response();
        }
    };
    let answer = compute(&webhooks, body, move |webhooks, body| {
        webhooks.injector.as_ref().map(|injector| injector.review(body, &path, &webhooks.metrics))
    })
    .await;
    webhooks.metrics.seconds.observe(begin.elapsed().as_secs_f64());
    answer
}

async fn validate(State(webhooks): State<Arc<Webhooks>>, request: Request) -> Response {
    match read(&webhooks.limits, request).await {
        Ok(body) => compute(&webhooks, body, |webhooks, body| Some(validate::review(body, &webhooks.metrics))).await,
        Err(refusal) => {
            webhooks.metrics.bad_requests.add(1);
            refusal.into_response()
        }
    }
}

/// Computes an answer on a blocking thread. A panic fails this request only.
async fn compute(
    webhooks: &Arc<Webhooks>,
    body: ReviewBody,
    answer: impl FnOnce(&Webhooks, &[u8]) -> Option<String> + Send + 'static,
) -> Response {
    let Ok(_turn) = webhooks.limits.turns.acquire().await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the server is stopping").into_response();
    };
    let webhooks = Arc::clone(webhooks);
    let computed = tokio::task::spawn_blocking(move || answer(&webhooks, &body.bytes)).await;
    match computed {
        Ok(Some(text)) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Ok(None) => (StatusCode::NOT_FOUND, "this webhook is off").into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "could not answer this review").into_response(),
    }
}

async fn read(limits: &RequestLimits, request: Request) -> Result<ReviewBody, (StatusCode, &'static str)> {
    let refuse = |status: StatusCode, reason: &'static str| Err((status, reason));
    let headers = request.headers();
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > MOST_BYTES) {
        return refuse(StatusCode::BAD_REQUEST, "the body is too large");
    }
    if length == Some(0) {
        return refuse(StatusCode::BAD_REQUEST, "the body is empty");
    }
    if headers.get(CONTENT_TYPE).is_none_or(|kind| kind != "application/json") {
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "expected content type application/json");
    }
    let share = u32::try_from(length.unwrap_or(MOST_BYTES).div_ceil(1 << 10)).unwrap_or(u32::MAX);
    let bytes = Arc::clone(&limits.bytes);
    let reading = async {
        let share = bytes.acquire_many_owned(share).await.ok()?;
        let body: Body = request.into_body();
        Some((to_bytes(body, MOST_BYTES).await, share))
    };
    let (bytes, _share) = match tokio::time::timeout(READ_TIMEOUT, reading).await {
        Ok(Some((Ok(bytes), share))) => (bytes, share),
        Ok(Some((Err(_), _))) => return refuse(StatusCode::BAD_REQUEST, "could not read the body"),
        Ok(None) | Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
    };
    if bytes.is_empty() {
        return refuse(StatusCode::BAD_REQUEST, "the body is empty");
    }
    let marks = bytes.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).nth(MOST_VALUES);
    if marks.is_some() {
        return refuse(StatusCode::BAD_REQUEST, "the body has too many values");
    }
    Ok(ReviewBody { bytes, _share })
}
