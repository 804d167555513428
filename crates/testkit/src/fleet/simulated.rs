//! One simulated proxy, connected or not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use api::TypeUrl;
use tokio::task::JoinHandle;

use super::proxy::{Profile, Received};
use super::staleness::Staleness;
use super::stream::ProxyStream;
use crate::envoy::XdsTransport;

pub(super) struct SimulatedProxy {
    server: SocketAddr,
    profile: Profile,
    received: Arc<Received>,
    stream: Option<JoinHandle<()>>,
}

impl SimulatedProxy {
    pub(super) fn new(server: SocketAddr, profile: Profile, staleness: Arc<Staleness>) -> SimulatedProxy {
        SimulatedProxy { server, profile, received: Arc::new(Received::new(staleness)), stream: None }
    }

    /// Opens a stream. A delta proxy that was connected before returns with the versions it holds.
    pub(super) fn connect(&mut self) {
        if self.profile.transport == XdsTransport::Sotw {
            self.received.forget_held();
        }
        let (profile, received) = (self.profile.clone(), self.received.clone());
        self.stream = Some(tokio::spawn(ProxyStream { server: self.server, profile, received }.run()));
    }

    pub(super) fn disconnect(&mut self) {
        self.stream.take().inspect(JoinHandle::abort);
        self.received.note_disconnected();
    }

    /// Ends when the proxy has resources of all types.
    pub(super) fn synced(&self) -> impl Future<Output = ()> + Send + 'static {
        self.received.synced()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.received.bytes.load(Ordering::Relaxed)
    }

    /// Whether its stream is open, how many ended, and the bytes that were read of all, if it reads slowly.
    pub(super) fn stream_state(&self) -> (bool, u64, u64) {
        let Received { is_open, ended, taken, .. } = &*self.received;
        (is_open.load(Ordering::Relaxed), ended.load(Ordering::Relaxed), taken.load(Ordering::Relaxed))
    }

    /// The first time after `begun` at which the proxy received this type.
    pub(super) async fn received(&self, kind: &TypeUrl, begun: Instant) -> Instant {
        self.received.first_after(kind, begun).await
    }
}

impl Drop for SimulatedProxy {
    fn drop(&mut self) {
        self.disconnect();
    }
}
