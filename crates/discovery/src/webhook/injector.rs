//! Answers reviews of pods, with the newest settings of injection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::StreamExt;
use inject::{MeshInputs, NamespacedProxyConfig, NativeMode, ReviewInputs, ReviewOutcome, refuse, review};
use sources::kubernetes::access::Access;
use sources::kubernetes::webhook_objects::WebhookObjects;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{SnapshotReader, WebhookMetrics, WebhookStart};
use crate::injector_settings::{InjectorSettingsWatch, MISSING};

/// Delay after a watch failed.
const RETRY: Duration = Duration::from_secs(2);

/// Answers reviews of pods.
pub(super) struct Injector {
    settings: InjectorSettingsWatch,
    nodes: Arc<ArcSwapOption<Vec<(String, String)>>>,
    snapshot: SnapshotReader,
    revision: String,
    native: NativeMode,
    compliance_policy: String,
    environment: BTreeMap<String, String>,
}

impl Injector {
    pub(super) fn new(options: &WebhookStart<'_>, revision: &str, native: NativeMode) -> Injector {
        Injector {
            settings: options.injector.clone(),
            nodes: Arc::default(),
            snapshot: Arc::clone(&options.snapshot),
            revision: revision.to_owned(),
            native,
            compliance_policy: (options.environment)("COMPLIANCE_POLICY").unwrap_or_default(),
            environment: std::env::vars().collect(),
        }
    }

    /// Follows nodes until cancelled.
    pub(super) fn follow(&self, options: &WebhookStart<'_>, stop: &CancellationToken) {
        if self.native == NativeMode::Auto {
            tokio::spawn(follow_nodes(options.access.clone(), Arc::clone(&self.nodes), stop.clone()));
        }
    }

    /// The answer to a review, as JSON.
    pub(super) fn review(&self, body: &[u8], path: &str, metrics: &WebhookMetrics) -> String {
        let Some(settings) = self.settings.borrow().clone() else {
            metrics.failed.add(1);
            return refuse(body, &format!("the injector has no configuration yet: {MISSING}")).to_string();
        };
        let snapshot = (self.snapshot)();
        let objects: Vec<NamespacedProxyConfig<'_>> = snapshot
            .extensions
            .proxy_configs
            .iter()
            .map(|config| NamespacedProxyConfig { namespace: config.meta.namespace.as_str(), spec: &config.spec })
            .collect();
        let nodes = self.nodes.load_full();
        let inputs = ReviewInputs {
            shared: MeshInputs {
                config: &settings.config,
                values: &settings.values,
                mesh: &snapshot.settings.mesh,
                revision: &self.revision,
                compliance_policy: &self.compliance_policy,
                environment: &self.environment,
            },
            proxy_configs: &objects,
            native: self.native,
            nodes: nodes.as_ref().map(|nodes| nodes.as_slice()),
        };
        let answer = review(body, path, &inputs);
        let pod = answer.pod.as_str();
        match &answer.outcome {
            ReviewOutcome::Injected(warnings) => {
                metrics.injected.add(1);
                info!(pod, "injected pod");
                warnings.iter().for_each(|warning| warn!(pod, warning, "injection left part of the pod unchanged"));
            }
            ReviewOutcome::Skipped(reason) => {
                metrics.skipped.add(1);
                debug!(pod, reason = reason.words(), "pod is not injected");
            }
            ReviewOutcome::Refused(reason) => {
                metrics.failed.add(1);
                warn!(pod, reason, "refused pod");
            }
        }
        answer.body.to_string()
    }
}

async fn follow_nodes(access: Access, nodes: Arc<ArcSwapOption<Vec<(String, String)>>>, stop: CancellationToken) {
    let follow = async {
        loop {
            let mut known = BTreeMap::new();
            let mut is_listed = false;
            if let Ok(objects) = WebhookObjects::connect(access.clone()).await {
                let mut events = objects.watch_nodes();
                while let Some(event) = events.next().await {
                    match event {
                        Ok(Some(node)) => match node.kubelet {
                            Some(version) => drop(known.insert(node.name, version)),
                            None => drop(known.remove(&node.name)),
                        },
                        Ok(None) => is_listed = true,
                        Err(error) => {
                            debug!(error, "could not watch nodes; retrying");
                            tokio::time::sleep(RETRY).await;
                        }
                    }
                    if is_listed {
                        nodes.store(Some(Arc::new(known.clone().into_iter().collect())));
                    }
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    stop.run_until_cancelled(follow).await;
}
