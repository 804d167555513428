//! Upstream's metrics of the webhooks.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::metrics::PlainCounter;

const SECONDS: [f64; 8] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1.0];

/// `{reason="invalid_resource"}`
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ValidationLabel {
    group: String,
    version: String,
    resource: String,
    reason: &'static str,
}

/// `{name="istio-sidecar-injector"}`
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConfigurationLabel {
    name: String,
}

/// Counters of the webhooks.
#[derive(Clone, Debug)]
pub(crate) struct WebhookMetrics {
    pub(super) requests: PlainCounter,
    pub(super) injected: PlainCounter,
    pub(super) failed: PlainCounter,
    pub(super) skipped: PlainCounter,
    pub(super) seconds: Histogram,
    pub(super) validated: PlainCounter,
    pub(super) bad_requests: PlainCounter,
    rejected: Family<ValidationLabel, PlainCounter>,
    patches: Family<ConfigurationLabel, PlainCounter>,
    patch_failures: Family<ConfigurationLabel, PlainCounter>,
}

impl Default for WebhookMetrics {
    fn default() -> WebhookMetrics {
        WebhookMetrics {
            requests: PlainCounter::default(),
            injected: PlainCounter::default(),
            failed: PlainCounter::default(),
            skipped: PlainCounter::default(),
            seconds: Histogram::new(SECONDS),
            validated: PlainCounter::default(),
            bad_requests: PlainCounter::default(),
            rejected: Family::default(),
            patches: Family::default(),
            patch_failures: Family::default(),
        }
    }
}

impl WebhookMetrics {
    /// Counts an object that was rejected. Kinds are those of the API server's rules, so there are few.
    pub(super) fn rejected(&self, group: &str, version: &str, resource: &str, reason: &'static str) {
        let short = |text: &str| text.chars().take(64).collect();
        let label = ValidationLabel { group: short(group), version: short(version), resource: short(resource), reason };
        self.rejected.get_or_create(&label).add(1);
    }

    pub(super) fn patched(&self, name: &str) {
        self.patches.get_or_create(&ConfigurationLabel { name: name.to_owned() }).add(1);
    }

    pub(super) fn patch_failed(&self, name: &str) {
        self.patch_failures.get_or_create(&ConfigurationLabel { name: name.to_owned() }).add(1);
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            ("sidecar_injection_requests_total", "Requests for injection", &self.requests),
            ("sidecar_injection_success_total", "Pods that were injected", &self.injected),
            ("sidecar_injection_failure_total", "Pods that could not be injected", &self.failed),
            ("sidecar_injection_skip_total", "Pods that were left alone", &self.skipped),
            ("galley_validation_passed", "Objects that passed validation", &self.validated),
            ("galley_validation_http_error", "Requests for validation that were none", &self.bad_requests),
        ] {
            registry.register(name, help, counter.clone());
        }
        registry.register("sidecar_injection_time_seconds", "Time of an injection", self.seconds.clone());
        registry.register("galley_validation_failed", "Objects that were rejected", self.rejected.clone());
        registry.register("webhook_patch_attempts_total", "Writes of webhook configurations", self.patches.clone());
        registry.register(
            "webhook_patch_failures_total",
            "Writes of webhook configurations that failed",
            self.patch_failures.clone(),
        );
    }
}
