//! Fetches one Secret or ConfigMap whose content was dropped because nothing referred to it when it was watched.
//! It is listed by name, which needs the same permissions as the watch.

use kube::Client;
use kube::api::{Api, ListParams};
use model::names::{CredentialKey, CredentialKind};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::debug;

use super::collection::Collection;
use super::schema::{self, ClusterObject};
use super::watch::{NamedObject, ObjectContent, WatchEvent, WatchMessage, resource, watch_backoff};

/// Retries until there is a response. If the object is gone, the watch reports its deletion.
pub(super) async fn fetch(client: Client, key: CredentialKey, session: u64, messages: mpsc::Sender<WatchMessage>) {
    let (collection, resource) = match key.kind {
        CredentialKind::Secret => (Collection::Secret, resource("", "v1", "Secret", "secrets")),
        CredentialKind::ConfigMap => (Collection::ConfigMap, resource("", "v1", "ConfigMap", "configmaps")),
    };
    let api: Api<schema::DataObject> = Api::namespaced_with(client, &key.namespace, &resource);
    let by_name = ListParams::default().fields(&format!("metadata.name={}", key.name));
    let mut backoff = watch_backoff();
    let found = loop {
        match api.list(&by_name).await {
            Ok(found) => break found,
            Err(error) => {
                debug!(namespace = %key.namespace, name = %key.name, %error, "could not fetch credential; retrying")
            }
        }
        sleep(backoff.next_wait()).await;
    };
    let Some(object) = found.items.into_iter().next() else { return };
    let item = match key.kind {
        CredentialKind::Secret => ClusterObject::Secret(object),
        CredentialKind::ConfigMap => ClusterObject::ConfigMap(object),
    };
    let object = NamedObject {
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        content: ObjectContent::Item(item),
    };
    // The receiver is gone when the server stops.
    let _ = messages.send(WatchMessage { session, collection, event: WatchEvent::Fetched(object) }).await;
}
