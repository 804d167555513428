//! Writes the mesh's roots to a ConfigMap of every namespace, and restores it when it is changed or deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use sources::kubernetes::access::Access;
use sources::kubernetes::trust_objects::{NamespaceEvent, TrustObjects};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Trust;
use super::problems::Topic;

const KEY: &str = "root-cert.pem";
/// Namespaces that get none, as in upstream.
const EXCLUDED: [&str; 3] = ["kube-public", "kube-node-lease", "local-path-storage"];
/// Changes are gathered this long: deleting a namespace deletes its ConfigMap first.
const GATHER: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_secs(5);

/// The ConfigMaps of all namespaces.
pub(super) struct RootConfigMaps {
    pub(super) access: Access,
    pub(super) name: String,
}

/// Namespaces and ConfigMaps of the cluster.
#[derive(Default)]
struct Known {
    active: BTreeSet<String>,
    values: BTreeMap<String, String>,
}

impl Known {
    fn apply(&mut self, event: NamespaceEvent) {
        match event {
            NamespaceEvent::Namespace { name, is_active: true } => drop(self.active.insert(name)),
            NamespaceEvent::Namespace { name, is_active: false } => drop(self.active.remove(&name)),
            NamespaceEvent::ConfigMap { namespace, value: Some(value) } => drop(self.values.insert(namespace, value)),
            NamespaceEvent::ConfigMap { namespace, value: None } => drop(self.values.remove(&namespace)),
            NamespaceEvent::Nothing => {}
        }
    }

    /// Namespaces without the current value.
    fn missing(&self, value: &str) -> Vec<String> {
        let is_wrong = |name: &&String| self.values.get(*name).map(String::as_str) != Some(value);
        let is_included = |name: &&String| !EXCLUDED.contains(&name.as_str());
        self.active.iter().filter(is_included).filter(is_wrong).cloned().collect()
    }
}

impl RootConfigMaps {
    /// Writes the ConfigMaps until cancelled.
    pub(super) async fn run(self, trust: Arc<Trust>, stop: CancellationToken) {
        loop {
            let ended = stop.run_until_cancelled(self.follow(&trust)).await;
            let Some(reason) = ended else { return };
            let message = format!("could not write the ConfigMaps {}: {reason}; retrying", self.name);
            trust.problems.error(Topic::ConfigMaps, message);
            if stop.run_until_cancelled(tokio::time::sleep(RETRY)).await.is_none() {
                return;
            }
        }
    }

    /// Writes until a request fails; returns the cause.
    async fn follow(&self, trust: &Trust) -> String {
        let objects = match TrustObjects::connect(self.access.clone()).await {
            Ok(objects) => objects,
            Err(error) => return error.to_string(),
        };
        let mut states = trust.subscribe();
        let mut events = objects.watch_config_maps(&self.name, KEY);
        let mut known = Known::default();
        loop {
            tokio::select! {
                changed = states.changed() => if changed.is_err() { return "the server is stopping".to_owned() },
                event = events.next() => match event {
                    Some(Ok(event)) => known.apply(event),
                    Some(Err(error)) => return error,
                    None => return "the watch ended".to_owned(),
                },
            }
            while let Ok(Some(event)) = tokio::time::timeout(GATHER, events.next()).await {
                match event {
                    Ok(event) => known.apply(event),
                    Err(error) => return error,
                }
            }
            let Some(state) = states.borrow_and_update().clone() else { continue };
            let value = state.authority.roots().to_pem();
            for namespace in known.missing(&value) {
                if let Err(error) = objects.write_config_map(&namespace, &self.name, KEY, &value).await {
                    return format!("{error} (namespace {namespace})");
                }
                debug!(namespace, "wrote root certificates to the namespace's ConfigMap");
                known.values.insert(namespace, value.clone());
            }
            trust.problems.solved(Topic::ConfigMaps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Known, NamespaceEvent};

    #[test]
    fn only_active_namespaces_without_the_value_are_written() {
        let mut known = Known::default();
        let namespace = |name: &str, is_active| NamespaceEvent::Namespace { name: name.to_owned(), is_active };
        let map = |name: &str, value: Option<&str>| NamespaceEvent::ConfigMap {
            namespace: name.to_owned(),
            value: value.map(str::to_owned),
        };
        for event in [
            map("b", Some("new")),
            namespace("a", true),
            namespace("b", true),
            namespace("c", true),
            map("c", Some("old")),
            namespace("d", true),
            namespace("d", false),
            namespace("kube-public", true),
            namespace("kube-system", true),
        ] {
            known.apply(event);
        }
        assert_eq!(known.missing("new"), ["a", "c", "kube-system"]);
        known.apply(map("b", None));
        assert_eq!(known.missing("new"), ["a", "b", "c", "kube-system"]);
    }
}
