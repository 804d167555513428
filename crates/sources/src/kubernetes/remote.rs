//! Further clusters, as Secrets or a ConfigMap of the first one name them: added, given new credentials and removed
//! while running. One that cannot be reached is not waited for past its time, and keeps what it told.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use model::problem::Problem;
use model::settings::Settings;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::access::Access;
use super::join::ClusterOptions;
use super::kubeconfig::{CheckedKubeconfig, KubeconfigEntry};
use super::rate_limit::RateLimit;
use super::source::{Kubernetes, WatchOptions};
use crate::source::{ChangeSender, spawn};

/// All further clusters.
pub(super) struct RemoteClusters {
    template: RemoteTemplate,
    clusters: BTreeMap<KubeconfigOrigin, BTreeMap<String, RemoteCluster>>,
    /// Entries that are not used.
    problems: BTreeMap<KubeconfigOrigin, Vec<Problem>>,
    has_new_problems: bool,
}

/// What names a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KubeconfigOrigin {
    /// A labelled Secret, by namespace and name.
    Secret(String, String),
    /// The ConfigMap of clusters.
    ConfigMap,
    /// The folder of clusters.
    Directory,
}

impl fmt::Display for KubeconfigOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KubeconfigOrigin::Secret(namespace, name) => write!(f, "Secret {namespace}/{name}"),
            KubeconfigOrigin::ConfigMap => f.write_str("the ConfigMap of clusters"),
            KubeconfigOrigin::Directory => f.write_str("the folder of clusters"),
        }
    }
}

struct RemoteCluster {
    kubeconfig: watch::Sender<CheckedKubeconfig>,
    synced: watch::Receiver<bool>,
    is_refused: watch::Receiver<bool>,
    awaited_until: Instant,
    leave: CancellationToken,
}

/// What every further cluster begins with.
struct RemoteTemplate {
    rate_limit: Option<RateLimit>,
    watch_options: WatchOptions,
    options: ClusterOptions,
    settings: watch::Receiver<Option<Settings>>,
    initial: Settings,
}

impl RemoteClusters {
    /// Each cluster is asked at `pace`, for itself.
    pub(super) fn new(
        rate_limit: Option<RateLimit>,
        watch_options: WatchOptions,
        options: ClusterOptions,
        settings: watch::Receiver<Option<Settings>>,
        initial: Settings,
    ) -> RemoteClusters {
        let template = RemoteTemplate { rate_limit, watch_options, options, settings, initial };
        RemoteClusters { template, clusters: BTreeMap::new(), problems: BTreeMap::new(), has_new_problems: false }
    }

    /// Whether every cluster was listed once, cannot be asked at all, or had its time.
    pub(super) fn are_settled(&self) -> bool {
        self.clusters.values().flat_map(BTreeMap::values).all(RemoteCluster::is_settled)
    }

    /// Follows what an origin says: a kubeconfig for each cluster. A cluster goes with its entry; one whose entry cannot
    /// be used keeps the credentials that it has.
    pub(super) fn apply(
        &mut self,
        origin: KubeconfigOrigin,
        entries: &BTreeMap<String, KubeconfigEntry>,
        sender: &ChangeSender,
    ) {
        let mut known = self.clusters.remove(&origin).unwrap_or_default();
        known.retain(|cluster, remote| entries.contains_key(cluster) || remote.go(cluster));
        let mut problems = Vec::new();
        for (cluster, entry) in entries {
            if let Err(reason) = self.follow(&mut known, cluster, entry, sender) {
                let outcome =
                    if known.contains_key(cluster) { "keeping its last credentials" } else { "not watching it" };
                problems.push(entry.problem(cluster, &format!("{reason}; {outcome}")));
            }
        }
        self.clusters.insert(origin.clone(), known);
        self.note(origin, problems);
    }

    fn follow(
        &self,
        known: &mut BTreeMap<String, RemoteCluster>,
        cluster: &str,
        entry: &KubeconfigEntry,
        sender: &ChangeSender,
    ) -> Result<(), String> {
        if *cluster == *self.template.options.cluster {
            return Err("the name is that of the cluster itself".to_owned());
        }
        if let Some((other, _)) = self.clusters.iter().find(|(_, clusters)| clusters.contains_key(cluster)) {
            return Err(format!("{other} names the cluster already"));
        }
        let text = entry.text()?;
        let is_known = known.get(cluster).is_some_and(|remote| remote.kubeconfig.borrow().is(&text));
        if is_known {
            return Ok(());
        }
        let checked = CheckedKubeconfig::read(text, &self.template.initial.knobs.insecure_kubeconfig_options)?;
        match known.get(cluster) {
            Some(remote) => _ = remote.kubeconfig.send_replace(checked),
            None => _ = known.insert(cluster.to_owned(), self.template.start(cluster, checked, sender)),
        }
        Ok(())
    }

    /// Keeps the problems of an origin.
    fn note(&mut self, origin: KubeconfigOrigin, problems: Vec<Problem>) {
        let before = self.problems.remove(&origin).unwrap_or_default();
        self.has_new_problems |= before != problems;
        if !problems.is_empty() {
            self.problems.insert(origin, problems);
        }
    }

    /// All problems, where they are others than at the last call.
    pub(super) fn new_problems(&mut self) -> Option<Vec<Problem>> {
        let are_new = std::mem::take(&mut self.has_new_problems);
        are_new.then(|| self.problems.values().flatten().cloned().collect())
    }

    pub(super) fn delete(&mut self, origin: &KubeconfigOrigin) {
        for (cluster, remote) in self.clusters.remove(origin).unwrap_or_default() {
            remote.go(&cluster);
        }
        self.note(origin.clone(), Vec::new());
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

    /// Has the cluster take back what it told. Always false, for `retain`.
    fn go(&self, cluster: &str) -> bool {
        info!(cluster, "cluster removed");
        self.leave.cancel();
        false
    }
}

impl RemoteTemplate {
    fn start(&self, cluster: &str, kubeconfig: CheckedKubeconfig, sender: &ChangeSender) -> RemoteCluster {
        info!(cluster, "cluster added");
        let (kubeconfig, told) = watch::channel(kubeconfig);
        let leave = CancellationToken::new();
        let (settings, initial) = (self.settings.clone(), self.initial.clone());
        let options =
            ClusterOptions { cluster: cluster.into(), is_primary: false, mesh_config: None, ..self.options.clone() };
        let access = Access::told(told, self.rate_limit);
        let source = Kubernetes::further(access, self.watch_options.clone(), options, settings, initial, leave.clone());
        let (synced, is_refused) = (source.synced(), source.is_refused());
        let (batches, end) = sender.shared();
        // It ends by itself when it is to leave or the process ends.
        spawn(source, batches, end);
        let patience = Duration::from_millis(self.initial.knobs.remote_cluster_timeout.0);
        RemoteCluster { kubeconfig, synced, is_refused, awaited_until: Instant::now() + patience, leave }
    }
}
