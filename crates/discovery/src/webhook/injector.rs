//! Answers reviews of pods, with the newest settings of injection, which come from files or a ConfigMap.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::StreamExt;
use inject::{
    ChartValues, InjectorConfig, MeshInputs, NamespacedProxyConfig, NativeMode, ReviewInputs, ReviewOutcome, refuse,
    review,
};
use net::watch::{FilePolling, PolledFiles};
use sources::disk;
use sources::kubernetes::access::Access;
use sources::kubernetes::webhook_objects::{InjectorTexts, WebhookObjects};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{SnapshotReader, WebhookMetrics, WebhookStart};

/// Folder of the settings where they are mounted as files.
const FOLDER: &str = "./var/lib/istio/inject";
/// Interval at which files are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Delay after a watch failed.
const RETRY: Duration = Duration::from_secs(2);
const CONFIG_MAP: &str = "istio-sidecar-injector";

/// Injector configuration and values.
struct InjectorSettings {
    config: InjectorConfig,
    values: ChartValues,
}

/// Answers reviews of pods.
pub(super) struct Injector {
    settings: Arc<ArcSwapOption<InjectorSettings>>,
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
            settings: Arc::default(),
            nodes: Arc::default(),
            snapshot: Arc::clone(&options.snapshot),
            revision: revision.to_owned(),
            native,
            compliance_policy: (options.environment)("COMPLIANCE_POLICY").unwrap_or_default(),
            environment: std::env::vars().collect(),
        }
    }

    /// Follows settings and nodes until cancelled.
    pub(super) fn follow(&self, options: &WebhookStart<'_>, revision: &str, stop: &CancellationToken) {
        let settings = Arc::clone(&self.settings);
        let folder = PathBuf::from(FOLDER);
        if folder.join("config").exists() {
            tokio::spawn(follow_files(folder, settings, stop.clone()));
        } else {
            let name = match revision {
                "" | "default" => CONFIG_MAP.to_owned(),
                other => format!("{CONFIG_MAP}-{other}"),
            };
            let namespace = options.namespace.to_owned();
            tokio::spawn(follow_config_map(options.access.clone(), namespace, name, settings, stop.clone()));
        }
        if self.native == NativeMode::Auto {
            tokio::spawn(follow_nodes(options.access.clone(), Arc::clone(&self.nodes), stop.clone()));
        }
    }

    /// The answer to a review, as JSON.
    pub(super) fn review(&self, body: &[u8], path: &str, metrics: &WebhookMetrics) -> String {
        let Some(settings) = self.settings.load_full() else {
            metrics.failed.add(1);
            let reason = format!(
                "the injector has no configuration yet: ConfigMap {CONFIG_MAP} or {FOLDER}/config is missing or invalid"
            );
            return refuse(body, &reason).to_string();
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

/// Uses new settings, or keeps the last good ones.
fn apply(settings: &ArcSwapOption<InjectorSettings>, texts: &InjectorTexts, source: &str) {
    let parsed = InjectorConfig::parse(&texts.config).and_then(|(config, problems)| {
        let values = ChartValues::parse(&texts.values)?;
        Ok((InjectorSettings { config, values }, problems))
    });
    match parsed {
        Ok((parsed, problems)) => {
            problems.iter().for_each(|problem| warn!(source, problem, "injector configuration has a problem"));
            info!(source, "loaded injector configuration");
            settings.store(Some(Arc::new(parsed)));
        }
        Err(error) => warn!(source, %error, "could not load injector configuration; keeping the last good one"),
    }
}

async fn follow_files(folder: PathBuf, settings: Arc<ArcSwapOption<InjectorSettings>>, stop: CancellationToken) {
    let source = folder.display().to_string();
    let mut files = PolledFiles::new(FilePolling::every(CHECK_INTERVAL), move || read(&folder));
    while let Some(Some(texts)) = stop.run_until_cancelled(files.changed()).await {
        match texts {
            Some(texts) => apply(&settings, texts, &source),
            None => warn!(source, "could not read injector configuration; keeping the last good one"),
        }
    }
}

/// Both files; `None` if one cannot be read.
fn read(folder: &Path) -> Option<InjectorTexts> {
    let text = |name: &str| {
        let content = disk::content(&folder.join(name)).ok()?;
        Some(String::from_utf8_lossy(&content).into_owned())
    };
    Some(InjectorTexts { config: text("config")?, values: text("values")? })
}

async fn follow_config_map(
    access: Access,
    namespace: String,
    name: String,
    settings: Arc<ArcSwapOption<InjectorSettings>>,
    stop: CancellationToken,
) {
    let source = format!("ConfigMap {namespace}/{name}");
    let follow = async {
        loop {
            match WebhookObjects::connect(access.clone()).await {
                Ok(objects) => {
                    let mut events = objects.watch_injector(&namespace, &name);
                    while let Some(event) = events.next().await {
                        match event {
                            Ok(Some(texts)) => apply(&settings, &texts, &source),
                            Ok(None) => warn!(source, "injector configuration was deleted; keeping the last one"),
                            Err(error) => {
                                warn!(source, error, "could not watch injector configuration; retrying");
                                tokio::time::sleep(RETRY).await;
                            }
                        }
                    }
                }
                Err(error) => warn!(source, error, "could not connect to the API server; retrying"),
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    stop.run_until_cancelled(follow).await;
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
