//! The upstream request body: Envoy's requests, with the agent's own inserted between them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use api::TypeUrl;
use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::sync::{mpsc, watch};

use super::frames::{BoundaryTracker, FrameSplitter};
use super::name_table::XdsProtocol;
use crate::metrics::Metrics;
use crate::status::health::WorkloadHealth;

/// Inserts the agent's own requests. Unbounded, because they are few and small.
pub(super) type RequestInserter = mpsc::UnboundedSender<Bytes>;

/// What the agent itself requests on Envoy's streams.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnRequests {
    /// Types to subscribe to.
    pub(super) kinds: Vec<TypeUrl>,
    /// Report the workload's health.
    pub(super) health: Option<watch::Receiver<Option<WorkloadHealth>>>,
}

/// The body of the request to the control plane.
pub(super) struct UpstreamBody {
    envoy: Incoming,
    inserted: mpsc::UnboundedReceiver<Bytes>,
    boundaries: BoundaryTracker,
    /// Waits for Envoy's first LDS request, then sends the agent's own.
    trigger: Option<OwnRequestsTrigger>,
    /// Set when Envoy ends its side of the stream.
    done: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

struct OwnRequestsTrigger {
    own: OwnRequests,
    splitter: FrameSplitter,
    protocol: XdsProtocol,
    insert: RequestInserter,
}

impl UpstreamBody {
    /// Wraps Envoy's requests, and adds the agent's own.
    pub(super) fn new(
        envoy: Incoming,
        protocol: XdsProtocol,
        own: OwnRequests,
        done: Arc<AtomicBool>,
        metrics: Arc<Metrics>,
    ) -> (UpstreamBody, RequestInserter) {
        let (insert, inserted) = mpsc::unbounded_channel();
        let trigger = (!own.kinds.is_empty() || own.health.is_some()).then(|| OwnRequestsTrigger {
            own,
            splitter: FrameSplitter::default(),
            protocol,
            insert: insert.clone(),
        });
        (UpstreamBody { envoy, inserted, boundaries: BoundaryTracker::default(), trigger, done, metrics }, insert)
    }

    fn pass(&mut self, bytes: &Bytes) {
        for _ in 0..self.boundaries.advance(bytes) {
            self.metrics.xds_requests.add();
        }
        if self.trigger.as_mut().is_some_and(|trigger| trigger.fires(bytes)) {
            self.trigger = None;
        }
    }
}

impl OwnRequestsTrigger {
    /// True once the requests were sent or the stream is malformed.
    fn fires(&mut self, bytes: &Bytes) -> bool {
        let Ok(messages) = self.splitter.feed(bytes) else { return true };
        let kind = |request: Bytes| self.protocol.request_kind(request);
        let listeners = |message: &super::frames::GrpcFrame| {
            message.body().and_then(kind).is_some_and(|kind| kind == TypeUrl::LISTENER.as_str())
        };
        let found = messages.iter().any(listeners);
        if found {
            for kind in &self.own.kinds {
                // Cannot fail: the receiver is this stream.
                let _ = self.insert.send(self.protocol.subscription(kind));
            }
            if let Some(health) = self.own.health.take() {
                tokio::spawn(report(health, self.protocol, self.insert.clone()));
            }
        }
        found
    }
}

/// Reports the health and each of its changes until the stream ends.
async fn report(mut health: watch::Receiver<Option<WorkloadHealth>>, protocol: XdsProtocol, insert: RequestInserter) {
    loop {
        let current = health.borrow_and_update().clone();
        if let Some(current) = current
            && insert.send(protocol.health(&current)).is_err()
        {
            return;
        }
        tokio::select! {
            changed = health.changed() => if changed.is_err() { return },
            () = insert.closed() => return,
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.boundaries.at_boundary()
            && let Poll::Ready(Some(own)) = self.inserted.poll_recv(cx)
        {
            return Poll::Ready(Some(Ok(Frame::data(own))));
        }
        let polled = Pin::new(&mut self.envoy).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(bytes) = frame.data_ref().cloned() {
                    self.pass(&bytes);
                }
            }
            Poll::Ready(Some(Err(_)) | None) => self.done.store(true, Ordering::Relaxed),
            Poll::Pending => {}
        }
        polled
    }
}
