//! The response body for Envoy: the control plane's responses without those for the agent. However the upstream stream
//! ends, Envoy gets a gRPC status, so that it reconnects and resubscribes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use api::TypeUrl;
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::task::AbortHandle;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;
use tracing::info;

use super::frames::{BoundaryTracker, FrameSplitter};
use super::name_table::{NameTableSender, XdsProtocol};
use super::requests::RequestInserter;
use super::trust_bundle::{self, TrustBundleSender};
use super::upstream_stream::UpstreamStream;
use crate::file_secrets::FileSecretNames;
use crate::file_secrets::scan::NameScanner;

/// The response body for Envoy.
pub(super) struct DownstreamBody {
    control_plane: Incoming,
    /// Closed with this body: each stream has its own connection.
    connection: UpstreamConnection,
    upstream: UpstreamStream,
    boundaries: BoundaryTracker,
    tap: Option<AgentTap>,
    /// Certificates that the control plane does not know of; the stream ends when they are found.
    late_certificates: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Finds file secret names before Envoy can request them.
    scanner: NameScanner,
    file_secrets: FileSecretNames,
    ready: VecDeque<Bytes>,
    ended: bool,
}

/// The task that drives the connection to the control plane.
pub(super) struct UpstreamConnection(pub(super) AbortHandle);

impl Drop for UpstreamConnection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Removes responses for the agent from the stream and consumes them.
pub(super) struct AgentTap {
    pub(super) protocol: XdsProtocol,
    /// Receives the name table.
    pub(super) names: Option<Arc<NameTableSender>>,
    /// Receives the trust bundle.
    pub(super) bundle: Option<TrustBundleSender>,
    pub(super) insert: RequestInserter,
    pub(super) splitter: FrameSplitter,
}

impl DownstreamBody {
    pub(super) fn new(
        control_plane: Incoming,
        connection: UpstreamConnection,
        upstream: UpstreamStream,
        tap: Option<AgentTap>,
        late_certificates: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
        file_secrets: FileSecretNames,
    ) -> DownstreamBody {
        DownstreamBody {
            control_plane,
            connection,
            upstream,
            boundaries: BoundaryTracker::default(),
            tap,
            late_certificates,
            scanner: NameScanner::default(),
            file_secrets,
            ready: VecDeque::new(),
            ended: false,
        }
    }

    fn pass(&mut self, bytes: Bytes) -> Result<(), Status> {
        for _ in 0..self.boundaries.advance(&bytes) {
            self.upstream.metrics().xds_responses.add();
        }
        self.scanner.feed(&bytes, &self.file_secrets);
        match &mut self.tap {
            None => self.ready.push_back(bytes),
            Some(tap) => self.ready.extend(tap.pass_on(&bytes)?),
        }
        Ok(())
    }

    fn end(&mut self, status: &Status) -> Frame<Bytes> {
        self.ended = true;
        self.upstream.ended(status.message());
        self.connection.0.abort();
        Frame::trailers(trailers(status))
    }
}

impl AgentTap {
    /// Returns the messages for Envoy.
    fn pass_on(&mut self, bytes: &[u8]) -> Result<Vec<Bytes>, Status> {
        let messages =
            self.splitter.feed(bytes).map_err(|_| Status::internal("the control plane sent malformed gRPC frames"))?;
        let mut passed = Vec::new();
        for message in messages {
            match message.body().and_then(|body| self.consume(body)) {
                // Fails only if the stream has ended.
                Some(answer) => drop(self.insert.send(answer)),
                None => passed.push(message.bytes()),
            }
        }
        Ok(passed)
    }

    /// The answer to a response for the agent; `None` for Envoy's.
    fn consume(&self, body: Bytes) -> Option<Bytes> {
        let kind = self.protocol.response_kind(body.clone())?;
        match (&self.names, &self.bundle) {
            (Some(names), _) if kind == TypeUrl::NAME_TABLE.as_str() => Some(self.protocol.consume(body, names)),
            (_, Some(bundle)) if kind == TypeUrl::PROXY_CONFIG.as_str() => {
                Some(trust_bundle::consume(self.protocol, body, bundle))
            }
            _ => None,
        }
    }
}

impl Body for DownstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let is_found =
                |late: &mut Pin<Box<WaitForCancellationFutureOwned>>| Future::poll(late.as_mut(), cx).is_ready();
            if self.late_certificates.as_mut().is_some_and(is_found) {
                let frame =
                    self.end(&Status::unavailable("the proxy has certificates now, which a new stream reports"));
                return Poll::Ready(Some(Ok(frame)));
            }
            let status = match ready!(Pin::new(&mut self.control_plane).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => match self.pass(bytes) {
                        Ok(()) => continue,
                        Err(status) => status,
                    },
                    Err(frame) => {
                        self.ended = true;
                        let trailers = frame.into_trailers().unwrap_or_default();
                        self.upstream.ended(&status_text(&trailers));
                        return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                    }
                },
                Some(Err(error)) => {
                    Status::unavailable(format!("lost the connection to the control plane: {}", causes(&error)))
                }
                None => Status::unavailable("the control plane ended the stream without a status"),
            };
            let frame = self.end(&status);
            return Poll::Ready(Some(Ok(frame)));
        }
    }
}

/// The gRPC status in trailers as text.
fn status_text(trailers: &HeaderMap) -> String {
    let text = |name| trailers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    format!("status {} {}", text("grpc-status"), text("grpc-message"))
}

fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if status.add_header(&mut trailers).is_err() {
        info!(%status, "could not encode the status as trailers; sending UNAVAILABLE");
        trailers.insert("grpc-status", http::HeaderValue::from(tonic::Code::Unavailable as i32));
    }
    trailers
}

/// An error with all its sources: hyper's own messages have no detail.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
