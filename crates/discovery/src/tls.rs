//! Certificates of the TLS port: from files, reloaded when they change, or issued by the own CA. Open connections keep the
//! old certificates. If a file cannot be used, the last good certificates stay in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use arc_swap::ArcSwapOption;
use net::watch::{FilePolling, PolledFiles};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use sources::disk;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use trust::certificate::Certificate;
use xxhash_rust::xxh3::xxh3_128;

use crate::args::TlsFlags;

/// Interval at which files are checked. Certificates are replaced hours before the old ones expire.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Verified certificate chain of a client; an extension of each of its requests.
#[derive(Clone, Debug)]
pub struct ClientCertificates(pub Arc<[CertificateDer<'static>]>);

/// Marks a request that arrived over TLS; an extension of the request.
#[derive(Clone, Copy, Debug)]
pub struct TlsConnection;

/// The TLS configuration, and the files it is made from.
pub struct Certificates {
    /// `None` if the own CA issues the certificate.
    files: Option<TlsFiles>,
    /// `None` until the CA has issued the first certificate.
    config: ArcSwapOption<ServerConfig>,
    /// Digest of the files when they were first read.
    first: Digest,
}

/// Returns the mesh's trust domain, which may change.
pub(crate) type TrustDomain = Arc<dyn Fn() -> String + Send + Sync>;

/// A certificate that the own CA issued to this server.
pub(crate) struct OwnCertificate {
    /// DER of the certificate and its intermediates.
    pub(crate) chain: Vec<Vec<u8>>,
    /// DER of the key in PKCS #8.
    pub(crate) key: zeroize::Zeroizing<Vec<u8>>,
    /// DER of the roots that client certificates are verified with.
    pub(crate) roots: Vec<Vec<u8>>,
    /// DER of lists of revoked client certificates.
    pub(crate) revoked: Vec<Vec<u8>>,
    /// Of client certificates.
    pub(crate) trust_domain: TrustDomain,
}

/// Hash of each file's content: symlink swaps, copies and renames are all detected.
type Digest = Vec<Option<u128>>;

#[derive(Clone, Debug)]
struct TlsFiles {
    chain: PathBuf,
    key: PathBuf,
    authorities: Option<PathBuf>,
}

impl Certificates {
    /// Reads the files; `None` if the flags name none.
    pub fn load(tls: &TlsFlags) -> Result<Option<Arc<Certificates>>> {
        let files = match (&*tls.cert_file, &*tls.key_file) {
            ("", "") => return Ok(None),
            ("", _) | (_, "") => {
                bail!("could not configure TLS: --tlsCertFile and --tlsKeyFile must be given together")
            }
            (chain, key) => TlsFiles {
                chain: chain.into(),
                key: key.into(),
                authorities: (!tls.ca_file.is_empty()).then(|| PathBuf::from(&tls.ca_file)),
            },
        };
        // Taken before reading, so that a change in between is noticed.
        let first = digest(&files);
        let config = ArcSwapOption::from(Some(config(&files)?));
        Ok(Some(Arc::new(Certificates { files: Some(files), config, first })))
    }

    /// Without a certificate: the own CA issues it.
    pub(crate) fn pending() -> Arc<Certificates> {
        Arc::new(Certificates { files: None, config: ArcSwapOption::empty(), first: Digest::new() })
    }

    /// Uses a certificate of the own CA from now on.
    pub(crate) fn publish(&self, own: OwnCertificate) -> Result<()> {
        let chain = own.chain.into_iter().map(CertificateDer::from).collect();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.key.to_vec()));
        let revoked = own.revoked.into_iter().map(CertificateRevocationListDer::from);
        let roots = net::tls::roots(own.roots.into_iter().map(CertificateDer::from))?;
        let roots = net::tls::optional_client_verifier(roots, revoked)?;
        let verifier = Arc::new(MeshClientVerifier { inner: roots, trust_domain: own.trust_domain });
        self.config.store(Some(server_config(Some(verifier), chain, key)?));
        Ok(())
    }

    /// Whether client certificates are verified.
    pub(crate) fn verifies_clients(&self) -> bool {
        self.files.as_ref().is_none_or(|files| files.authorities.is_some())
    }

    /// An acceptor with the newest certificates; `None` until there is one.
    pub fn acceptor(&self) -> Option<TlsAcceptor> {
        self.config.load_full().map(TlsAcceptor::from)
    }

    /// Reloads changed files until cancelled.
    pub async fn watch(self: Arc<Self>, cancel: CancellationToken) {
        let Some(files) = &self.files else { return };
        let own_files = files.clone();
        let polled = PolledFiles::new(FilePolling::every(CHECK_INTERVAL), move || digest(&own_files));
        let mut polled = polled.after(self.first.clone());
        while let Some(Some(_)) = cancel.run_until_cancelled(polled.changed()).await {
            // Between the replacement of the certificate and of its key the pair does not match; that is an error once.
            match config(files) {
                Ok(config) => {
                    self.config.store(Some(config));
                    info!(file = %files.chain.display(), "reloaded TLS certificates");
                }
                Err(error) => {
                    warn!(error = format!("{error:#}"), "could not reload TLS certificates; keeping the last good ones")
                }
            }
        }
    }
}

impl TlsFiles {
    fn all(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.chain), Some(&self.key), self.authorities.as_ref()].into_iter().flatten().map(PathBuf::as_path)
    }
}

fn digest(files: &TlsFiles) -> Digest {
    files.all().map(|file| disk::content(file).ok().map(|text| xxh3_128(&text))).collect()
}

fn config(files: &TlsFiles) -> Result<Arc<ServerConfig>> {
    let chain = certificates(&files.chain)?;
    let unreadable = || format!("could not read a private key from {}", files.key.display());
    let key = net::tls::private_key(&disk::content(&files.key).with_context(unreadable)?);
    let key = key.with_context(unreadable)?;
    let verifier = match &files.authorities {
        None => None,
        Some(file) => {
            let found = verifier(certificates(file)?.into_iter());
            Some(found.with_context(|| format!("could not use a CA certificate of {}", file.display()))?)
        }
    };
    server_config(verifier, chain, key)
        .with_context(|| format!("could not use the certificate {}", files.chain.display()))
}

/// Verifies client certificates. They are optional: agents authenticate with a token until they have one.
fn verifier(roots: impl Iterator<Item = CertificateDer<'static>>) -> Result<Arc<dyn ClientCertVerifier>> {
    Ok(net::tls::optional_client_verifier(net::tls::roots(roots)?, [])?)
}

fn server_config(
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>> {
    let builder = net::tls::server()?;
    let builder = match verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Verifies client certificates of the mesh: in addition to a good chain they must have exactly one URI, a SPIFFE
/// identity of the mesh's trust domain.
struct MeshClientVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    trust_domain: TrustDomain,
}

impl std::fmt::Debug for MeshClientVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeshClientVerifier").finish_non_exhaustive()
    }
}

impl ClientCertVerifier for MeshClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(leaf, intermediates, now)?;
        let identity = Certificate::from_der(leaf).and_then(|leaf| leaf.identity().ok());
        match identity {
            Some(identity) if identity.trust_domain == (self.trust_domain)() => Ok(verified),
            other => {
                debug!(identity = ?other, "refused a client certificate without an identity of the mesh");
                Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let unreadable = || format!("could not read certificates from {}", file.display());
    let content = disk::content(file).with_context(unreadable)?;
    net::tls::certificates(&content).with_context(unreadable)
}
