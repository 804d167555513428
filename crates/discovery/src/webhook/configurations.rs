//! Writes this server's roots into the webhook configurations of its revision, and makes the validation webhook mandatory
//! once it was observed to reject an invalid object.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use serde_json::{Value, json};
use sources::kubernetes::access::Access;
use sources::kubernetes::webhook_objects::{DryRun, WebhookConfiguration, WebhookEntry, WebhookKind, WebhookObjects};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::WebhookMetrics;
use crate::trust::Trust;

/// Ending of the names of injection webhooks.
const INJECTION: &str = "sidecar-injector.istio.io";
/// Delays after a failure: doubled from the first to the last.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LAST_DELAY: Duration = Duration::from_secs(60);

/// Writes webhook configurations.
#[derive(Clone)]
pub(super) struct ConfigurationWriter {
    pub(super) access: Access,
    pub(super) namespace: String,
    pub(super) revision: String,
    pub(super) trust: Arc<Trust>,
    pub(super) metrics: WebhookMetrics,
}

impl ConfigurationWriter {
    /// Keeps the configurations of injection webhooks up to date until cancelled.
    pub(super) async fn inject(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.keep(WebhookKind::Mutating)).await;
    }

    /// Keeps the configurations of validation webhooks up to date until cancelled.
    pub(super) async fn validate(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.keep(WebhookKind::Validating)).await;
    }

    async fn keep(&self, kind: WebhookKind) {
        let mut delay = FIRST_DELAY;
        loop {
            let reason = self.follow(kind, &mut delay).await;
            warn!(?kind, reason, "could not write webhook configurations; retrying");
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(LAST_DELAY);
        }
    }

    /// Follows the configurations and the roots; returns the reason of a failure.
    async fn follow(&self, kind: WebhookKind, delay: &mut Duration) -> String {
        let objects = match WebhookObjects::connect(self.access.clone()).await {
            Ok(objects) => objects,
            Err(error) => return error,
        };
        let mut roots = self.trust.subscribe();
        let mut known: Vec<WebhookConfiguration> = Vec::new();
        let mut events = objects.watch_configurations(kind, &self.revision);
        // When an invalid object is tried again; `None` if there is no need.
        let mut attempt: Option<(Instant, Duration)> = None;
        loop {
            let next_attempt = async {
                match attempt {
                    Some((at, _)) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = roots.changed() => if changed.is_err() { return "the server is stopping".to_owned() },
                event = events.next() => match event {
                    Some(Ok(configuration)) => {
                        known.retain(|other| other.name != configuration.name);
                        known.push(configuration);
                    }
                    Some(Err(error)) => return error,
                    None => return "the watch ended".to_owned(),
                },
                () = next_attempt => {}
            }
            let Some(state) = roots.borrow_and_update().clone() else { continue };
            let bundle = state.authority.roots().to_pem();
            for configuration in &mut known {
                if let Err(error) = self.write(&objects, kind, configuration, &bundle).await {
                    self.metrics.patch_failed(&configuration.name);
                    return error;
                }
            }
            *delay = FIRST_DELAY;
            let is_open = |entry: &WebhookEntry| entry.failure_policy != "Fail";
            if kind == WebhookKind::Mutating || !known.iter().any(|c| c.entries.iter().any(is_open)) {
                continue;
            }
            if self.is_rejecting(&objects).await {
                attempt = None;
                if let Err(error) = self.close(&objects, &mut known).await {
                    return error;
                }
            } else {
                let wait = attempt.map_or(FIRST_DELAY, |(_, wait)| (wait * 2).min(LAST_DELAY));
                attempt = Some((Instant::now() + wait, wait));
            }
        }
    }

    /// Writes the CA bundle to the webhooks of a configuration that have another.
    async fn write(
        &self,
        objects: &WebhookObjects,
        kind: WebhookKind,
        configuration: &mut WebhookConfiguration,
        bundle: &str,
    ) -> Result<(), String> {
        let is_ours = |entry: &WebhookEntry| kind == WebhookKind::Validating || entry.name.ends_with(INJECTION);
        let is_wrong = |entry: &&mut WebhookEntry| is_ours(entry) && entry.ca_bundle != bundle.as_bytes();
        let wrong: Vec<&mut WebhookEntry> = configuration.entries.iter_mut().filter(is_wrong).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        self.metrics.patched(&configuration.name);
        let encoded = STANDARD.encode(bundle);
        let patches: Vec<Value> =
            wrong.iter().map(|entry| json!({"name": entry.name, "clientConfig": {"caBundle": encoded}})).collect();
        objects.patch_configuration(kind, &configuration.name, patches).await?;
        wrong.into_iter().for_each(|entry| entry.ca_bundle = bundle.as_bytes().to_vec());
        info!(configuration = configuration.name, "wrote the CA bundle of the webhooks");
        Ok(())
    }

    /// Whether validation works: an invalid object is rejected, or no object can be sent.
    async fn is_rejecting(&self, objects: &WebhookObjects) -> bool {
        match objects.try_invalid_gateway(&self.namespace).await {
            Ok(DryRun::Denied) => true,
            Ok(DryRun::Impossible(reason)) => {
                info!(reason, "could not test validation with an invalid object; making it mandatory without a test");
                true
            }
            Ok(DryRun::Accepted) => false,
            Err(reason) => {
                warn!(reason, "could not test validation with an invalid object; retrying");
                false
            }
        }
    }

    /// Makes all validation webhooks mandatory.
    async fn close(&self, objects: &WebhookObjects, known: &mut [WebhookConfiguration]) -> Result<(), String> {
        for configuration in known {
            let open = configuration.entries.iter_mut().filter(|entry| entry.failure_policy != "Fail");
            let open: Vec<&mut WebhookEntry> = open.collect();
            if open.is_empty() {
                continue;
            }
            let patches = open.iter().map(|entry| json!({"name": entry.name, "failurePolicy": "Fail"})).collect();
            objects.patch_configuration(WebhookKind::Validating, &configuration.name, patches).await?;
            open.into_iter().for_each(|entry| "Fail".clone_into(&mut entry.failure_policy));
            info!(configuration = configuration.name, "validation is mandatory: an invalid object was rejected");
        }
        Ok(())
    }
}
