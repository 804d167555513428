//! Measures how fast one client is served: when it adopted a change, and when all of the change had been sent.

use std::sync::Arc;
use std::time::Duration;

use api::TypeUrl;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::serve::round::RoundTime;

/// Times of one stream.
#[derive(Debug)]
pub(crate) struct PushTimer {
    metrics: Arc<Metrics>,
    round: Arc<RoundTime>,
    /// When the resources of the next response were requested.
    requested: Option<Instant>,
    change: Option<Underway>,
}

/// A change that is being sent to the client.
#[derive(Debug)]
struct Underway {
    published: Instant,
    last_sent: Option<Duration>,
}

impl PushTimer {
    pub(crate) fn new(metrics: Arc<Metrics>, round: Arc<RoundTime>) -> PushTimer {
        PushTimer { metrics, round, requested: None, change: None }
    }

    /// The stream has nothing to send: its part of the last change is sent, except types that wait for the client. A
    /// change that does not concern the client is not counted.
    pub(crate) fn idle(&mut self) {
        if let Some(took) = self.change.take().and_then(|change| change.last_sent) {
            self.metrics.converged(took);
            self.round.note(took);
        }
    }

    /// The client adopts a change that was published at that time.
    pub(crate) fn adopted(&mut self, published: Instant) {
        self.metrics.taken_up(published.elapsed());
        self.change = Some(Underway { published, last_sent: None });
    }

    /// Resources are about to be computed.
    pub(crate) fn requested(&mut self) {
        self.requested = Some(Instant::now());
    }

    /// A response was sent.
    pub(crate) fn sent(&mut self, kind: &TypeUrl, bytes: usize) {
        self.metrics.sent(kind, bytes, self.requested.take().map(|requested| requested.elapsed()));
        if let Some(change) = &mut self.change {
            change.last_sent = Some(change.published.elapsed());
        }
    }

    /// The connection accepted a response.
    pub(crate) fn delivered(&self, took: Duration) {
        self.metrics.delivered(took);
    }

    /// The client has acknowledged everything of a change that was published at that time.
    pub(crate) fn acknowledged(&self, published: Instant) {
        self.metrics.recent_acknowledgements.add(published.elapsed());
    }

    pub(crate) fn refused(&self, kind: &TypeUrl) {
        self.metrics.refused(kind);
    }

    pub(crate) fn expired(&self, kind: &TypeUrl) {
        self.metrics.expired(kind);
    }
}
