//! The admission webhooks: `/inject` adds proxies to pods, `/validate` checks configuration. `server` has the limits of
//! requests, `injector` the settings of injection, `configurations` writes this server's CA into the webhook configurations.

mod configurations;
mod injector;
mod metrics;
mod server;
mod validate;

use std::sync::Arc;

use inject::NativeMode;
use model::snapshot::Snapshot;
use sources::kubernetes::access::Access;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::environment::Environment;
use crate::injector_settings::InjectorSettingsWatch;
use crate::trust::Trust;
use injector::Injector;
pub(crate) use metrics::WebhookMetrics;
pub(crate) use server::router;

/// The answer to a review of a configuration object, as JSON.
pub fn validation_answer(body: &[u8]) -> String {
    validate::review(body, &WebhookMetrics::default())
}

/// Returns the newest snapshot.
pub(crate) type SnapshotReader = Arc<dyn Fn() -> Arc<Snapshot> + Send + Sync>;

/// State of the webhooks.
pub(crate) struct Webhooks {
    /// `None` if injection is off.
    injector: Option<Injector>,
    pub(crate) metrics: WebhookMetrics,
    limits: server::RequestLimits,
}

/// What the webhooks are started with.
pub(crate) struct WebhookStart<'a> {
    pub(crate) access: Access,
    pub(crate) namespace: &'a str,
    pub(crate) environment: Environment<'a>,
    /// The settings of injection.
    pub(crate) injector: InjectorSettingsWatch,
    /// Returns the newest snapshot.
    pub(crate) snapshot: SnapshotReader,
    /// Its roots go into the webhook configurations; `None` if the certificate of the port is given by files.
    pub(crate) trust: Option<Arc<Trust>>,
}

/// Starts what the webhooks need. The port is served by the caller.
pub(crate) fn start(options: WebhookStart<'_>, stop: &CancellationToken) -> Arc<Webhooks> {
    let variable = |name: &str| (options.environment)(name);
    let revision = variable("REVISION").filter(|revision| !revision.is_empty());
    let revision = revision.unwrap_or_else(|| "default".to_owned());
    let metrics = WebhookMetrics::default();
    let injects = variable("INJECT_ENABLED").is_none_or(|value| value != "false");
    let injector = injects.then(|| {
        let given = variable("ENABLE_NATIVE_SIDECARS").unwrap_or_default();
        let native = NativeMode::parse(&given).unwrap_or_else(|| {
            warn!(value = given, "unknown value of ENABLE_NATIVE_SIDECARS: native sidecars are off");
            NativeMode::Disabled
        });
        let injector = Injector::new(&options, &revision, native);
        injector.follow(&options, stop);
        injector
    });
    if let Some(trust) = &options.trust {
        let writer = configurations::ConfigurationWriter {
            access: options.access.clone(),
            namespace: options.namespace.to_owned(),
            revision,
            trust: Arc::clone(trust),
            metrics: metrics.clone(),
        };
        let is_on = |name: &str| variable(name).is_none_or(|value| !value.is_empty());
        if injects && is_on("INJECTION_WEBHOOK_CONFIG_NAME") {
            tokio::spawn(writer.clone().inject(stop.clone()));
        }
        if is_on("VALIDATION_WEBHOOK_CONFIG_NAME") {
            tokio::spawn(writer.validate(stop.clone()));
        }
    }
    Arc::new(Webhooks { injector, metrics, limits: server::RequestLimits::default() })
}
