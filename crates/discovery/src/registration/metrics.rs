//! Upstream's metrics of registration.

use prometheus_client::registry::Registry;

use crate::metrics::PlainCounter;

/// Counters of registration.
#[derive(Clone, Debug, Default)]
pub(crate) struct RegistrationMetrics {
    pub(super) created: PlainCounter,
    pub(super) updated: PlainCounter,
    pub(super) disconnected: PlainCounter,
    pub(super) deleted: PlainCounter,
    pub(super) failed: PlainCounter,
}

impl RegistrationMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            ("auto_registration_success_total", "Workloads that were registered", &self.created),
            ("auto_registration_updates_total", "Registered workloads that connected again", &self.updated),
            ("auto_registration_unregister_total", "Registered workloads that disconnected", &self.disconnected),
            ("auto_registration_deletes_total", "WorkloadEntries that were deleted", &self.deleted),
            ("auto_registration_errors_total", "Writes of WorkloadEntries that failed", &self.failed),
        ] {
            registry.register(name, help, counter.clone());
        }
    }
}
