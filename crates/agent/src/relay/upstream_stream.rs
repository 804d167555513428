//! What is known of streams to the control plane across their ends: counted, and told in the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::{info, warn};

use crate::metrics::Metrics;

/// Shared by all streams of a relay.
#[derive(Debug, Default)]
pub(super) struct ReconnectState {
    /// A stream was lost and none replaced it yet.
    lost: AtomicBool,
}

/// A stream that stands; ends when dropped.
pub(super) struct UpstreamStream {
    history: Arc<ReconnectState>,
    metrics: Arc<Metrics>,
    /// Envoy ended its side first.
    done: Arc<AtomicBool>,
    /// The other side ended it, not Envoy.
    lost: bool,
}

impl UpstreamStream {
    /// The control plane accepted a stream.
    pub(super) fn begin(
        history: &Arc<ReconnectState>,
        done: Arc<AtomicBool>,
        metrics: &Arc<Metrics>,
        address: &str,
    ) -> UpstreamStream {
        metrics.pilot_connections.add();
        metrics.pilot_connected.rise();
        if history.lost.swap(false, Ordering::Relaxed) {
            metrics.pilot_reconnections.add();
            info!(%address, "connected to the control plane again");
        } else {
            info!(%address, "connected to the control plane");
        }
        UpstreamStream { history: Arc::clone(history), metrics: Arc::clone(metrics), done, lost: false }
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The stream ended. It is lost unless Envoy had ended it.
    pub(super) fn ended(&mut self, reason: &str) {
        if !self.lost && !self.done.load(Ordering::Relaxed) {
            self.lost = true;
            self.metrics.pilot_terminations.add();
            self.history.lost.store(true, Ordering::Relaxed);
            warn!(%reason, "the stream to the control plane ended; Envoy keeps what it has");
        }
    }
}

impl Drop for UpstreamStream {
    fn drop(&mut self) {
        self.metrics.pilot_connected.fall();
        if !self.lost {
            self.metrics.envoy_terminations.add();
        }
    }
}
