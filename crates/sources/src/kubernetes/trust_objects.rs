//! Requests of the certificate authority to an API server: its Secret, token reviews, and the ConfigMaps with the mesh's
//! roots. Responses are plain values.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Client, Error, ResourceExt};
use model::labels::Labels;

use super::access::Access;
use super::client::reason;

const FIELD_MANAGER: &str = "pilot-discovery";
/// Time for one request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustRequestError {
    #[error("no response within {TIMEOUT:?}")]
    Timeout,
    #[error("{0}")]
    Failed(String),
}

/// A Secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretObject {
    /// Of the API server; empty for a Secret that is to be created.
    pub version: String,
    pub type_name: String,
    pub annotations: BTreeMap<String, String>,
    pub data: BTreeMap<String, Vec<u8>>,
}

/// Whether a write was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    Written,
    /// Another writer was faster: read again.
    Conflict,
}

/// The user of a token that the API server accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewedUser {
    pub name: String,
    pub groups: Vec<String>,
    pub audiences: Vec<String>,
}

/// A client for these requests.
#[derive(Clone)]
pub struct TrustObjects {
    pub(super) client: Client,
}

impl TrustObjects {
    pub async fn connect(mut access: Access) -> Result<TrustObjects, TrustRequestError> {
        let client = access.client().await.map_err(|error| TrustRequestError::Failed(error.to_string()))?;
        Ok(TrustObjects { client })
    }

    /// `None` if there is no such Secret.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Option<SecretObject>, TrustRequestError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let found = within(api.get_opt(name)).await?;
        Ok(found.map(|secret| SecretObject {
            version: secret.resource_version().unwrap_or_default(),
            annotations: secret.annotations().clone(),
            type_name: secret.type_.unwrap_or_default(),
            data: secret.data.unwrap_or_default().into_iter().map(|(name, ByteString(value))| (name, value)).collect(),
        }))
    }

    /// Creates or replaces a Secret. A version that is not the current one is a conflict.
    pub async fn write_secret(
        &self,
        namespace: &str,
        name: &str,
        secret: SecretObject,
    ) -> Result<WriteResult, TrustRequestError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let is_new = secret.version.is_empty();
        let object = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                resource_version: Some(secret.version).filter(|version| !version.is_empty()),
                annotations: Some(secret.annotations).filter(|all| !all.is_empty()),
                ..ObjectMeta::default()
            },
            type_: Some(secret.type_name),
            data: Some(secret.data.into_iter().map(|(name, value)| (name, ByteString(value))).collect()),
            ..Secret::default()
        };
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let written = match is_new {
            true => tokio::time::timeout(TIMEOUT, api.create(&parameters, &object)).await,
            false => tokio::time::timeout(TIMEOUT, api.replace(name, &parameters, &object)).await,
        };
        match written.map_err(|_| TrustRequestError::Timeout)? {
            Ok(_) => Ok(WriteResult::Written),
            Err(Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(WriteResult::Conflict),
            Err(error) => Err(TrustRequestError::Failed(reason(&error))),
        }
    }

    /// Reviews a token. `None` if the API server does not accept it.
    pub async fn review(&self, token: &str, audiences: &[String]) -> Result<Option<ReviewedUser>, TrustRequestError> {
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: Some(audiences.to_vec()) };
        let review = TokenReview { metadata: ObjectMeta::default(), spec, status: None };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let parameters = PostParams::default();
        let status = within(api.create(&parameters, &review)).await?.status.unwrap_or_default();
        let is_accepted = status.authenticated == Some(true) && status.error.as_deref().unwrap_or("").is_empty();
        let UserInfo { username, groups, .. } = status.user.unwrap_or_default();
        Ok(is_accepted.then(|| ReviewedUser {
            name: username.unwrap_or_default(),
            groups: groups.unwrap_or_default(),
            audiences: status.audiences.unwrap_or_default(),
        }))
    }

    /// Writes one key of a ConfigMap, and creates the ConfigMap if it is missing.
    pub async fn write_config_map(
        &self,
        namespace: &str,
        name: &str,
        key: &str,
        value: &str,
    ) -> Result<(), TrustRequestError> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let object = serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"istio.io/config": "true"}},
            "data": {key: value},
        });
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        within(api.patch(name, &parameters, &Patch::Apply(&object))).await.map(drop)
    }

    /// Everything that happens to namespaces and to the ConfigMaps of one name in them. Errors are retried with
    /// back-off by the watch itself.
    pub fn watch_config_maps(&self, name: &str, key: &str) -> BoxStream<'static, Result<NamespaceEvent, String>> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespaces = watcher::watcher(namespaces, watcher::Config::default()).map_ok(|event| match event {
            Event::Apply(namespace) | Event::InitApply(namespace) => NamespaceEvent::Namespace {
                name: namespace.name_any(),
                labels: namespace.metadata.deletion_timestamp.is_none().then(|| labels(&namespace)),
            },
            Event::Delete(namespace) => NamespaceEvent::Namespace { name: namespace.name_any(), labels: None },
            Event::Init | Event::InitDone => NamespaceEvent::Nothing,
        });
        let maps: Api<ConfigMap> = Api::all(self.client.clone());
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let key = key.to_owned();
        let maps = watcher::watcher(maps, only).map_ok(move |event| match event {
            Event::Apply(map) | Event::InitApply(map) => NamespaceEvent::ConfigMap {
                namespace: map.namespace().unwrap_or_default(),
                value: map.data.and_then(|mut data| data.remove(&key)),
            },
            Event::Delete(map) => {
                NamespaceEvent::ConfigMap { namespace: map.namespace().unwrap_or_default(), value: None }
            }
            Event::Init | Event::InitDone => NamespaceEvent::Nothing,
        });
        let both = stream::select(namespaces.boxed(), maps.boxed());
        both.map_err(|error| error.to_string()).boxed()
    }
}

/// Something that happened to a namespace or to its ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceEvent {
    Namespace {
        name: String,
        /// `None` if it is deleted or being deleted.
        labels: Option<Labels>,
    },
    /// The ConfigMap has this value now; `None` if it or the key does not exist.
    ConfigMap {
        namespace: String,
        value: Option<String>,
    },
    Nothing,
}

fn labels(namespace: &Namespace) -> Labels {
    namespace.labels().iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

pub(super) async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, TrustRequestError> {
    let answered = tokio::time::timeout(TIMEOUT, request).await.map_err(|_| TrustRequestError::Timeout)?;
    answered.map_err(|error| TrustRequestError::Failed(reason(&error)))
}
