//! Workload certificates of a signer of the cluster instead of the own CA (`EXTERNAL_CA=ISTIOD_RA_KUBERNETES_API`): the CSR is
//! checked and passed on. The own CA still issues this server's certificate.

use std::path::Path;
use std::sync::Arc;

use api::istio::mesh::v1alpha1::mesh_config::CertificateData;
use api::istio::mesh::v1alpha1::mesh_config::certificate_data::CertificateData as Content;
use sources::kubernetes::access::Access;
use sources::kubernetes::signing_requests::{SigningError, SigningRequest};
use sources::kubernetes::trust_objects::{TrustObjects, TrustRequestError};
use thiserror::Error;
use tokio::sync::OnceCell;
use trust::authority::leads_to_root;
use trust::bundle::RootBundle;
use trust::certificate::{Certificate, CertificateError};

/// Value of `EXTERNAL_CA` that selects this signer.
pub(super) const EXTERNAL_CA: &str = "ISTIOD_RA_KUBERNETES_API";
/// Roots of the signer, if the file exists.
const ROOTS: &str = "./etc/external-ca-cert/root-cert.pem";

/// Reads `caCertificates` of the mesh config.
pub(crate) type CaCertificatesReader = Arc<dyn Fn() -> Vec<CertificateData> + Send + Sync>;

/// Why there is no certificate.
#[derive(Debug, Error)]
pub(super) enum SignerError {
    #[error("no signer is configured: set K8S_SIGNER, or CERT_SIGNER_DOMAIN and name a signer in the request")]
    NoSigner,
    #[error("{0:?} is not a name of a signer")]
    Name(String),
    #[error("could not connect to the API server: {0}")]
    Connect(TrustRequestError),
    #[error(transparent)]
    Signing(#[from] SigningError),
    #[error("could not read the certificate of signer {0}: {1}")]
    Certificate(String, CertificateError),
    #[error("there are no roots of signer {0}: put them into {ROOTS}, or into caCertificates of the mesh config")]
    NoRoots(String),
    #[error(
        "the certificate of signer {0} is for another key, does not name the caller alone, or does not lead to a root"
    )]
    Unusable(String),
}

/// The signers of the cluster.
pub(super) struct KubernetesSigner {
    pub(super) access: Access,
    pub(super) client: OnceCell<TrustObjects>,
    /// Signer of requests that name none; may be empty.
    pub(super) default: String,
    /// Domain of signers that requests name; may be empty.
    pub(super) domain: String,
    pub(super) ca_certificates: CaCertificatesReader,
}

/// A checked request.
pub(super) struct SignerRequest<'a> {
    pub(super) csr: &'a str,
    /// DER of its public key.
    pub(super) public_key: &'a [u8],
    pub(super) identities: &'a [String],
    /// `CertSigner` of the request.
    pub(super) signer: Option<&'a str>,
    pub(super) seconds: i64,
}

impl KubernetesSigner {
    /// The response: the leaf, each intermediate, and as the last element all roots.
    pub(super) async fn sign(&self, request: SignerRequest<'_>) -> Result<Vec<String>, SignerError> {
        let signer = self.name(request.signer)?;
        let connect = || async { TrustObjects::connect(self.access.clone()).await };
        let client = self.client.get_or_try_init(connect).await.map_err(SignerError::Connect)?;
        let signing = SigningRequest { csr: request.csr, signer: &signer, seconds: request.seconds };
        let text = client.sign(signing).await?;
        let chain =
            Certificate::all_from_pem(&text).map_err(|error| SignerError::Certificate(signer.clone(), error))?;
        let roots = self.roots(&signer, &chain).ok_or_else(|| SignerError::NoRoots(signer.clone()))?;
        response(&request, chain, &roots).ok_or(SignerError::Unusable(signer))
    }

    fn name(&self, named: Option<&str>) -> Result<String, SignerError> {
        match named {
            Some(name) if !self.domain.is_empty() => {
                let is_name =
                    name.len() <= 253 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b));
                if is_name { Ok(format!("{}/{name}", self.domain)) } else { Err(SignerError::Name(name.to_owned())) }
            }
            _ if self.default.is_empty() => Err(SignerError::NoSigner),
            _ => Ok(self.default.clone()),
        }
    }

    /// Roots of a file, else of the mesh config, else the self-signed end of the chain.
    fn roots(&self, signer: &str, chain: &[Certificate]) -> Option<RootBundle> {
        if let Ok(text) = sources::disk::text(Path::new(ROOTS)) {
            return RootBundle::from_pem(&text).ok();
        }
        let of_signer =
            (self.ca_certificates)().into_iter().filter(|entry| entry.cert_signers.iter().any(|s| s == signer));
        let texts = of_signer.filter_map(|entry| match entry.certificate_data {
            Some(Content::Pem(text)) => Some(text),
            _ => None,
        });
        let configured = texts.filter_map(|text| RootBundle::from_pem(&text).ok());
        let configured = configured.reduce(|all, more| all.with(&more));
        configured.or_else(|| Some(RootBundle::new([chain.last().filter(|last| last.is_self_issued())?.clone()])))
    }
}

/// `None` if the certificate is not what was requested.
fn response(request: &SignerRequest<'_>, mut chain: Vec<Certificate>, roots: &RootBundle) -> Option<Vec<String>> {
    chain.retain(|certificate| !roots.contains(certificate));
    let (leaf, intermediates) = chain.split_first()?;
    let is_named = leaf.dns_names.is_empty()
        && !leaf.uris.is_empty()
        && leaf.uris.iter().all(|uri| request.identities.contains(uri));
    let is_usable =
        is_named && !leaf.is_ca && leaf.public_key() == request.public_key && leads_to_root(leaf, intermediates, roots);
    is_usable.then(|| chain.iter().map(Certificate::to_pem).chain([roots.to_pem()]).collect())
}
