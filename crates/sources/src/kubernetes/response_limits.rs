//! Limits on every response of an API server: a deadline for its start, and for its body a size and a deadline. For a
//! watch, which does not end, the size of each event is limited instead.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep, timeout};
use tower::{BoxError, Layer, Service};

/// API servers end requests after 60 s, except watches.
const DEADLINE: Duration = Duration::from_secs(75);
/// A page of a list has 500 objects of at most 1.5 MiB each, but hardly ever 50 MiB together.
const MAX_BODY_BYTES: usize = 128 << 20;
/// The size of all unfinished responses of one API server together, including incomplete watch events.
const MAX_BYTES_IN_FLIGHT: usize = 256 << 20;
/// etcd accepts objects of 1.5 MiB; as JSON they may be several times as large.
const MAX_EVENT_BYTES: usize = 8 << 20;

/// A response that a working API server does not send.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadResponse {
    #[error("no response within {DEADLINE:?}")]
    NotStarted,
    #[error("the response did not end within {DEADLINE:?}")]
    NotEnded,
    #[error("the response has more than {} MiB", MAX_BODY_BYTES >> 20)]
    BodyTooLarge,
    #[error("a watch event has more than {} MiB", MAX_EVENT_BYTES >> 20)]
    EventTooLarge,
    #[error("all responses together have more than {} MiB", MAX_BYTES_IN_FLIGHT >> 20)]
    TooManyBytesInFlight,
    #[error("{count} watches in a row ended within {within:?}")]
    WatchesEndEarly { count: u32, within: Duration },
    #[error("the pages of the list repeat")]
    RepeatedPage,
    #[error("the list has more than {0} pages")]
    TooManyPages(u32),
    #[error("the response is not JSON (line {line}, column {column})")]
    NotJson { line: usize, column: usize },
    #[error("the response is not a list (line {line}, column {column})")]
    NotAList { line: usize, column: usize },
    #[error("the response has the wrong kind: {found:?} instead of {expected}List")]
    WrongKind { found: String, expected: String },
    #[error("the list has no items")]
    NoItems,
    #[error("the list has an item of the wrong kind: {found:?} instead of {expected}")]
    WrongItemKind { found: String, expected: String },
}

impl BadResponse {
    /// The bad response that caused an error.
    pub(super) fn in_chain<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a BadResponse> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(bad) = error.downcast_ref() {
                return Some(bad);
            }
            // `io::Error::source` skips the error that it wraps.
            let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            next = wrapped.map(|wrapped| wrapped as &(dyn Error + 'static)).or_else(|| error.source());
        }
        None
    }
}

/// Whether a request is a watch.
pub(super) fn is_watch<B>(request: &Request<B>) -> bool {
    request.uri().query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"))
}

/// Adds the limits to a client of one API server.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseLimits {
    bytes_in_flight: Arc<AtomicUsize>,
}

impl<S> Layer<S> for ResponseLimits {
    type Service = LimitedClient<S>;

    fn layer(&self, inner: S) -> LimitedClient<S> {
        LimitedClient { inner, limits: self.clone() }
    }
}

#[derive(Debug)]
pub(super) struct LimitedClient<S> {
    inner: S,
    limits: ResponseLimits,
}

impl<S, Q, B> Service<Request<Q>> for LimitedClient<S>
where
    S: Service<Request<Q>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<LimitedBody<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (is_watch, limits) = (is_watch(&request), self.limits.clone());
        let response = self.inner.call(request);
        Box::pin(async move {
            let Ok(response) = timeout(DEADLINE, response).await else {
                return Err(BadResponse::NotStarted.into());
            };
            response.map(|response| response.map(|body| LimitedBody::new(body, is_watch, limits)))
        })
    }
}

/// A body that fails at its limit.
pub(super) struct LimitedBody<B> {
    inner: B,
    limits: ResponseLimits,
    /// Bytes so far: of the body, or of the incomplete event of a watch.
    bytes: usize,
    /// `None` for a watch.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B> LimitedBody<B> {
    fn new(inner: B, is_watch: bool, limits: ResponseLimits) -> LimitedBody<B> {
        LimitedBody { inner, limits, bytes: 0, deadline: (!is_watch).then(|| Box::pin(sleep(DEADLINE))) }
    }

    fn count(&mut self, data: &[u8]) -> Result<(), BadResponse> {
        let left = match self.deadline.is_some() {
            true => self.bytes + data.len(),
            false => {
                let (longest, left) = lines(self.bytes, data);
                if longest > MAX_EVENT_BYTES {
                    return Err(BadResponse::EventTooLarge);
                }
                left
            }
        };
        if left > MAX_BODY_BYTES {
            return Err(BadResponse::BodyTooLarge);
        }
        let in_flight = &self.limits.bytes_in_flight;
        let before = in_flight.fetch_add(left, Ordering::Relaxed);
        in_flight.fetch_sub(self.bytes, Ordering::Relaxed);
        let all = before + left - self.bytes;
        self.bytes = left;
        match all > MAX_BYTES_IN_FLIGHT {
            true => Err(BadResponse::TooManyBytesInFlight),
            false => Ok(()),
        }
    }
}

