//! The remote clusters that objects of the primary cluster or files name: started, given new credentials and removed at
//! run time. The initial sync waits for a remote cluster until its timeout; an unreachable one keeps its known objects.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use model::change::SourceId;
use model::names::ClusterId;
use model::problem::Problem;
use model::settings::NameList;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::access::Access;
use super::kubeconfig::{CheckedKubeconfig, KubeconfigEntry, KubeconfigRejection};
use super::remote_access::RemoteAccess;
use crate::health::SourceHealth;
use crate::source::ChangeSender;
use crate::source_set::{RemoteInfo, SourceSet};

/// Starts the source of a remote cluster by its name and kubeconfig.
pub(super) type StartCluster = Box<dyn Fn(&str, CheckedKubeconfig, &ChangeSender) -> RemoteCluster + Send + Sync>;

/// All remote clusters.
pub(super) struct RemoteClusters {
    /// The name of the primary cluster.
    own_name: ClusterId,
    /// Insecure kubeconfig options that the operator allows.
    allowed: NameList,
    start: StartCluster,
    clusters: BTreeMap<KubeconfigOrigin, BTreeMap<String, RemoteCluster>>,
    /// Problems of entries that cannot be used.
    problems: BTreeMap<KubeconfigOrigin, Vec<Problem>>,
    has_new_problems: bool,
    /// Lists the sources of the clusters for debug pages and metrics.
    pub(super) sources: SourceSet,
    /// Access to the clusters for other requests.
    pub(super) access: RemoteAccess,
}

/// What names a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KubeconfigOrigin {
    /// A labelled Secret, by namespace and name.
    Secret(String, String),
    /// The ConfigMap of clusters.
    ConfigMap,
    /// The folder of kubeconfigs.
    Directory,
}

impl KubeconfigOrigin {
    /// Short, as debug pages show it: a Secret as `namespace/name`.
    fn name(&self) -> String {
        match self {
            KubeconfigOrigin::Secret(namespace, name) => format!("{namespace}/{name}"),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for KubeconfigOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KubeconfigOrigin::Secret(namespace, name) => write!(f, "Secret {namespace}/{name}"),
            KubeconfigOrigin::ConfigMap => f.write_str("the ConfigMap of clusters"),
            KubeconfigOrigin::Directory => f.write_str("the folder of kubeconfigs"),
        }
    }
}

/// Why a kubeconfig entry is not used.
#[derive(Debug, thiserror::Error)]
enum KubeconfigEntryError {
    #[error("this is the name of the primary cluster")]
    OwnName,
    #[error("{0} already names this cluster")]
    Duplicate(KubeconfigOrigin),
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigRejection),
}

/// The handle on one remote cluster.
pub(super) struct RemoteCluster {
    pub(super) kubeconfig: watch::Sender<CheckedKubeconfig>,
    pub(super) synced: watch::Receiver<bool>,
    /// Whether no client can be made of the kubeconfig.
    pub(super) is_refused: watch::Receiver<bool>,
    pub(super) awaited_until: Instant,
    pub(super) source: SourceId,
    pub(super) health: SourceHealth,
    /// Cancelled to delete the cluster with everything that it has sent.
    pub(super) removed: CancellationToken,
}

impl RemoteClusters {
    pub(super) fn new(own_name: ClusterId, allowed: NameList, start: StartCluster) -> RemoteClusters {
        let (clusters, problems) = (BTreeMap::new(), BTreeMap::new());
        let (sources, access) = (SourceSet::default(), RemoteAccess::default());
        RemoteClusters { own_name, allowed, start, clusters, problems, has_new_problems: false, sources, access }
    }

    /// Whether the initial sync waits for no remote cluster any longer.
    pub(super) fn are_settled(&self) -> bool {
        self.clusters.values().flat_map(BTreeMap::values).all(RemoteCluster::is_settled)
    }

    /// Replaces the entries of an origin. A cluster without an entry is removed; one whose entry cannot be used keeps
    /// its last credentials.
    pub(super) fn apply(
        &mut self,
        origin: KubeconfigOrigin,
        entries: &BTreeMap<String, KubeconfigEntry>,
        sender: &ChangeSender,
    ) {
        let mut known = self.clusters.remove(&origin).unwrap_or_default();
        known.retain(|cluster, remote| {
            let is_listed = entries.contains_key(cluster);
            if !is_listed {
                remote.remove(cluster, &self.sources);
                self.access.remove(cluster);
            }
            is_listed
        });
        let mut problems = Vec::new();
        for (cluster, entry) in entries {
            if let Err(error) = self.apply_entry(&mut known, &origin, (cluster, entry), sender) {
                let outcome =
                    if known.contains_key(cluster) { "keeping its last credentials" } else { "not watching it" };
                problems.push(entry.problem(cluster, &format!("{error}; {outcome}")));
            }
        }
        self.clusters.insert(origin.clone(), known);
        self.set_problems(origin, problems);
    }

