//! What the protocol asks of a control plane: who a client is, what it may see now, and when that changed.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use api::envoy::config::core::v3::Node;
use api::{Resource, TypeUrl, Version};
use http::{Extensions, HeaderMap};
use tonic::Status;

use crate::executor::Executor;
use crate::set::ResourceSet;

/// A control plane: admits clients.
pub trait Control: Send + Sync + 'static {
    type Client: Client;

    /// Called with the first request of a stream, whose node has an id. An error ends the stream with its status;
    /// `Unavailable` while the sources are not in sync makes clients try again.
    fn connect(&self, node: Node, peer: Peer) -> impl Future<Output = Result<Self::Client, Status>> + Send;

    /// Called for a stream that the server ended because of what its client sent or held, or failed to send.
    fn refused(&self, _address: Option<SocketAddr>, _status: &Status) {}
}

/// One connected client as the control plane knows it; dropped when the stream ends.
pub trait Client: Send + 'static {
    /// Resolves when the world moved on. May be dropped and called again at any time without losing a change.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Adopts the newest world, after `changed` resolved: until the next call `current` answers from that one, so that
    /// all types agree.
    fn adopt(&mut self) {}

    /// Adopts the newest world if that is a matter of microseconds; else returns false, and `adopt` is called where the
    /// client's work is done.
    fn adopt_quickly(&mut self) -> bool {
        false
    }

    /// Whether `current` has this type at hand, so that it need not be called where the client's work is done.
    fn is_quick(&mut self, _kind: &TypeUrl) -> bool {
        false
    }

    /// Where `adopt`, `current`, `observe` and `rejected` are called.
    fn executor(&self) -> Executor {
        Executor::default()
    }

    /// This client's resources of one type. None when the type is not served: requests for it get no answer.
    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>>;

    /// Told of everything that happens on the stream, for debug pages and metrics.
    fn observe(&mut self, event: &Event<'_>);

    /// The client refused its last response. To send the same again would only be refused again, so unless
    /// `current` leaves out the reason from now on, what was refused counts as delivered.
    fn rejected(&mut self, _rejection: &Rejection<'_>) -> Verdict {
        Verdict::Unchanged
    }
}

/// What a client refused.
#[derive(Debug)]
pub struct Rejection<'a> {
    pub kind: &'a TypeUrl,
    pub message: &'a str,
    /// What the client had not accepted before, in the order of names. One of it is to blame.
    pub offered: &'a [Offered],
}

/// A resource that was in a response.
#[derive(Clone, Debug, PartialEq)]
pub struct Offered {
    pub resource: Resource,
    pub former: Former,
}

/// What a client held under a name before a response.
#[derive(Clone, Debug, PartialEq)]
pub enum Former {
    Nothing,
    /// Something whose bytes are not at hand.
    Unknown,
    Known(Resource),
}

/// What a rejection led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `current` answers as before.
    Unchanged,
    /// `current` leaves out the reason: whatever else was refused is to be sent again.
    Changed,
}

/// Where a stream comes from.
#[derive(Debug, Default)]
pub struct Peer {
    /// The remote address, where tonic's transport or the acceptor gave one.
    pub address: Option<SocketAddr>,
    pub headers: HeaderMap,
    /// What the acceptor and the layers above attached, such as a verified identity.
    pub extensions: Extensions,
}

/// Something that happened on a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// The client began to watch a type, or changed what it wants of it.
    Subscribed { kind: &'a TypeUrl, wildcard: bool, names: &'a Arc<BTreeSet<Arc<str>>> },
    /// The client wants nothing of a type any more.
    Unsubscribed { kind: &'a TypeUrl },
    /// A response was handed to the transport.
    Sent { kind: &'a TypeUrl, nonce: &'a str, version: Version, resources: usize, removed: usize, bytes: usize },
    /// There is nothing to send of a type: its last response is as good as the current resources.
    UpToDate { kind: &'a TypeUrl },
    /// The client accepted its last response.
    Acked { kind: &'a TypeUrl, nonce: &'a str, version: Version },
    /// The client rejected its last response.
    Nacked { kind: &'a TypeUrl, nonce: &'a str, version: Version, code: i32, message: &'a str },
    /// An answer to a response that is not the last; ignored.
    Stale { kind: &'a TypeUrl, nonce: &'a str },
    /// An agent tells whether its workload is healthy.
    Health { error: Option<&'a str> },
}
