//! The request rate limit for an API server: a token bucket in front of a client. A watch counts as one request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep};
use tower::{Layer, Service};

/// client-go's defaults, used for a rate or a burst of zero.
const DEFAULT: RateLimit = RateLimit { per_second: 5.0, burst: 10.0 };

/// Requests per second, and the size of a burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    per_second: f64,
    burst: f64,
}

impl RateLimit {
    /// The limit that `--kubernetesApiQPS` and `--kubernetesApiBurst` set. A negative rate means no limit (`None`), zero
    /// means client-go's default.
    pub fn of_flags(per_second: f64, burst: i64) -> Option<RateLimit> {
        if !per_second.is_finite() || per_second < 0.0 {
            return None;
        }
        let per_second = if per_second == 0.0 { DEFAULT.per_second } else { per_second };
        // A bucket of size 0 would let no request pass.
        let burst = if burst == 0 { DEFAULT.burst } else { burst.max(1) as f64 };
        Some(RateLimit { per_second, burst })
    }
}

/// The token bucket that all clients of one API server share. Without a limit it is never empty.
#[derive(Clone, Debug)]
pub(super) struct TokenBucket {
    rate_limit: Option<RateLimit>,
    state: Arc<Mutex<BucketState>>,
}

#[derive(Debug)]
struct BucketState {
    /// Negative while requests wait for tokens that they have already taken.
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    pub(super) fn new(rate_limit: Option<RateLimit>) -> TokenBucket {
        let tokens = rate_limit.map_or(0.0, |rate_limit| rate_limit.burst);
        TokenBucket { rate_limit, state: Arc::new(Mutex::new(BucketState { tokens, at: Instant::now() })) }
    }

    pub(super) fn rate_limit(&self) -> Option<RateLimit> {
        self.rate_limit
    }

    /// Takes a token and returns how long to wait for it.
    fn take(&self) -> Duration {
        let Some(rate_limit) = self.rate_limit else { return Duration::ZERO };
        let mut state = self.state.lock();
        let now = Instant::now();
        let earned = now.duration_since(state.at).as_secs_f64() * rate_limit.per_second;
        state.tokens = (state.tokens + earned).min(rate_limit.burst) - 1.0;
        state.at = now;
        Duration::try_from_secs_f64(-state.tokens / rate_limit.per_second).unwrap_or_default()
    }
}

impl<S> Layer<S> for TokenBucket {
    type Service = RateLimitedClient<S>;

    fn layer(&self, inner: S) -> RateLimitedClient<S> {
        RateLimitedClient { inner, bucket: self.clone(), turn: None }
    }
}

/// A client that takes a token before each request.
#[derive(Debug)]
pub(super) struct RateLimitedClient<S> {
    inner: S,
    bucket: TokenBucket,
    /// The wait for a token that was taken and not used yet.
    turn: Option<Pin<Box<Sleep>>>,
}

impl<S: Service<R>, R> Service<R> for RateLimitedClient<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        let bucket = &self.bucket;
        let turn = self.turn.get_or_insert_with(|| Box::pin(sleep(bucket.take())));
        if !turn.is_elapsed() {
            ready!(turn.as_mut().poll(context));
        }
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.turn = None;
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use tokio::time::Instant;
    use tower::{Layer, Service, ServiceExt, service_fn};

    use super::{DEFAULT, RateLimit, TokenBucket};

    /// When each request was sent, in milliseconds after the first.
    async fn sent(bucket: &TokenBucket, requests: usize) -> Vec<u128> {
        let begun = Instant::now();
        let mut client = bucket.layer(service_fn(|()| async { Ok::<_, Infallible>(Instant::now()) }));
        let mut times = Vec::new();
        for _ in 0..requests {
            let at = client.ready().await.unwrap().call(()).await.unwrap();
            times.push(at.duration_since(begun).as_millis());
        }
        times
    }

    fn rate_limit(per_second: f64, burst: i64) -> TokenBucket {
        TokenBucket::new(RateLimit::of_flags(per_second, burst))
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
        assert_eq!(sent(&rate_limit(10.0, 3), 5).await, [0, 0, 0, 100, 200]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_bucket_fills_up_to_its_burst() {
        let bucket = rate_limit(10.0, 2);
        sent(&bucket, 2).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(sent(&bucket, 4).await, [0, 0, 100, 200]);
    }

    #[tokio::test(start_paused = true)]
    async fn clients_of_one_server_share_a_bucket() {
        let bucket = rate_limit(10.0, 1);
        let (one, other) = (bucket.clone(), bucket);
        let (one, other) = tokio::join!(sent(&one, 2), sent(&other, 2));
        let mut all = [one, other].concat();
        all.sort_unstable();
        assert_eq!(all, [0, 100, 200, 300]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_negative_rate_is_no_limit() {
        assert_eq!(sent(&rate_limit(-1.0, 1), 1000).await.last(), Some(&0));
    }

    #[test]
    fn zeros_are_the_defaults_of_client_go() {
        assert_eq!(RateLimit::of_flags(0.0, 0), Some(DEFAULT));
        assert_eq!(RateLimit::of_flags(f64::NAN, 1), None);
    }
}