/// The length of the longest line in `data`, and of the last line, which is incomplete. `before` bytes of the first line
/// came earlier.
fn lines(before: usize, data: &[u8]) -> (usize, usize) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let mut last = before + lines.next().map_or(0, <[u8]>::len);
    let mut longest = last;
    for line in lines {
        last = line.len();
        longest = longest.max(last);
    }
    (longest, last)
}

impl<B> Drop for LimitedBody<B> {
    fn drop(&mut self) {
        self.limits.bytes_in_flight.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl<B> Body for LimitedBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err(BadResponse::NotEnded.into())));
        }
        let frame = match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(None),
        };
        let counted = frame.data_ref().map_or(Ok(()), |data| self.count(data));
        Poll::Ready(Some(counted.map(|()| frame).map_err(BoxError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use bytes::Bytes;
    use futures_util::stream;
    use http_body_util::{BodyExt, StreamBody};
    use hyper::body::Frame;
    use tokio::time::Instant;

    use super::{DEADLINE, LimitedBody, MAX_BODY_BYTES, MAX_BYTES_IN_FLIGHT, MAX_EVENT_BYTES, ResponseLimits};

    const MIB: usize = 1 << 20;

    /// How many bytes of an endless body are read, and how it ends.
    async fn endless(chunk: Bytes, is_watch: bool, most: usize) -> (usize, Option<String>) {
        let frames = stream::repeat_with(move || Ok::<_, Infallible>(Frame::data(chunk.clone())));
        let mut body = LimitedBody::new(StreamBody::new(frames), is_watch, ResponseLimits::default());
        let mut read = 0;
        while read < most {
            match body.frame().await {
                Some(Ok(frame)) => read += frame.data_ref().map_or(0, Bytes::len),
                Some(Err(error)) => return (read, Some(error.to_string())),
                None => break,
            }
        }
        (read, None)
    }

    #[tokio::test]
    async fn hole_07_an_endless_response_is_cut() {
        let (read, error) = endless(vec![b' '; MIB].into(), false, MAX_BODY_BYTES * 2).await;
        assert_eq!((read, error.as_deref()), (MAX_BODY_BYTES, Some("the response has more than 128 MiB")));
    }

    #[tokio::test]
    async fn hole_07_an_endless_line_of_a_watch_is_cut_and_many_lines_are_not() {
        let (read, error) = endless(vec![b' '; MIB].into(), true, MAX_EVENT_BYTES * 2).await;
        assert_eq!((read, error.as_deref()), (MAX_EVENT_BYTES, Some("a watch event has more than 8 MiB")));
        let mut lines = vec![b' '; MIB];
        lines[MIB / 2] = b'\n';
        assert_eq!(endless(lines.into(), true, MAX_BODY_BYTES * 2).await, (MAX_BODY_BYTES * 2, None));
    }

    #[tokio::test]
    async fn hole_07_responses_of_one_api_server_are_bounded_together() {
        let limits = ResponseLimits::default();
        let chunk = Bytes::from(vec![b' '; MIB]);
        let body = || {
            let chunk = chunk.clone();
            let frames = stream::repeat_with(move || Ok::<_, Infallible>(Frame::data(chunk.clone())));
            LimitedBody::new(StreamBody::new(frames), false, limits.clone())
        };
        let mut bodies = [body(), body(), body()];
        let mut read = 0;
        let error = 'reading: loop {
            for body in &mut bodies {
                match body.frame().await.unwrap() {
                    Ok(frame) => read += frame.data_ref().map_or(0, Bytes::len),
                    Err(error) => break 'reading error,
                }
            }
        };
        assert_eq!(
            (read, error.to_string().as_str()),
            (MAX_BYTES_IN_FLIGHT, "all responses together have more than 256 MiB")
        );
        drop(bodies);
        assert_eq!(limits.bytes_in_flight.load(std::sync::atomic::Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn hole_07_a_response_that_never_ends_has_a_deadline_and_a_watch_has_none() {
        let silent = || StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let begun = Instant::now();
        let error = LimitedBody::new(silent(), false, ResponseLimits::default()).frame().await.unwrap().unwrap_err();
        assert_eq!((error.to_string().as_str(), begun.elapsed()), ("the response did not end within 75s", DEADLINE));
        let mut watch = LimitedBody::new(silent(), true, ResponseLimits::default());
        assert!(tokio::time::timeout(Duration::from_secs(3600), watch.frame()).await.is_err());
    }
}
