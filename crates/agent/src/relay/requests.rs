//! The upstream request body: Envoy's requests, with the agent's own inserted between them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use api::TypeUrl;
use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::sync::mpsc;

use super::frames::{BoundaryTracker, FrameSplitter};
use super::name_table::XdsProtocol;
use crate::metrics::Metrics;

/// Inserts the agent's own requests. Unbounded, because they are few and small.
pub(super) type RequestInserter = mpsc::UnboundedSender<Bytes>;

/// The body of the request to the control plane.
pub(super) struct UpstreamBody {
    envoy: Incoming,
    inserted: mpsc::UnboundedReceiver<Bytes>,
    boundaries: BoundaryTracker,
    /// Waits for Envoy's first LDS request, then subscribes to the name table.
    trigger: Option<NameTableTrigger>,
    /// Set when Envoy ends its side of the stream.
    done: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

struct NameTableTrigger {
    splitter: FrameSplitter,
    protocol: XdsProtocol,
    insert: RequestInserter,
}

impl UpstreamBody {
    /// Wraps Envoy's requests. With `names`, also subscribes to the name table.
    pub(super) fn new(
        envoy: Incoming,
        protocol: XdsProtocol,
        names: bool,
        done: Arc<AtomicBool>,
        metrics: Arc<Metrics>,
    ) -> (UpstreamBody, RequestInserter) {
        let (insert, inserted) = mpsc::unbounded_channel();
        let trigger =
            names.then(|| NameTableTrigger { splitter: FrameSplitter::default(), protocol, insert: insert.clone() });
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

impl NameTableTrigger {
    /// True once the subscription was sent or the stream is malformed.
    fn fires(&mut self, bytes: &Bytes) -> bool {
        let Ok(messages) = self.splitter.feed(bytes) else { return true };
        let kind = |request: Bytes| self.protocol.request_kind(request);
        let listeners = |message: &super::frames::GrpcFrame| {
            message.body().and_then(kind).is_some_and(|kind| kind == TypeUrl::LISTENER.as_str())
        };
        let found = messages.iter().any(listeners);
        if found {
            // Cannot fail: the receiver is this stream.
            let _ = self.insert.send(self.protocol.subscription());
        }
        found
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
