//! Requests of the webhooks to an API server: the injector's ConfigMap, nodes, webhook configurations, and the attempt to
//! create an invalid object. Responses are plain values.

use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use kube::{Client, Error, ResourceExt};
use serde_json::{Value, json};

use super::access::Access;
use super::client::reason;

const FIELD_MANAGER: &str = "pilot-discovery";
/// Time for one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Annotation of an object that the validation webhook always rejects.
pub const ALWAYS_REJECT: &str = "internal.istio.io/webhook-always-reject";

/// Sends the requests of the webhooks to one API server.
#[derive(Clone)]
pub struct WebhookObjects {
    client: Client,
}

/// Texts of the injector's ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InjectorTexts {
    pub config: String,
    pub values: String,
}

/// A node with the version of its kubelet; `None` if it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVersion {
    pub name: String,
    pub kubelet: Option<String>,
}

/// Which webhook configurations are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookKind {
    Mutating,
    Validating,
}

/// A webhook configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfiguration {
    pub name: String,
    pub entries: Vec<WebhookEntry>,
}

/// One webhook of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookEntry {
    pub name: String,
    pub ca_bundle: Vec<u8>,
    pub failure_policy: String,
}

/// What became of an invalid object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRun {
    /// A webhook denied it.
    Denied,
    /// It would have been accepted.
    Accepted,
    /// It cannot be tried: its kind is not defined, or a webhook does not support dry runs.
    Impossible(String),
}

impl WebhookObjects {
    pub async fn connect(mut access: Access) -> Result<WebhookObjects, String> {
        let client = access.client().await.map_err(|error| error.to_string())?;
        Ok(WebhookObjects { client })
    }

    /// The injector's ConfigMap now and whenever it changes; `None` while it does not exist.
    pub fn watch_injector(
        &self,
        namespace: &str,
        name: &str,
    ) -> BoxStream<'static, Result<Option<InjectorTexts>, String>> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let texts = |map: ConfigMap| {
            let mut data = map.data.unwrap_or_default();
            let mut text = |key: &str| data.remove(key).unwrap_or_default();
            InjectorTexts { config: text("config"), values: text("values") }
        };
        let events = watcher::watcher(maps, only).try_filter_map(move |event| {
            std::future::ready(Ok(match event {
                Event::Apply(map) | Event::InitApply(map) => Some(Some(texts(map))),
                Event::Delete(_) => Some(None),
                Event::Init | Event::InitDone => None,
            }))
        });
        events.map_err(|error| error.to_string()).boxed()
    }

    /// Nodes now and whenever they change; `None` marks that all have been listed.
    pub fn watch_nodes(&self) -> BoxStream<'static, Result<Option<NodeVersion>, String>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let version = |node: &Node| {
            let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
            Some(info.map(|info| info.kubelet_version.clone()).unwrap_or_default())
        };
        let events = watcher::watcher(nodes, watcher::Config::default()).try_filter_map(move |event| {
            std::future::ready(Ok(match event {
                Event::Apply(node) | Event::InitApply(node) => {
                    Some(Some(NodeVersion { kubelet: version(&node), name: node.name_any() }))
                }
                Event::Delete(node) => Some(Some(NodeVersion { name: node.name_any(), kubelet: None })),
                Event::InitDone => Some(None),
                Event::Init => None,
            }))
        });
        events.map_err(|error| error.to_string()).boxed()
    }

    /// Webhook configurations of a revision, now and whenever they change.
    pub fn watch_configurations(
        &self,
        kind: WebhookKind,
        revision: &str,
    ) -> BoxStream<'static, Result<WebhookConfiguration, String>> {
        let labelled = watcher::Config::default().labels(&format!("istio.io/rev={revision}"));
        match kind {
            WebhookKind::Mutating => {
                let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
                let events =
                    watcher::watcher(api, labelled).try_filter_map(|event| std::future::ready(Ok(applied(event))));
                events.map_ok(mutating).map_err(|error| error.to_string()).boxed()
            }
            WebhookKind::Validating => {
                let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
                let events =
                    watcher::watcher(api, labelled).try_filter_map(|event| std::future::ready(Ok(applied(event))));
                events.map_ok(validating).map_err(|error| error.to_string()).boxed()
            }
        }
    }

    /// Changes entries of a configuration, found by their names.
    pub async fn patch_configuration(&self, kind: WebhookKind, name: &str, entries: Vec<Value>) -> Result<(), String> {
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Strategic(json!({ "webhooks": entries }));
        match kind {
            WebhookKind::Mutating => {
                let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
                within(api.patch(name, &parameters, &patch)).await.map(drop)
            }
            WebhookKind::Validating => {
                let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
                within(api.patch(name, &parameters, &patch)).await.map(drop)
            }
        }
    }

    /// Tries to create an invalid Gateway, without effect.
    pub async fn try_invalid_gateway(&self, namespace: &str) -> Result<DryRun, String> {
        let kind = GroupVersionKind::gvk("networking.istio.io", "v1", "Gateway");
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let mut gateway = DynamicObject::new("istiod-webhook-check", &resource).within(namespace);
        gateway.metadata.annotations = Some([(ALWAYS_REJECT.to_owned(), "true".to_owned())].into());
        gateway.data = json!({"spec": {}});
        let parameters = PostParams { dry_run: true, field_manager: Some(FIELD_MANAGER.to_owned()) };
        let created = tokio::time::timeout(TIMEOUT, api.create(&parameters, &gateway)).await;
        match created.map_err(|_| format!("no response within {TIMEOUT:?}"))? {
            Ok(_) => Ok(DryRun::Accepted),
            Err(Error::Api(status)) if status.message.contains("denied the request") => Ok(DryRun::Denied),
            Err(Error::Api(status)) if status.is_not_found() || status.message.contains("does not support dry run") => {
                Ok(DryRun::Impossible(status.message.clone()))
            }
            Err(error) => Err(reason(&error)),
        }
    }
}

async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(result) => result.map_err(|error| reason(&error)),
        Err(_) => Err(format!("no response within {TIMEOUT:?}")),
    }
}

fn applied<K>(event: Event<K>) -> Option<K> {
    match event {
        Event::Apply(object) | Event::InitApply(object) => Some(object),
        Event::Delete(_) | Event::Init | Event::InitDone => None,
    }
}

fn mutating(object: MutatingWebhookConfiguration) -> WebhookConfiguration {
    let entry = |webhook: k8s_openapi::api::admissionregistration::v1::MutatingWebhook| WebhookEntry {
        name: webhook.name,
        ca_bundle: webhook.client_config.ca_bundle.map(|bundle| bundle.0).unwrap_or_default(),
        failure_policy: webhook.failure_policy.unwrap_or_default(),
    };
    let name = object.name_any();
    WebhookConfiguration { name, entries: object.webhooks.unwrap_or_default().into_iter().map(entry).collect() }
}

fn validating(object: ValidatingWebhookConfiguration) -> WebhookConfiguration {
    let entry = |webhook: k8s_openapi::api::admissionregistration::v1::ValidatingWebhook| WebhookEntry {
        name: webhook.name,
        ca_bundle: webhook.client_config.ca_bundle.map(|bundle| bundle.0).unwrap_or_default(),
        failure_policy: webhook.failure_policy.unwrap_or_default(),
    };
    let name = object.name_any();
    WebhookConfiguration { name, entries: object.webhooks.unwrap_or_default().into_iter().map(entry).collect() }
}
