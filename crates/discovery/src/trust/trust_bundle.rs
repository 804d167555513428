//! The trust bundle of the mesh: the CA's roots, `meshConfig.caCertificates` and SPIFFE bundle endpoints. Agents with
//! `PROXY_CONFIG_XDS_AGENT` subscribe to it as PCDS and trust all of it (`ISTIO_MULTIROOT_MESH`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::istio::mesh::v1alpha1::ProxyConfig;
use api::istio::mesh::v1alpha1::mesh_config::CertificateData;
use api::istio::mesh::v1alpha1::mesh_config::certificate_data::CertificateData as Content;
use api::{Resource, TypeUrl};
use http::HeaderMap;
use sources::http::{HttpClient, HttpOptions, RequestLimits};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;
use trust::bundle::RootBundle;
use trust::certificate::Certificate;
use trust::spiffe_bundle;
use xds::ResourceSet;

use super::Trust;
use super::problems::Topic;

/// Interval between two reads of a bundle endpoint, as in upstream, and after a failure.
const INTERVAL: Duration = Duration::from_secs(30 * 60);
const RETRY: Duration = Duration::from_secs(10);
const LIMITS: RequestLimits =
    RequestLimits { time: Duration::from_secs(10), silence: Duration::from_secs(5), bytes: 1 << 20 };
/// Endpoints that are read, and roots of the whole bundle.
const MAX_ENDPOINTS: usize = 16;
const MAX_ROOTS: usize = 200;
/// Name of the only resource.
const NAME: &str = "trust-bundle";

/// Set to the current bundle; `None` until the CA is loaded.
pub(crate) type BundleReceiver = watch::Receiver<Option<Arc<ResourceSet>>>;

/// What is known of a bundle endpoint.
struct Endpoint {
    /// The last good bundle.
    roots: RootBundle,
    failure: Option<String>,
    /// `None` while it is being read.
    due: Option<Instant>,
}

type Fetched = (String, Result<RootBundle, String>);

/// Computes the bundle.
pub(super) struct TrustBundle {
    trust: Arc<Trust>,
    sender: watch::Sender<Option<Arc<ResourceSet>>>,
    endpoints: BTreeMap<String, Endpoint>,
    fetches: JoinSet<Fetched>,
}

impl TrustBundle {
    pub(super) fn new(trust: Arc<Trust>) -> (TrustBundle, BundleReceiver) {
        let (sender, receiver) = watch::channel(None);
        (TrustBundle { trust, sender, endpoints: BTreeMap::new(), fetches: JoinSet::new() }, receiver)
    }

    /// Keeps the bundle current until cancelled.
    pub(super) async fn run(mut self, mut configured: watch::Receiver<Vec<CertificateData>>, stop: CancellationToken) {
        let mut states = self.trust.subscribe();
        loop {
            let entries = configured.borrow_and_update().clone();
            states.mark_unchanged();
            let next = self.update(&entries);
            tokio::select! {
                () = stop.cancelled() => return,
                changed = states.changed() => if changed.is_err() { return },
                changed = configured.changed() => if changed.is_err() { return },
                Some(Ok(fetched)) = self.fetches.join_next() => self.store(fetched),
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Begins reads that are due and publishes what is known. Returns when the next read is due.
    fn update(&mut self, configured: &[CertificateData]) -> Instant {
        let now = Instant::now();
        let urls: Vec<&str> = configured.iter().filter_map(url).take(MAX_ENDPOINTS).collect();
        self.endpoints.retain(|known, _| urls.contains(&known.as_str()));
        for url in urls {
            let new = || Endpoint { roots: RootBundle::default(), failure: None, due: Some(now) };
            let endpoint = self.endpoints.entry(url.to_owned()).or_insert_with(new);
            if endpoint.due.is_some_and(|due| due <= now) {
                endpoint.due = None;
                self.fetches.spawn(fetch(url.to_owned()));
            }
        }
        self.publish(configured);
        let due = self.endpoints.values().filter_map(|endpoint| endpoint.due).min();
        due.unwrap_or(now + INTERVAL)
    }

    fn store(&mut self, (url, result): Fetched) {
        // The endpoint may have been removed from the mesh config meanwhile.
        let Some(endpoint) = self.endpoints.get_mut(&url) else { return };
        let pause = match result {
            Ok(roots) => {
                endpoint.roots = roots;
                endpoint.failure = None;
                INTERVAL
            }
            Err(reason) => {
                endpoint.failure = Some(format!("could not read the SPIFFE bundle {url}: {reason}"));
                RETRY
            }
        };
        endpoint.due = Some(Instant::now() + pause);
    }

    fn publish(&self, configured: &[CertificateData]) {
        let Some(state) = self.trust.now() else { return };
        let mut failures = Vec::new();
        let mut all = state.authority.roots().clone();
        for (index, entry) in configured.iter().enumerate() {
            match &entry.certificate_data {
                Some(Content::Pem(text)) => match RootBundle::from_pem(text) {
                    Ok(roots) => all = all.with(&roots),
                    Err(error) => {
                        failures.push(format!("could not read caCertificates[{index}] of the mesh config: {error}"))
                    }
                },
                Some(Content::SpiffeBundleUrl(url)) => match self.endpoints.get(url) {
                    Some(endpoint) => {
                        all = all.with(&endpoint.roots);
                        failures.extend(endpoint.failure.clone());
                    }
                    None => failures
                        .push(format!("more than {MAX_ENDPOINTS} SPIFFE bundles are configured: {url} is not read")),
                },
                None => {}
            }
        }
        if all.roots().len() > MAX_ROOTS {
            failures.push(format!("the trust bundle has more than {MAX_ROOTS} roots; the last ones are left out"));
        }
        self.report(&failures);
        self.send(all.roots().get(..MAX_ROOTS).unwrap_or(all.roots()));
    }

    fn report(&self, failures: &[String]) {
        match failures {
            [] => self.trust.problems.solved(Topic::TrustBundle),
            failures => {
                let message = format!("{}; the last good roots stay in use", failures.join("; "));
                self.trust.problems.error(Topic::TrustBundle, message);
            }
        }
    }

    fn send(&self, roots: &[Certificate]) {
        let config = ProxyConfig {
            ca_certificates_pem: roots.iter().map(Certificate::to_pem).collect(),
            ..ProxyConfig::default()
        };
        let set = ResourceSet::new(TypeUrl::PROXY_CONFIG, [Resource::new(NAME, &config)]);
        self.sender.send_if_modified(|current| {
            let is_new = current.as_ref().is_none_or(|current| current.version() != set.version());
            if is_new {
                info!(roots = roots.len(), "trust bundle changed");
                *current = Some(Arc::new(set));
            }
            is_new
        });
    }
}

fn url(entry: &CertificateData) -> Option<&str> {
    match &entry.certificate_data {
        Some(Content::SpiffeBundleUrl(url)) => Some(url),
        _ => None,
    }
}

async fn fetch(url: String) -> Fetched {
    let read = async {
        let client = HttpClient::new(&HttpOptions::default()).map_err(|error| error.to_string())?;
        // Upstream's users leave the scheme out.
        let full = if url.contains("://") { url.clone() } else { format!("https://{url}") };
        let reply = client.get(&full, &HeaderMap::new(), LIMITS).await.map_err(|error| error.to_string())?;
        if !reply.status.is_success() {
            return Err(format!("status {}", reply.status));
        }
        let text = String::from_utf8(reply.body).map_err(|_| "the response is not UTF-8".to_owned())?;
        spiffe_bundle::roots(&text).map_err(|error| error.to_string())
    };
    let result = read.await;
    (url, result)
}
