//! This server's own certificate: issued by the CA, renewed at half of its life and when the CA changes. Client
//! certificates are verified with the current roots of the CA and of the cluster's signers.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::info;
use trust::authority::IssueError;

use trust::certificate::Certificate;
use trust::issue::SubjectName;
use trust::key::{KeyFormat, PrivateKey, random_serial};
use trust::lifetime;

use super::problems::Topic;
use super::{Trust, TrustState, unix_now};
use crate::tls::{Certificates, OwnCertificate, TrustDomain};

const RETRY: Duration = Duration::from_secs(5);

/// Names and lifetime of the certificate.
pub(super) struct ServerCertificate {
    pub(super) names: Vec<SubjectName>,
    pub(super) lifetime: Duration,
    pub(super) trust_domain: TrustDomain,
}

impl ServerCertificate {
    /// Keeps the TLS port supplied with a certificate until cancelled.
    pub(super) async fn run(self, trust: Arc<Trust>, certificates: Arc<Certificates>, stop: CancellationToken) {
        let (mut states, mut signer_roots) = (trust.subscribe(), trust.signer_roots.subscribe());
        loop {
            let current = states.borrow_and_update().clone();
            signer_roots.mark_unchanged();
            let pause = match current {
                None => Duration::MAX,
                Some(state) => match self.renew(&state, &trust, &certificates) {
                    Ok(pause) => pause,
                    Err(error) => {
                        let message = format!("could not renew the certificate of this server: {error}; retrying");
                        trust.problems.error(Topic::OwnCertificate, message);
                        RETRY
                    }
                },
            };
            tokio::select! {
                () = stop.cancelled() => return,
                changed = states.changed() => if changed.is_err() { return },
                changed = signer_roots.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Issues a certificate and returns when to renew it.
    fn renew(&self, state: &TrustState, trust: &Trust, certificates: &Certificates) -> Result<Duration, RenewError> {
        let authority = &state.authority;
        let now = unix_now();
        let (issued, key) = authority.issue_with_key(&self.names, self.lifetime, now, random_serial()?)?;
        let roots = authority.roots().with(&trust.signer_roots.borrow());
        let own = OwnCertificate {
            chain: der_chain(&issued.certificate, authority.chain()),
            key: pem_der(&key)?,
            roots: roots.roots().iter().map(|root| root.der().to_vec()).collect(),
            revoked: state.revoked.as_ref().map(|revoked| revoked.lists().to_vec()).unwrap_or_default(),
            trust_domain: Arc::clone(&self.trust_domain),
        };
        certificates.publish(own)?;
        info!(serial = issued.certificate.serial, "issued this server's certificate");
        let delay = lifetime::renewal_delay(now, issued.certificate.not_after, 0.5, 0.05, fastrand::f64());
        trust.own.send_replace(Some(issued.certificate));
        trust.problems.solved(Topic::OwnCertificate);
        Ok(delay.max(Duration::from_secs(1)))
    }
}

/// Why the certificate cannot be renewed.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error(transparent)]
    Issue(#[from] IssueError),
    #[error(transparent)]
    Key(#[from] trust::key::KeyError),
    #[error("could not configure TLS: {0:#}")]
    Tls(#[from] anyhow::Error),
}

fn der_chain(leaf: &Certificate, intermediates: &[Certificate]) -> Vec<Vec<u8>> {
    std::iter::once(leaf).chain(intermediates).map(|certificate| certificate.der().to_vec()).collect()
}

/// The key as PKCS #8.
fn pem_der(key: &PrivateKey) -> Result<zeroize::Zeroizing<Vec<u8>>, trust::key::KeyError> {
    let text = key.to_pem(KeyFormat::Pkcs8)?;
    Ok(trust::pem::first_block(&text)?.content)
}

/// Names of this server's certificate, as in upstream.
pub(super) fn server_names<'a>(
    namespace: &str,
    revision: &str,
    custom: impl Iterator<Item = &'a str>,
) -> Vec<SubjectName> {
    let mut hosts: Vec<String> =
        ["istiod", "istiod-remote", "istio-pilot"].iter().map(|name| format!("{name}.{namespace}.svc")).collect();
    if !matches!(revision, "" | "default") {
        hosts.push(format!("istiod-{revision}.{namespace}.svc"));
    }
    hosts.extend(custom.map(str::to_owned));
    let mut names: Vec<SubjectName> = hosts.iter().map(|host| SubjectName::of_text(host)).collect();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;
    use trust::authority::SigningAuthority;
    use trust::key::{KeyKind, PrivateKey};

    use super::super::problems::TrustProblems;
    use super::super::{Trust, TrustState, unix_now};
    use super::{ServerCertificate, server_names};
    use crate::tls::Certificates;

    const LIFETIME: Duration = Duration::from_secs(24 * 3600);

    #[tokio::test(start_paused = true)]
    async fn the_certificate_is_renewed_at_half_of_its_life() {
        let trust = Trust::new(TrustProblems::new(mpsc::channel(10).0));
        let key = PrivateKey::generate(KeyKind::P256).unwrap();
        let authority = SigningAuthority::new_root("td", key, LIFETIME * 100, unix_now(), &[1; 16]).unwrap();
        trust.publish(TrustState {
            authority: Arc::new(authority),
            revoked: None,
            place: "test".to_owned(),
            is_plugged_in: false,
            step: Default::default(),
            since: 0,
            step_end: None,
            leaf_limit: None,
        });
        let certificate = ServerCertificate {
            names: server_names("istio-system", "default", std::iter::empty()),
            lifetime: LIFETIME,
            trust_domain: Arc::new(|| "td".to_owned()),
        };
        let mut own = trust.own.subscribe();
        tokio::spawn(certificate.run(Arc::clone(&trust), Certificates::pending(), CancellationToken::new()));
        let mut serials = Vec::new();
        let mut before = Instant::now();
        for renewal in 0..4 {
            own.changed().await.unwrap();
            serials.push(own.borrow_and_update().as_ref().unwrap().serial.clone());
            let share = before.elapsed().as_secs_f64() / LIFETIME.as_secs_f64();
            assert!(if renewal == 0 { share == 0.0 } else { (0.44..=0.56).contains(&share) }, "renewed at {share}");
            before = Instant::now();
        }
        serials.dedup();
        assert_eq!(serials.len(), 4, "{serials:?}");
    }
}
