//! Certificates from the CA: a new key and CSR for each request, renewed in time. The old certificate is served until the
//! new one has arrived.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};
use trust::certificate::Certificate;
use trust::csr;
use trust::issue::SubjectName;
use trust::key::{KeyFormat, KeyKind, PrivateKey};
use trust::lifetime;
use trust::wire::{IstioCertificateRequest, Metadata};

use super::ca::create_certificate;
use super::output::OutputFolder;
use super::{CertificateStore, CurrentMaterial, TlsMaterial};
use crate::metrics::Metrics;
use crate::relay::Upstream;

/// Back-off after a failed request: starts here, grows by half up to the limit, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Shortest time between two renewals.
const MIN_RENEWAL: Duration = Duration::from_millis(500);

/// How certificates are obtained from the CA.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaSettings {
    pub upstream: Upstream,
    /// SPIFFE URI that is requested. The CA issues the caller's own.
    pub identity: String,
    /// Lifetime that is requested.
    pub lifetime: Duration,
    /// A certificate is renewed when this share of its life is left, moved by up to the jitter.
    pub grace_ratio: f64,
    pub grace_jitter: f64,
    pub key: WorkloadKey,
    pub pkcs8: bool,
    /// `CertSigner` of the request.
    pub signer: Option<String>,
    /// Folder that the certificates are also written to (`OUTPUT_CERTS`).
    pub output: Option<PathBuf>,
    /// Whether other users may read these files.
    pub output_is_shared: bool,
}

/// Kind of a workload's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkloadKey {
    /// With this many bits.
    Rsa(u32),
    P256,
    P384,
}

impl WorkloadKey {
    fn kind(self) -> Option<KeyKind> {
        match self {
            WorkloadKey::Rsa(bits) => KeyKind::rsa(bits),
            WorkloadKey::P256 => Some(KeyKind::P256),
            WorkloadKey::P384 => Some(KeyKind::P384),
        }
    }
}

impl CaSettings {
    /// Obtains certificates and publishes them. Never returns.
    pub async fn run(self, store: CertificateStore, metrics: Arc<Metrics>) {
        let output = self.output.as_ref().map(|folder| OutputFolder::new(folder.clone(), self.output_is_shared));
        tokio::select! {
            () = write_changes(output, store.subscribe()) => {}
            () = self.renew(&store, &metrics) => {}
        }
    }

    /// Obtains certificates whenever they are due. Never returns.
    async fn renew(&self, store: &CertificateStore, metrics: &Metrics) {
        let mut pause = FIRST_PAUSE;
        loop {
            metrics.csr_requests.add();
            let begun = std::time::Instant::now();
            let result = self.obtain(store).await;
            metrics.csr_duration.observe(begun.elapsed());
            let wait = match result {
                Ok((material, not_after)) => {
                    pause = FIRST_PAUSE;
                    metrics.certificate_expiry.set(not_after as f64);
                    store.publish(material);
                    let random = fastrand::f64();
                    lifetime::renewal_delay(now(), not_after, self.grace_ratio, self.grace_jitter, random)
                        .max(MIN_RENEWAL)
                }
                Err(error) => {
                    metrics.csr_failures.add();
                    let kept = if store.current().is_some() {
                        "the current certificate stays in use"
                    } else {
                        "Envoy waits for one"
                    };
                    let wait = pause.mul_f64(0.5 + fastrand::f64());
                    let reason = format!("could not obtain a certificate: {error:#}");
                    warn!("{reason}; {kept}, retrying in {wait:?}");
                    store.fail(reason);
                    pause = pause.mul_f64(1.5).min(MAX_PAUSE);
                    wait
                }
            };
            sleep(wait).await;
        }
    }

    /// A new certificate and its expiry in seconds since 1970.
    async fn obtain(&self, store: &CertificateStore) -> Result<(TlsMaterial, i64)> {
        let kind = self.key.kind().context("could not make a key: RSA keys have 2048 to 4096 bits")?;
        // An RSA key takes some hundred milliseconds.
        let key = tokio::task::spawn_blocking(move || PrivateKey::generate(kind)).await?;
        let key = key.context("could not make a key")?;
        let names = [SubjectName::of_text(&self.identity)];
        let message = IstioCertificateRequest {
            csr: csr::request(&key, &names).context("could not make a CSR")?,
            validity_duration: i64::try_from(self.lifetime.as_secs())?,
            metadata: self.signer.as_deref().map(|signer| Metadata::of("CertSigner", signer)),
        };
        let current = store.current();
        let mut chain = create_certificate(&self.upstream, &message, current.as_deref()).await?;
        let (Some(root), false) = (chain.pop(), chain.is_empty()) else {
            bail!("the CA's response has no certificate chain");
        };
        let leaf = Certificate::all_from_pem(&chain.concat()).context("could not read the issued certificate")?;
        let leaf = leaf.first().filter(|leaf| leaf.is_for_key(&key));
        let leaf = leaf.context("the issued certificate is for another key")?;
        Certificate::all_from_pem(&root).context("could not read the CA's root certificates")?;
        info!(serial = leaf.serial, identity = ?leaf.uris, "obtained a certificate");
        let format = if self.pkcs8 { KeyFormat::Pkcs8 } else { KeyFormat::Traditional };
        let key = key.to_pem(format).context("could not encode the key")?;
        let material = TlsMaterial {
            chain: chain.concat().into(),
            // Zeroised when the last reader drops it.
            key: Bytes::from_owner(key),
            root: root.into(),
            ..TlsMaterial::default()
        };
        Ok((material, leaf.not_after))
    }
}

/// Writes certificates and roots to a folder whenever they change. Never returns.
async fn write_changes(output: Option<OutputFolder>, mut certificates: watch::Receiver<CurrentMaterial>) {
    let Some(output) = output else { return std::future::pending().await };
    while certificates.changed().await.is_ok() {
        let current = certificates.borrow_and_update().clone();
        if let Some(material) = current
            && let Err(error) = output.write(&material)
        {
            warn!("{error:#}; other programs do not get the new certificate");
        }
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
