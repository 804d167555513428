//! An open stream to the control plane: logs and counts its start and end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::{info, warn};

use crate::metrics::Metrics;

/// Shared by all streams of a relay.
#[derive(Debug, Default)]
pub(super) struct ReconnectState {
    /// A stream was lost and not replaced yet.
    lost: AtomicBool,
}

/// An open stream; it ends on drop.
pub(super) struct UpstreamStream {
    history: Arc<ReconnectState>,
    metrics: Arc<Metrics>,
    /// Envoy ended its side first.
    done: Arc<AtomicBool>,
    /// Ended by the control plane or the network, not by Envoy.
    lost: bool,
}

impl UpstreamStream {
    /// Records a stream that the control plane accepted.
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
            info!(%address, "reconnected to the control plane");
        } else {
            info!(%address, "connected to the control plane");
        }
        UpstreamStream { history: Arc::clone(history), metrics: Arc::clone(metrics), done, lost: false }
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Records the end of the stream. It counts as lost unless Envoy ended it.
    pub(super) fn ended(&mut self, reason: &str) {
        if !self.lost && !self.done.load(Ordering::Relaxed) {
            self.lost = true;
            self.metrics.pilot_terminations.add();
            self.history.lost.store(true, Ordering::Relaxed);
            warn!(%reason, "lost the stream to the control plane; Envoy keeps its configuration");
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