    fn apply_entry(
        &self,
        known: &mut BTreeMap<String, RemoteCluster>,
        origin: &KubeconfigOrigin,
        (cluster, entry): (&str, &KubeconfigEntry),
        sender: &ChangeSender,
    ) -> Result<(), KubeconfigEntryError> {
        if *cluster == *self.own_name {
            return Err(KubeconfigEntryError::OwnName);
        }
        if let Some((other, _)) = self.clusters.iter().find(|(_, clusters)| clusters.contains_key(cluster)) {
            return Err(KubeconfigEntryError::Duplicate(other.clone()));
        }
        let text = entry.text()?;
        let is_known = known.get(cluster).is_some_and(|remote| remote.kubeconfig.borrow().is(&text));
        if is_known {
            return Ok(());
        }
        let checked = CheckedKubeconfig::read(text, &self.allowed)?;
        match known.get(cluster) {
            Some(remote) => {
                remote.kubeconfig.send_replace(checked);
                self.share_access(cluster, remote);
            }
            None => {
                info!(cluster, "remote cluster added");
                let remote = (self.start)(cluster, checked, sender);
                let info = RemoteInfo {
                    cluster: cluster.to_owned(),
                    origin: origin.name(),
                    late_after: remote.awaited_until.into_std(),
                };
                self.sources.insert_remote(remote.source.clone(), remote.health.clone(), info);
                self.share_access(cluster, &remote);
                known.insert(cluster.to_owned(), remote);
            }
        }
        Ok(())
    }

    /// Lets others reach the cluster with its current credentials; they have their own rate limits.
    fn share_access(&self, cluster: &str, remote: &RemoteCluster) {
        self.access.put(cluster, Access::updated_kubeconfig(remote.kubeconfig.subscribe(), None));
    }

    fn set_problems(&mut self, origin: KubeconfigOrigin, problems: Vec<Problem>) {
        let before = self.problems.remove(&origin).unwrap_or_default();
        self.has_new_problems |= before != problems;
        if !problems.is_empty() {
            self.problems.insert(origin, problems);
        }
    }

    /// All problems, if they changed since the last call.
    pub(super) fn new_problems(&mut self) -> Option<Vec<Problem>> {
        let are_new = std::mem::take(&mut self.has_new_problems);
        are_new.then(|| self.problems.values().flatten().cloned().collect())
    }

    pub(super) fn delete(&mut self, origin: &KubeconfigOrigin) {
        for (cluster, remote) in self.clusters.remove(origin).unwrap_or_default() {
            remote.remove(&cluster, &self.sources);
            self.access.remove(&cluster);
        }
        self.set_problems(origin.clone(), Vec::new());
    }

    /// Removes the clusters of Secrets that a complete list does not have.
    pub(super) fn retain(&mut self, listed: &HashSet<(String, String)>) {
        let gone: Vec<KubeconfigOrigin> =
            self.clusters.keys().filter(|origin| is_missing(origin, listed)).cloned().collect();
        gone.iter().for_each(|origin| self.delete(origin));
    }

    /// How many Secrets name clusters, and how many of them a complete list does not have.
    pub(super) fn loss(&self, listed: &HashSet<(String, String)>) -> (usize, usize) {
        let known = self.clusters.keys().filter(|origin| matches!(origin, KubeconfigOrigin::Secret(..)));
        (known.count(), self.clusters.keys().filter(|origin| is_missing(origin, listed)).count())
    }
}

/// Whether an origin is a Secret that a complete list does not have.
fn is_missing(origin: &KubeconfigOrigin, listed: &HashSet<(String, String)>) -> bool {
    match origin {
        KubeconfigOrigin::Secret(namespace, name) => !listed.contains(&(namespace.clone(), name.clone())),
        KubeconfigOrigin::ConfigMap | KubeconfigOrigin::Directory => false,
    }
}

impl RemoteCluster {
    fn is_settled(&self) -> bool {
        *self.synced.borrow() || *self.is_refused.borrow() || Instant::now() >= self.awaited_until
    }

    fn remove(&self, cluster: &str, sources: &SourceSet) {
        info!(cluster, "remote cluster removed");
        sources.remove(&self.source);
        self.removed.cancel();
    }
}
