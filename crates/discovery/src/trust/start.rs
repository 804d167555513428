//! Starts the CA and everything that depends on it, as flags and environment ask for.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::istio::mesh::v1alpha1::mesh_config::CertificateData;
use model::change::Batch;
use model::settings::{Knobs, Settings};
use sources::kubernetes::access::Access;
use sources::kubernetes::rate_limit::RateLimit;
use sources::kubernetes::remote_access::RemoteAccess;
use tokio::sync::{OnceCell, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::info;
use trust::authority::LeafLifetimes;
use trust::key::KeyKind;
use trust::rotation::RotationPolicy;

use super::authenticate::{Authenticator, JwtRule, OwnCluster, TokenKeys, TokenReviewer};
use super::authority::{PluggedIn, SelfSigned};
use super::config_maps::{DiscoverySelectors, MapContent, NamespaceConfigMaps};
use super::kubernetes_signer::{CaCertificatesReader, EXTERNAL_CA, KubernetesSigner};
use super::problems::TrustProblems;
use super::recheck::StreamAuthentication;
use super::root_store::RootStore;
use super::service::CertificateService;
use super::serving::{ServerCertificate, server_names};
use super::trust_bundle::{BundleReceiver, TrustBundle};
use super::{Trust, lifetimes};
use crate::tls::{Certificates, TrustDomain};

/// Lifetime of this server's own certificate.
const OWN_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// What the CA is started with.
pub(crate) struct TrustStart<'a> {
    pub(crate) settings: &'a Settings,
    /// Folder of a self-signed root without Kubernetes (`--caDir`).
    pub(crate) ca_folder: Option<PathBuf>,
    pub(crate) api_server: Option<Access>,
    /// Remote clusters, which review the tokens of their workloads.
    pub(crate) remotes: RemoteAccess,
    pub(crate) namespace: &'a str,
    pub(crate) revision: &'a str,
    /// Further names of this cluster.
    pub(crate) cluster_aliases: Vec<String>,
    pub(crate) trust_domain: TrustDomain,
    pub(crate) changes: mpsc::Sender<Batch>,
    /// `caCertificates` of the mesh config; `None` if agents get no trust bundle.
    pub(crate) ca_certificates: Option<watch::Receiver<Vec<CertificateData>>>,
    pub(crate) selectors: DiscoverySelectors,
    /// Reads `caCertificates` of the mesh config.
    pub(crate) signer_roots: CaCertificatesReader,
    /// Certificates given by flags; `None` for a certificate of the CA.
    pub(crate) given: Option<Arc<Certificates>>,
}

/// The running CA and what serves with it.
pub(crate) struct RunningTrust {
    pub(crate) trust: Arc<Trust>,
    /// Certificates of the TLS port; `None` if there is neither a CA nor a certificate file.
    pub(crate) certificates: Option<Arc<Certificates>>,
    /// `None` without a CA.
    pub(crate) service: Option<CertificateService>,
    /// `None` if clients need not authenticate.
    pub(crate) authentication: Option<StreamAuthentication>,
    /// The trust bundle, if agents get one.
    pub(crate) bundle: Option<BundleReceiver>,
}

/// Starts the CA. Unusable files are an error.
pub(crate) fn start(options: TrustStart<'_>, stop: &CancellationToken) -> Result<RunningTrust> {
    let knobs = &options.settings.knobs;
    let trust = Trust::new(TrustProblems::new(options.changes.clone()));
    let has_ca = knobs.ca_server && start_authority(&options, &trust, stop)?;
    let certificates = match (&options.given, has_ca) {
        (Some(given), _) => Some(Arc::clone(given)),
        (None, true) => Some(start_serving(&options, &trust, stop)),
        (None, false) => None,
    };
    if has_ca {
        tokio::spawn(lifetimes::watch(Arc::clone(&trust), stop.clone()));
    }
    if let (true, Some(access)) = (has_ca, &options.api_server) {
        let mut contents = vec![(MapContent::Roots, &knobs.root_config_map)];
        if knobs.ca_crl {
            contents.push((MapContent::RevocationLists, &knobs.crl_config_map));
        }
        for (content, name) in contents {
            let selectors = options.selectors.clone();
            let maps = NamespaceConfigMaps { selectors, access: access.clone(), name: name.to_string(), content };
            tokio::spawn(maps.run(Arc::clone(&trust), stop.clone()));
        }
    }
    let authenticator = Arc::new(authenticator(&options, &trust, stop)?);
    let can_authenticate = has_ca
        || authenticator.rule.is_some()
        || authenticator.kubernetes.is_some() && options.given.is_some()
        || options.given.as_ref().is_some_and(|given| given.verifies_clients());
    let signer = signer(&options, &trust)?.map(Arc::new);
    if let Some(signer) = &signer {
        tokio::spawn(Arc::clone(signer).follow_roots(stop.clone()));
    }
    let service = has_ca.then(|| {
        CertificateService::new(Arc::clone(&trust), Arc::clone(&authenticator), leaf_lifetimes(knobs), signer)
    });
    let authentication = (knobs.xds_auth && can_authenticate).then(|| StreamAuthentication {
        authenticator,
        metrics: trust.metrics.clone(),
        interval: knobs.identity_recheck.duration(),
        plain_text_too: knobs.xds_auth_plaintext,
    });
    let configured = options.ca_certificates.filter(|_| has_ca);
    let bundle = configured.map(|configured| {
        let (bundle, receiver) = TrustBundle::new(Arc::clone(&trust));
        tokio::spawn(bundle.run(configured, stop.clone()));
        receiver
    });
    Ok(RunningTrust { trust, certificates, service, authentication, bundle })
}

