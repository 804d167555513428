//! CertificateSigningRequests: created, approved, waited for and deleted. A signer of the cluster issues the certificate.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::trust_objects::{TrustObjects, TrustRequestError, within};

/// Time for a signer to issue a certificate.
const LIMIT: Duration = Duration::from_secs(10);
/// Pauses between two looks at the request: doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// Shortest lifetime that an API server accepts.
const MIN_SECONDS: i64 = 600;
const USAGES: [&str; 4] = ["digital signature", "key encipherment", "server auth", "client auth"];

/// A request to a signer of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct SigningRequest<'a> {
    /// The CSR, in PEM.
    pub csr: &'a str,
    pub signer: &'a str,
    /// Lifetime of the certificate.
    pub seconds: i64,
}

/// Why there is no certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SigningError {
    #[error("could not {action} a CertificateSigningRequest for signer {signer}: {reason}")]
    Request { action: &'static str, signer: String, reason: TrustRequestError },
    #[error("signer {signer} refused the request: {reason}")]
    Refused { signer: String, reason: String },
    #[error("signer {signer} issued no certificate within {LIMIT:?}")]
    Late { signer: String },
}

impl TrustObjects {
    /// Obtains a certificate: the signer's chain in PEM. The request is deleted afterwards.
    pub async fn sign(&self, request: SigningRequest<'_>) -> Result<String, SigningError> {
        let api: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let failed = |action| {
            let signer = request.signer.to_owned();
            move |reason| SigningError::Request { action, signer, reason }
        };
        let created = within(api.create(&PostParams::default(), &object(request))).await.map_err(failed("create"))?;
        let name = created.name_any();
        let issued = async {
            let condition = json!({"type": "Approved", "status": "True", "reason": "AutoApproved",
                "message": "the caller proved its identity"});
            let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
            let parameters = PatchParams::default();
            let approved = api.patch_subresource("approval", &name, &parameters, &patch);
            within(approved).await.map_err(failed("approve"))?;
            wait(&api, &name, request.signer).await
        }
        .await;
        if let Err(error) = within(api.delete(&name, &DeleteParams::default())).await {
            debug!(name, %error, "could not delete a CertificateSigningRequest; the cluster removes it later");
        }
        issued
    }
}

fn object(request: SigningRequest<'_>) -> CertificateSigningRequest {
    let seconds = i32::try_from(request.seconds.max(MIN_SECONDS)).unwrap_or(i32::MAX);
    CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("csr-workload-".to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            expiration_seconds: Some(seconds),
            request: ByteString(request.csr.as_bytes().to_vec()),
            signer_name: request.signer.to_owned(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    }
}

/// Looks at the request until it has a certificate.
async fn wait(api: &Api<CertificateSigningRequest>, name: &str, signer: &str) -> Result<String, SigningError> {
    let (end, mut pause) = (Instant::now() + LIMIT, FIRST_PAUSE);
    let signer = signer.to_owned();
    loop {
        let found = within(api.get(name)).await.map_err(|reason| SigningError::Request {
            action: "read",
            signer: signer.clone(),
            reason,
        })?;
        let status = found.status.unwrap_or_default();
        if let Some(ByteString(certificate)) = status.certificate {
            return String::from_utf8(certificate)
                .map_err(|_| SigningError::Refused { signer, reason: "its certificate is not PEM".to_owned() });
        }
        let refusal =
            status.conditions.into_iter().flatten().find(|found| ["Denied", "Failed"].contains(&&*found.type_));
        if let Some(condition) = refusal {
            let reason: String = condition.message.unwrap_or(condition.type_).chars().take(300).collect();
            return Err(SigningError::Refused { signer, reason });
        }
        if Instant::now() + pause > end {
            return Err(SigningError::Late { signer });
        }
        sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}
