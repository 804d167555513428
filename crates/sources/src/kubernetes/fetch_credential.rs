//! One Secret or ConfigMap, asked for beside the watch of all: its content was let go when it came, since nobody
//! named it then. It is listed by name, which takes no other right than the watch has.

use kube::Client;
use kube::api::{Api, ListParams};
use model::names::{CredentialKey, CredentialKind};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::debug;

use super::backoff::Backoff;
use super::join::Collection;
use super::schema::{self, ClusterObject};
use super::watch::{NamedObject, ObjectContent, WatchEvent, WatchMessage, resource};

/// Asks until there is an answer. One that is not there any more is for the watch to tell.
pub(super) async fn ask(client: Client, key: CredentialKey, session: u64, tell: mpsc::Sender<WatchMessage>) {
    let (collection, resource) = match key.kind {
        CredentialKind::Secret => (Collection::Secret, resource("", "v1", "Secret", "secrets")),
        CredentialKind::ConfigMap => (Collection::ConfigMap, resource("", "v1", "ConfigMap", "configmaps")),
    };
    let api: Api<schema::DataObject> = Api::namespaced_with(client, &key.namespace, &resource);
    let by_name = ListParams::default().fields(&format!("metadata.name={}", key.name));
    let mut backoff = Backoff::default();
    let found = loop {
        match api.list(&by_name).await {
            Ok(found) => break found,
            Err(error) => {
                debug!(namespace = %key.namespace, name = %key.name, %error, "could not ask for a credential")
            }
        }
        sleep(backoff.next_wait()).await;
    };
    let Some(holding) = found.items.into_iter().next() else { return };
    let item = match key.kind {
        CredentialKind::Secret => ClusterObject::Secret(holding),
        CredentialKind::ConfigMap => ClusterObject::ConfigMap(holding),
    };
    let seen = NamedObject {
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        content: ObjectContent::Item(item),
    };
    // Nobody listens when the server stops.
    let _ = tell.send(WatchMessage { session, collection, what: WatchEvent::Supplied(seen) }).await;
}