/// Starts the CA; false if there is no place for its root.
fn start_authority(options: &TrustStart<'_>, trust: &Arc<Trust>, stop: &CancellationToken) -> Result<bool> {
    let knobs = &options.settings.knobs;
    let folder = PathBuf::from(&*knobs.ca_folder);
    if let Some(plugged_in) = PluggedIn::load(folder, trust)? {
        tokio::spawn(plugged_in.watch(Arc::clone(trust), stop.clone()));
        return Ok(true);
    }
    let store = match (&options.ca_folder, &options.api_server) {
        (Some(folder), _) => RootStore::Folder(folder.clone()),
        (None, Some(access)) => RootStore::secret(access.clone(), options.namespace),
        (None, None) => {
            info!("certificate authority is off: there is no API server and no --caDir for its root");
            return Ok(false);
        }
    };
    let key = match knobs.root_rsa_bits {
        0 => KeyKind::P256,
        bits => KeyKind::rsa(bits)
            .with_context(|| format!("could not use CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE={bits}: not 2048 to 4096"))?,
    };
    let lifetimes = leaf_lifetimes(knobs);
    let policy = RotationPolicy {
        step: (knobs.rotation_step.0 != 0).then(|| knobs.rotation_step.duration()),
        usual_leaf: lifetimes.default,
        max_leaf: lifetimes.max,
        begin_when_left: knobs.root_grace.value() / 100.0,
        root_lifetime: knobs.root_lifetime.duration(),
        key,
        organization: (options.trust_domain)(),
    };
    let root = SelfSigned { store, policy, check: knobs.root_check.duration() };
    tokio::spawn(root.run(Arc::clone(trust), stop.clone()));
    Ok(true)
}

fn start_serving(options: &TrustStart<'_>, trust: &Arc<Trust>, stop: &CancellationToken) -> Arc<Certificates> {
    let certificates = Certificates::pending();
    trust.issues_own.store(true, Ordering::Relaxed);
    let custom = options.settings.knobs.custom_hosts.iter();
    let server = ServerCertificate {
        names: server_names(options.namespace, options.revision, custom),
        lifetime: OWN_LIFETIME,
        trust_domain: Arc::clone(&options.trust_domain),
    };
    tokio::spawn(server.run(Arc::clone(trust), Arc::clone(&certificates), stop.clone()));
    certificates
}

fn authenticator(options: &TrustStart<'_>, trust: &Arc<Trust>, stop: &CancellationToken) -> Result<Authenticator> {
    let knobs = &options.settings.knobs;
    let mut authenticator = Authenticator::new(Arc::clone(&options.trust_domain), knobs);
    if !knobs.jwt_rule.is_empty() {
        let keys = TokenKeys::load(JwtRule::parse(&knobs.jwt_rule)?)?;
        tokio::spawn(keys.clone().watch(Arc::clone(trust), stop.clone()));
        authenticator.rule = Some(keys);
    }
    if let Some(access) = &options.api_server {
        let rate = f64::from(knobs.token_review_rate);
        // A burst of two seconds: after a restart all clients connect at once.
        let rate = RateLimit::of_flags(rate, 2 * i64::from(knobs.token_review_rate));
        let access = access.with_own_rate_limit(rate);
        let audiences = knobs.token_audiences.iter().map(str::to_owned).collect();
        let own = options.settings.cluster.to_string();
        let clusters = std::iter::once(own).chain(options.cluster_aliases.iter().cloned()).collect();
        let own = OwnCluster { access, names: clusters };
        let reviewer = TokenReviewer::new(own, options.remotes.clone(), rate, audiences, trust.metrics.clone());
        authenticator.kubernetes = Some(reviewer);
    }
    Ok(authenticator)
}

/// The signer of the cluster, if one is configured instead of the own CA.
fn signer(options: &TrustStart<'_>, trust: &Arc<Trust>) -> Result<Option<KubernetesSigner>> {
    let knobs = &options.settings.knobs;
    match &*knobs.external_ca {
        "" => Ok(None),
        EXTERNAL_CA => {
            let access = options.api_server.clone();
            let access =
                access.with_context(|| format!("could not use EXTERNAL_CA={EXTERNAL_CA}: there is no API server"))?;
            Ok(Some(KubernetesSigner {
                access,
                client: OnceCell::new(),
                default: knobs.kubernetes_signer.to_string(),
                domain: knobs.signer_domain.to_string(),
                ca_certificates: Arc::clone(&options.signer_roots),
                trust: Arc::clone(trust),
            }))
        }
        other => bail!("could not use EXTERNAL_CA={other}: expected {EXTERNAL_CA}"),
    }
}

fn leaf_lifetimes(knobs: &Knobs) -> LeafLifetimes {
    LeafLifetimes { default: knobs.leaf_lifetime.duration(), max: knobs.max_leaf_lifetime.duration() }
}
