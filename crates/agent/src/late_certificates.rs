//! Whether a proxy that started without certificates has them now. `certificates::late` finds them; the relay and the status
//! port follow.

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Whether certificates were found. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct LateCertificates {
    found: CancellationToken,
}

impl LateCertificates {
    pub fn are_found(&self) -> bool {
        self.found.is_cancelled()
    }

    /// Waits until they are found.
    pub fn wait(&self) -> WaitForCancellationFutureOwned {
        self.found.clone().cancelled_owned()
    }

    pub fn set_found(&self) {
        self.found.cancel();
    }
}
