//! Workload certificates of a signer of the cluster instead of the own CA (`EXTERNAL_CA=ISTIOD_RA_KUBERNETES_API`): the CSR is
//! checked and passed on. The own CA still issues this server's certificate. Clients may authenticate with certificates of
//! the signer: its roots are trusted like those of the own CA.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::istio::mesh::v1alpha1::mesh_config::CertificateData;
use api::istio::mesh::v1alpha1::mesh_config::certificate_data::CertificateData as Content;
use sources::kubernetes::access::Access;
use sources::kubernetes::signing_requests::{SigningError, SigningRequest};
use sources::kubernetes::trust_objects::{TrustObjects, TrustRequestError};
use thiserror::Error;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};
use trust::authority::leads_to_root;
use trust::bundle::RootBundle;
use trust::certificate::{Certificate, CertificateError};

use super::Trust;

/// Value of `EXTERNAL_CA` that selects this signer.
pub(super) const EXTERNAL_CA: &str = "ISTIOD_RA_KUBERNETES_API";
/// Roots of the signer, if the file exists.
const ROOTS: &str = "./etc/external-ca-cert/root-cert.pem";
/// Roots of signers that are trusted at the same time.
const MAX_ROOTS: usize = 100;
/// How often configured roots are read again.
const READ_INTERVAL: Duration = Duration::from_secs(5);

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
    #[error(
        "there are no roots of signer {0}: put them into {ROOTS}, or into caCertificates of the mesh config; the certificate does not lead to a root of the cluster"
    )]
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
    pub(super) trust: Arc<Trust>,
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
        let roots = self.roots(&signer, &chain).await.ok_or_else(|| SignerError::NoRoots(signer.clone()))?;
        let response = response(&request, chain, &roots).ok_or(SignerError::Unusable(signer))?;
        self.trust_clients_of(&roots);
        Ok(response)
    }

    /// Keeps configured roots among those that client certificates are verified with, until cancelled.
    pub(super) async fn follow_roots(self: Arc<Self>, stop: CancellationToken) {
        let follow = async {
            loop {
                if let Some(roots) = self.configured_roots(|signer| self.may_use(signer)) {
                    self.trust_clients_of(&roots);
                }
                tokio::time::sleep(READ_INTERVAL).await;
            }
        };
        stop.run_until_cancelled(follow).await;
    }

    /// Roots are added only: certificates of a replaced root are valid until they end.
    fn trust_clients_of(&self, roots: &RootBundle) {
        self.trust.signer_roots.send_if_modified(|known| {
            let all = known.with(roots);
            let is_new = all != *known && all.roots().len() <= MAX_ROOTS;
            if is_new {
                info!(roots = all.roots().len(), "trusting client certificates of the cluster's signer");
                *known = all;
            }
            is_new
        });
    }

    fn may_use(&self, signer: &str) -> bool {
        let is_of_domain = |domain: &str| !self.domain.is_empty() && domain == self.domain;
        signer == self.default || signer.split_once('/').is_some_and(|(domain, _)| is_of_domain(domain))
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

    /// Roots of a file, else of the mesh config, else of the cluster, else the self-signed end of the chain.
    async fn roots(&self, signer: &str, chain: &[Certificate]) -> Option<RootBundle> {
        if let Some(configured) = self.configured_roots(|configured| configured == signer) {
            return Some(configured);
        }
        if let Some(of_cluster) = self.cluster_roots(chain).await {
            return Some(of_cluster);
        }
        Some(RootBundle::new([chain.last().filter(|last| last.is_self_issued())?.clone()]))
    }

    /// Roots of the cluster, which the signers of Kubernetes use, if the chain leads to one. As in upstream they are not
    /// used for the signers of a domain.
    async fn cluster_roots(&self, chain: &[Certificate]) -> Option<RootBundle> {
        if !self.domain.is_empty() {
            return None;
        }
        let roots = self.access.clone().cluster_roots().await;
        let roots = roots.inspect_err(|error| debug!(%error, "could not read the roots of the cluster")).ok()?;
        let roots = RootBundle::new(roots.iter().filter_map(|der| Certificate::from_der(der)));
        let (leaf, intermediates) = chain.split_first()?;
        leads_to_root(leaf, intermediates, &roots).then_some(roots)
    }

    /// Roots of a file, else of the mesh config for signers that are selected.
    fn configured_roots(&self, is_selected: impl Fn(&str) -> bool) -> Option<RootBundle> {
        if let Ok(text) = sources::disk::text(Path::new(ROOTS)) {
            return RootBundle::from_pem(&text).ok();
        }
        let of_signer =
            (self.ca_certificates)().into_iter().filter(|entry| entry.cert_signers.iter().any(|s| is_selected(s)));
        let texts = of_signer.filter_map(|entry| match entry.certificate_data {
            Some(Content::Pem(text)) => Some(text),
            _ => None,
        });
        let configured = texts.filter_map(|text| RootBundle::from_pem(&text).ok());
        configured.reduce(|all, more| all.with(&more))
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
