//! The traits that a control plane implements: who a client is, which resources it may have, and when they change.
//! A *world* is one consistent state of all resources; a client adopts one world after the other.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::envoy::config::core::v3::Node;
use api::{Resource, TypeUrl, Version};
use http::{Extensions, HeaderMap};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::executor::Executor;
use crate::set::ResourceSet;

/// A control plane: admits clients.
pub trait Control: Send + Sync + 'static {
    type Client: Client;

    /// Called with the first request of a stream whose node has an id. An error ends the stream with its status;
    /// `Unavailable` before all sources have synced makes clients retry.
    fn connect(&self, node: Node, peer: Peer) -> impl Future<Output = Result<Self::Client, Status>> + Send;

    /// Called when the server ends a stream because its client may not be served, exceeded a limit or sent an invalid
    /// request, or because of an error of the server.
    fn refused(&self, _address: Option<SocketAddr>, _status: &Status) {}
}

/// One connected client, on the side of the control plane; dropped when the stream ends.
pub trait Client: Send + 'static {
    /// Resolves when there is a newer world. The future may be dropped and created again without losing a change.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Adopts the newest world. `current` returns resources of that world until the next call, so that all types agree.
    fn adopt(&mut self) {}

    /// Adopts the newest world if that takes microseconds. Returns false otherwise; `adopt` is then called on the
    /// executor.
    fn adopt_quickly(&mut self) -> bool {
        false
    }

    /// Whether `current` is cheap for this type, and so are resources of these names that the set does not list, so that
    /// they may be got on the stream's own task.
    fn is_quick<'a>(&mut self, _kind: &TypeUrl, _unlisted: impl Iterator<Item = &'a str>) -> bool {
        false
    }

    /// Completes when the stream must end, with its status; by default never. Called once, before the first response.
    fn ended(&self) -> Pin<Box<dyn Future<Output = Status> + Send>> {
        Box::pin(std::future::pending())
    }

    /// Runs `adopt`, `current`, `observe` and `rejected`.
    fn executor(&self) -> Executor {
        Executor::default()
    }

    /// This client's resources of one type. None if the type is not served; requests for it get no response.
    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>>;

    /// Whether this client may read debug pages. A request for them is rejected otherwise.
    fn may_debug(&self) -> bool {
        true
    }

    /// Called for every event on the stream, for debug pages and metrics.
    fn observe(&mut self, event: &Event<'_>);

    /// The transport accepted the last response after this time.
    fn delivered(&mut self, _took: Duration) {}

    /// The client rejected its last response. If `current` still returns the rejected resources after this call,
    /// they count as delivered: sending them again would only get them rejected again.
    fn rejected(&mut self, _rejection: &Rejection<'_>) -> Verdict {
        Verdict::Unchanged
    }
}

/// A response that a client rejected.
#[derive(Debug)]
pub struct Rejection<'a> {
    pub kind: &'a TypeUrl,
    pub message: &'a str,
    /// Resources that the client had not accepted before, in the order of names. One of them caused the rejection.
    pub offered: &'a [Offered],
}

/// A resource that was in a response.
#[derive(Clone, Debug, PartialEq)]
pub struct Offered {
    pub resource: Resource,
    pub former: Former,
}

/// What a client had under a name before a response.
#[derive(Clone, Debug, PartialEq)]
pub enum Former {
    Nothing,
    /// A version whose bytes are no longer available.
    Unknown,
    Known(Resource),
}

/// What the control plane did about a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `current` returns the same resources as before.
    Unchanged,
    /// `current` no longer returns the cause; everything else that was rejected is sent again.
    Changed,
}

/// Where a stream comes from.
#[derive(Debug, Default)]
pub struct Peer {
    /// The remote address, if the transport or the acceptor provides one.
    pub address: Option<SocketAddr>,
    pub headers: HeaderMap,
    /// Extensions of the request, as set by the acceptor and by layers above, such as a verified identity.
    pub extensions: Extensions,
}

/// An extension of requests that closes their connection, for a client that takes no data.
#[derive(Clone, Debug)]
pub struct CloseConnection(pub CancellationToken);

/// An event on a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// The client subscribed to a type or changed its subscription.
    Subscribed { kind: &'a TypeUrl, wildcard: bool, names: &'a Arc<BTreeSet<Arc<str>>> },
    /// The client unsubscribed from all resources of a type.
    Unsubscribed { kind: &'a TypeUrl },
    /// A response was passed to the transport.
    Sent { kind: &'a TypeUrl, nonce: &'a str, version: Version, resources: usize, removed: usize, bytes: usize },
    /// Nothing has to be sent for a type: the client has the current resources.
    UpToDate { kind: &'a TypeUrl },
    /// The client accepted its last response.
    Acked { kind: &'a TypeUrl, nonce: &'a str, version: Version },
    /// The client has answered everything of the current world, and nothing is left to send or to remove.
    Settled,
    /// The client rejected its last response.
    Nacked { kind: &'a TypeUrl, nonce: &'a str, version: Version, code: i32, message: &'a str },
    /// A request with the nonce of an earlier response; ignored.
    Stale { kind: &'a TypeUrl, nonce: &'a str },
    /// An agent reported whether its workload is healthy.
    Health { error: Option<&'a str> },
}
