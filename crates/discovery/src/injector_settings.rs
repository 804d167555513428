//! The settings of injection, from files or a ConfigMap: the webhook and managed gateways use them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use inject::{ChartValues, InjectorConfig};
use net::watch::{FilePolling, PolledFiles};
use sources::disk;
use sources::kubernetes::access::Access;
use sources::kubernetes::webhook_objects::{InjectorTexts, WebhookObjects};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Folder of the settings where they are mounted as files.
const FOLDER: &str = "./var/lib/istio/inject";
/// Interval at which files are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Delay after a watch failed.
const RETRY: Duration = Duration::from_secs(2);
const CONFIG_MAP: &str = "istio-sidecar-injector";
/// Why there are no settings.
pub(crate) const MISSING: &str =
    "ConfigMap istio-sidecar-injector or ./var/lib/istio/inject/config is missing or invalid";

/// Injector configuration and values.
pub(crate) struct InjectorSettings {
    pub(crate) config: InjectorConfig,
    pub(crate) values: ChartValues,
}

/// The newest settings; `None` before the first ones are known.
pub(crate) type InjectorSettingsWatch = watch::Receiver<Option<Arc<InjectorSettings>>>;
type SettingsSender = watch::Sender<Option<Arc<InjectorSettings>>>;

/// Follows the settings of a revision until cancelled.
pub(crate) fn follow(
    access: Access,
    namespace: &str,
    revision: &str,
    stop: &CancellationToken,
) -> InjectorSettingsWatch {
    let (sender, settings) = watch::channel(None);
    let folder = PathBuf::from(FOLDER);
    if folder.join("config").exists() {
        tokio::spawn(follow_files(folder, sender, stop.clone()));
    } else {
        let name = match revision {
            "" | "default" => CONFIG_MAP.to_owned(),
            other => format!("{CONFIG_MAP}-{other}"),
        };
        tokio::spawn(follow_config_map(access, namespace.to_owned(), name, sender, stop.clone()));
    }
    settings
}

/// Uses new settings, or keeps the last good ones.
fn apply(settings: &SettingsSender, texts: &InjectorTexts, source: &str) {
    let parsed = InjectorConfig::parse(&texts.config).and_then(|(config, problems)| {
        let values = ChartValues::parse(&texts.values)?;
        Ok((InjectorSettings { config, values }, problems))
    });
    match parsed {
        Ok((parsed, problems)) => {
            problems.iter().for_each(|problem| warn!(source, problem, "injector configuration has a problem"));
            info!(source, "loaded injector configuration");
            settings.send_replace(Some(Arc::new(parsed)));
        }
        Err(error) => warn!(source, %error, "could not load injector configuration; keeping the last good one"),
    }
}

async fn follow_files(folder: PathBuf, settings: SettingsSender, stop: CancellationToken) {
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
    settings: SettingsSender,
    stop: CancellationToken,
) {
    let source = format!("ConfigMap {namespace}/{name}");
    let follow = async {
        // Logged once: the next attempts most likely fail with the same error.
        let mut is_failing = false;
        loop {
            match WebhookObjects::connect(access.clone()).await {
                Ok(objects) => {
                    let mut events = objects.watch_injector(&namespace, &name);
                    while let Some(event) = events.next().await {
                        let failed = match event {
                            Ok(Some(texts)) => {
                                apply(&settings, &texts, &source);
                                None
                            }
                            Ok(None) => {
                                warn!(source, "injector configuration was deleted; keeping the last one");
                                None
                            }
                            Err(error) => Some(error),
                        };
                        log_failure(&mut is_failing, &source, failed.as_deref());
                        if failed.is_some() {
                            tokio::time::sleep(RETRY).await;
                        }
                    }
                }
                Err(error) => log_failure(&mut is_failing, &source, Some(&error)),
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    stop.run_until_cancelled(follow).await;
}

fn log_failure(is_failing: &mut bool, source: &str, error: Option<&str>) {
    if let Some(error) = error.filter(|_| !*is_failing) {
        warn!(source, error, "could not watch injector configuration; retrying");
    }
    *is_failing = error.is_some();
}
