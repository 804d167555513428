//! Upstream's metrics of the CA, and the step of a rotation.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::metrics::PlainCounter;

/// `{error="CSR_ERROR"}`
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabel {
    error: &'static str,
}

/// `{reason="expired"}`
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Counters of the CA.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrustMetrics {
    pub(crate) requests: PlainCounter,
    pub(crate) unauthenticated: PlainCounter,
    pub(crate) malformed: PlainCounter,
    pub(crate) without_identity: PlainCounter,
    pub(crate) issued: PlainCounter,
    pub(crate) reviews: PlainCounter,
    pub(crate) failed_reviews: PlainCounter,
    errors: Family<ErrorLabel, PlainCounter>,
    closed: Family<ReasonLabel, PlainCounter>,
}

impl TrustMetrics {
    /// Counts a request that was not signed.
    pub(crate) fn not_signed(&self, error: &'static str) {
        self.errors.get_or_create(&ErrorLabel { error }).add(1);
    }

    /// Counts a stream that was closed because its client no longer passes authentication.
    pub(crate) fn closed_stream(&self, reason: &'static str) {
        self.closed.get_or_create(&ReasonLabel { reason }).add(1);
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            ("citadel_server_csr_count", "Requests for certificates", &self.requests),
            (
                "citadel_server_authentication_failure_count",
                "Requests for certificates whose caller could not be authenticated",
                &self.unauthenticated,
            ),
            ("citadel_server_csr_parsing_err_count", "CSRs that could not be parsed", &self.malformed),
            ("citadel_server_id_extraction_err_count", "Callers without an identity", &self.without_identity),
            ("citadel_server_success_cert_issuance_count", "Certificates issued", &self.issued),
            ("pilotage_token_reviews", "Token reviews that an API server was asked for", &self.reviews),
            ("pilotage_token_review_failures", "Token reviews without a usable response", &self.failed_reviews),
        ] {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "citadel_server_csr_sign_err_count",
            "CSRs that were not signed, by error",
            self.errors.clone(),
        );
        let help = "Streams closed because their client no longer passes authentication, by reason";
        registry.register("pilotage_closed_streams", help, self.closed.clone());
    }
}
