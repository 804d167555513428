//! Certificates of the TLS port, reloaded when their files change. Open connections keep the old certificates. If a file
//! cannot be used, the last good certificates stay in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sources::disk;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use xxhash_rust::xxh3::xxh3_128;

use crate::args::TlsFlags;

/// Interval at which files are checked. Certificates are replaced hours before the old ones expire.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Verified certificate chain of a client; an extension of each of its requests.
#[derive(Clone, Debug)]
pub struct ClientCertificates(pub Arc<[CertificateDer<'static>]>);

/// Certificate files and the TLS configuration made from them.
pub struct Certificates {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
    /// Digest of the files when they were first read.
    first: Digest,
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
        let config = ArcSwap::from(config(&files)?);
        Ok(Some(Arc::new(Certificates { files, config, first })))
    }

    /// An acceptor with the newest certificates.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Reloads changed files until cancelled.
    pub async fn watch(self: Arc<Self>, cancel: CancellationToken) {
        let mut seen = self.first.clone();
        while cancel.run_until_cancelled(tokio::time::sleep(CHECK_INTERVAL)).await.is_some() {
            let files = self.files.clone();
            // Fails only at shutdown.
            let Ok(now) = tokio::task::spawn_blocking(move || digest(&files)).await else { return };
            if now == seen {
                continue;
            }
            // Between the replacement of the certificate and of its key the pair does not match; that is an error once.
            match config(&self.files) {
                Ok(config) => {
                    self.config.store(config);
                    info!(file = %self.files.chain.display(), "reloaded TLS certificates");
                }
                Err(error) => {
                    warn!(error = format!("{error:#}"), "could not reload TLS certificates; keeping the last good ones")
                }
            }
            seen = now;
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
    let key = PrivateKeyDer::from_pem_slice(&disk::content(&files.key).with_context(unreadable)?);
    let key = key.with_context(unreadable)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match &files.authorities {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file)? {
                roots
                    .add(certificate)
                    .with_context(|| format!("could not use a CA certificate of {}", file.display()))?;
            }
            // Optional: agents authenticate with a token until they have a certificate.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build()?)
        }
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.with_context(|| format!("could not use the certificate {}", files.chain.display()))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let unreadable = || format!("could not read certificates from {}", file.display());
    let content = disk::content(file).with_context(unreadable)?;
    let found = CertificateDer::pem_slice_iter(&content).collect::<Result<Vec<_>, _>>().with_context(unreadable)?;
    if found.is_empty() {
        bail!("could not find a certificate in {}", file.display());
    }
    Ok(found)
}
