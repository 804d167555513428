//! Checks the identity of a connected client again: when its token or certificate ends, and at least every half hour. A
//! client that no longer passes loses its stream.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;
use tracing::info;

use super::authenticate::{AuthFailure, Authenticator, Caller, Credentials, Freshness};
use super::metrics::TrustMetrics;
use super::unix_now;

/// A check that cannot be made, because the API server does not respond, is repeated until the interval is over: at this
/// distance, or at this share of the interval if that is shorter.
const RETRY: Duration = Duration::from_secs(10);
const RETRY_SHARE: u32 = 20;

/// Authenticates the clients of xDS streams.
#[derive(Clone)]
pub(crate) struct StreamAuthentication {
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) metrics: TrustMetrics,
    pub(crate) interval: Duration,
    /// Clients of the plain-text port must authenticate too.
    pub(crate) plain_text_too: bool,
}

/// The identity of a client and how to check it again.
#[derive(Clone)]
pub(crate) struct CheckedCaller {
    pub(crate) caller: Caller,
    credentials: Credentials,
    authentication: StreamAuthentication,
}

impl std::fmt::Debug for StreamAuthentication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamAuthentication").field("interval", &self.interval).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for CheckedCaller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckedCaller").field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl StreamAuthentication {
    pub(crate) async fn authenticate(&self, credentials: Credentials) -> Result<CheckedCaller, Status> {
        let authenticated = self.authenticator.authenticate(&credentials, Freshness::Seconds).await;
        let caller = authenticated.map_err(|failure| refused(&failure))?;
        Ok(CheckedCaller { caller, credentials, authentication: self.clone() })
    }
}

fn refused(failure: &AuthFailure) -> Status {
    info!(reasons = failure.reasons.join("; "), "refused a stream: its client could not be authenticated");
    Status::unauthenticated("authentication failure")
}

impl CheckedCaller {
    /// Completes when the client no longer passes authentication.
    pub(crate) async fn ended(self) -> Status {
        let mut expires = self.caller.expires;
        loop {
            let due = Instant::now() + self.authentication.interval;
            tokio::time::sleep(self.pause(expires)).await;
            match self.check(due).await {
                Ok(caller) if caller.identities == self.caller.identities => expires = caller.expires,
                Ok(_) => return self.close("identity", "the token is of another identity now".to_owned()),
                Err(failure) => {
                    let reason = match (failure.is_unavailable, failure.is_expired) {
                        (_, true) => "expired",
                        (true, _) => "unavailable",
                        _ => "refused",
                    };
                    return self.close(reason, failure.reasons.join("; "));
                }
            }
        }
    }

    /// Until the next check: the end of the token or certificate, at most the interval with some jitter. The check itself
    /// takes time, and must be finished within the interval.
    fn pause(&self, expires: Option<i64>) -> Duration {
        let interval = self.authentication.interval.mul_f64(0.8 + 0.1 * fastrand::f64());
        let left = expires.map(|end| Duration::from_secs(u64::try_from(end.saturating_sub(unix_now())).unwrap_or(0)));
        // One second later the token has surely expired by the clock of the API server.
        left.map_or(interval, |left| interval.min(left + Duration::from_secs(1)))
    }

    /// Authenticates the client again; at `due` it must be known.
    async fn check(&self, due: Instant) -> Result<Caller, AuthFailure> {
        let retry = RETRY.min(self.authentication.interval / RETRY_SHARE);
        loop {
            let asked = self.authentication.authenticator.authenticate(&self.credentials, Freshness::Now);
            let result = tokio::time::timeout_at(due, asked).await.unwrap_or_else(|_| Err(AuthFailure::late()));
            match result {
                Err(failure) if failure.is_unavailable && !failure.is_expired && Instant::now() + retry < due => {
                    tokio::time::sleep(retry).await;
                }
                result => return result,
            }
        }
    }

    fn close(&self, label: &'static str, reason: String) -> Status {
        self.authentication.metrics.closed_stream(label);
        let identity = self.caller.identities.first().map(ToString::to_string).unwrap_or_default();
        info!(identity, reason, "closing a stream: its client no longer passes authentication");
        Status::unauthenticated("authentication failure: the credentials of this stream are no longer valid")
    }
}
