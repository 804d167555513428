//! The trust bundle (PCDS) inside Envoy's xDS stream: the agent subscribes to it and adds its roots to those of the CA.

use api::TypeUrl;
use api::istio::mesh::v1alpha1::ProxyConfig;
use bytes::Bytes;
use prost::Message;
use tokio::sync::watch;
use tracing::{info, warn};
use trust::bundle::RootBundle;

use super::name_table::{XdsProtocol, rejection};

/// Publishes the roots of the latest trust bundle.
pub type TrustBundleSender = watch::Sender<RootBundle>;

/// Uses the roots of a response. Returns the ACK, or the NACK if they cannot be read; then the last ones stay.
pub(super) fn consume(protocol: XdsProtocol, response: Bytes, bundle: &TrustBundleSender) -> Bytes {
    let (version, nonce, resource) = match protocol.open(response) {
        Ok(opened) => opened,
        Err(error) => return refused(protocol, String::new(), String::new(), &error.to_string()),
    };
    // An empty response carries no bundle: the last one stays.
    let Some(resource) = resource else { return protocol.request(&TypeUrl::PROXY_CONFIG, version, nonce, None) };
    match roots(&resource) {
        Ok(roots) => {
            info!(roots = roots.roots().len(), "received a trust bundle");
            bundle.send_replace(roots);
            protocol.request(&TypeUrl::PROXY_CONFIG, version, nonce, None)
        }
        Err(reason) => refused(protocol, version, nonce, &reason),
    }
}

fn refused(protocol: XdsProtocol, version: String, nonce: String, reason: &str) -> Bytes {
    warn!(reason, "could not use a trust bundle; keeping the last roots");
    let rejection = rejection("the trust bundle", &reason);
    protocol.request(&TypeUrl::PROXY_CONFIG, version, nonce, Some(rejection))
}

fn roots(resource: &[u8]) -> Result<RootBundle, String> {
    let config = ProxyConfig::decode(resource).map_err(|error| error.to_string())?;
    match config.ca_certificates_pem.is_empty() {
        true => Ok(RootBundle::default()),
        false => RootBundle::from_pem(&config.ca_certificates_pem.concat()).map_err(|error| error.to_string()),
    }
}
