//! Writes the mesh's roots, and the CA's revocation lists if there are any, to a ConfigMap of every namespace that the
//! discovery selectors of the mesh config select, and restores it when it is changed or deleted. ConfigMaps of namespaces
//! that are no longer selected stay as they are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::istio::mesh::v1alpha1::LabelSelector;
use futures_util::StreamExt;
use model::labels::Labels;
use sources::kubernetes::access::Access;
use sources::kubernetes::selector::is_discovered;
use sources::kubernetes::trust_objects::{NamespaceEvent, TrustObjects};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::debug;
use trust::crl::RevocationLists;

use super::problems::Topic;
use super::{Trust, TrustState};

/// Namespaces that get none, as in upstream.
const EXCLUDED: [&str; 3] = ["kube-public", "kube-node-lease", "local-path-storage"];
/// Changes are gathered this long: deleting a namespace deletes its ConfigMap first.
const GATHER: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_secs(5);

/// What the ConfigMaps contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapContent {
    Roots,
    RevocationLists,
}

impl MapContent {
    fn key(self) -> &'static str {
        match self {
            MapContent::Roots => "root-cert.pem",
            MapContent::RevocationLists => "ca-crl.pem",
        }
    }

    /// Empty if there is nothing to write.
    fn value(self, state: &TrustState) -> String {
        match self {
            MapContent::Roots => state.authority.roots().to_pem(),
            MapContent::RevocationLists => state.revoked.as_ref().map(RevocationLists::to_pem).unwrap_or_default(),
        }
    }

    fn topic(self) -> Topic {
        match self {
            MapContent::Roots => Topic::ConfigMaps,
            MapContent::RevocationLists => Topic::CrlConfigMaps,
        }
    }
}

/// `discoverySelectors` of the mesh config; `None` until the mesh config is read.
pub(crate) type DiscoverySelectors = watch::Receiver<Option<Vec<LabelSelector>>>;

/// The ConfigMaps of one name in all namespaces.
pub(super) struct NamespaceConfigMaps {
    pub(super) selectors: DiscoverySelectors,
    pub(super) access: Access,
    pub(super) name: String,
    pub(super) content: MapContent,
}

#[derive(Default)]
struct Known {
    /// Namespaces that are not being deleted.
    active: BTreeMap<String, Labels>,
    values: BTreeMap<String, String>,
}

impl Known {
    fn apply(&mut self, event: NamespaceEvent) {
        match event {
            NamespaceEvent::Namespace { name, labels: Some(labels) } => drop(self.active.insert(name, labels)),
            NamespaceEvent::Namespace { name, labels: None } => drop(self.active.remove(&name)),
            NamespaceEvent::ConfigMap { namespace, value: Some(value) } => drop(self.values.insert(namespace, value)),
            NamespaceEvent::ConfigMap { namespace, value: None } => drop(self.values.remove(&namespace)),
            NamespaceEvent::Nothing => {}
        }
    }

    /// Selected namespaces without the current value.
    fn missing(&self, selectors: &[LabelSelector], value: &str) -> Vec<String> {
        // Without a value only ConfigMaps that have one are wrong.
        let is_wrong = |name: &&String| self.values.get(*name).map_or("", String::as_str) != value;
        let is_included = |name: &&String| !EXCLUDED.contains(&name.as_str());
        let selected = self.active.iter().filter(|(_, labels)| is_discovered(selectors, labels)).map(|(name, _)| name);
        selected.filter(is_included).filter(is_wrong).cloned().collect()
    }
}

impl NamespaceConfigMaps {
    /// Writes the ConfigMaps until cancelled.
    pub(super) async fn run(self, trust: Arc<Trust>, stop: CancellationToken) {
        loop {
            let ended = stop.run_until_cancelled(self.follow(&trust)).await;
            let Some(reason) = ended else { return };
            let message = format!("could not write the ConfigMaps {}: {reason}; retrying", self.name);
            trust.problems.error(self.content.topic(), message);
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
        let (mut states, mut selectors) = (trust.subscribe(), self.selectors.clone());
        let mut events = objects.watch_config_maps(&self.name, self.content.key());
        let mut known = Known::default();
        loop {
            tokio::select! {
                changed = states.changed() => if changed.is_err() { return "the server is stopping".to_owned() },
                changed = selectors.changed() => if changed.is_err() { return "the server is stopping".to_owned() },
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
            let Some(selected) = selectors.borrow_and_update().clone() else { continue };
            let value = self.content.value(&state);
            for namespace in known.missing(&selected, &value) {
                if let Err(error) = objects.write_config_map(&namespace, &self.name, self.content.key(), &value).await {
                    return format!("{error} (namespace {namespace})");
                }
                debug!(namespace, "wrote root certificates to the namespace's ConfigMap");
                known.values.insert(namespace, value.clone());
            }
            trust.problems.solved(self.content.topic());
        }
    }
}

#[cfg(test)]
mod tests {
    use api::istio::mesh::v1alpha1::LabelSelector;
    use model::labels::Labels;

    use super::{Known, NamespaceEvent};

    fn namespace(name: &str, is_active: bool) -> NamespaceEvent {
        labelled(name, is_active.then(Labels::default))
    }

    fn labelled(name: &str, labels: Option<Labels>) -> NamespaceEvent {
        NamespaceEvent::Namespace { name: name.to_owned(), labels }
    }

    #[test]
    fn namespaces_that_are_not_selected_are_left_alone() {
        let mut known = Known::default();
        let selector = LabelSelector {
            match_labels: [("mesh".to_owned(), "yes".to_owned())].into_iter().collect(),
            ..LabelSelector::default()
        };
        let with = |value: &str| Some([("mesh", value)].into_iter().collect());
        for event in
            [labelled("a", with("yes")), labelled("b", with("no")), labelled("kube-system", Some(Labels::default()))]
        {
            known.apply(event);
        }
        let selectors = [selector];
        assert_eq!(known.missing(&selectors, "new"), ["a"]);
        assert_eq!(known.missing(&[], "new"), ["a", "b", "kube-system"]);
        known.apply(labelled("b", with("yes")));
        assert_eq!(known.missing(&selectors, "new"), ["a", "b"]);
        known.apply(labelled("a", with("no")));
        assert_eq!(known.missing(&selectors, "new"), ["b"]);
    }

    #[test]
    fn only_active_namespaces_without_the_value_are_written() {
        let mut known = Known::default();
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
        assert_eq!(known.missing(&[], "new"), ["a", "c", "kube-system"]);
        known.apply(map("b", None));
        assert_eq!(known.missing(&[], "new"), ["a", "b", "c", "kube-system"]);
        assert_eq!(known.missing(&[], ""), ["c"], "without a value only an old one is removed");
    }
}
