//! Further clusters, as Secrets or a ConfigMap of the first one name them: added, given new credentials and removed
//! while running. One that cannot be reached is not waited for past its time, and keeps what it told.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::settings::Settings;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::access::Access;
use super::cluster::Options;
use super::live::{Kubernetes, Manner};
use super::pace::Pace;
use crate::source::{Outlet, spawn};

/// All further clusters.
pub(super) struct Remotes {
    beginning: Beginning,
    clusters: BTreeMap<Origin, BTreeMap<String, Remote>>,
}

/// What names a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// A labelled Secret, by name.
    Secret(String),
    /// The ConfigMap of clusters.
    ConfigMap,
    /// The folder of clusters.
    Folder,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Secret(name) => write!(f, "Secret {name}"),
            Origin::ConfigMap => f.write_str("the ConfigMap of clusters"),
            Origin::Folder => f.write_str("the folder of clusters"),
        }
    }
}

struct Remote {
    kubeconfig: watch::Sender<String>,
    synced: watch::Receiver<bool>,
    is_refused: watch::Receiver<bool>,
    awaited_until: Instant,
    leave: CancellationToken,
}

/// What every further cluster begins with.
struct Beginning {
    pace: Option<Pace>,
    manner: Manner,
    options: Options,
    settings: watch::Receiver<Option<Settings>>,
    initial: Settings,
}

impl Remotes {
    /// Each cluster is asked at `pace`, for itself.
    pub(super) fn new(
        pace: Option<Pace>,
        manner: Manner,
        options: Options,
        settings: watch::Receiver<Option<Settings>>,
        initial: Settings,
    ) -> Remotes {
        Remotes { beginning: Beginning { pace, manner, options, settings, initial }, clusters: BTreeMap::new() }
    }

    /// Whether every cluster was listed once, cannot be asked at all, or had its time.
    pub(super) fn are_settled(&self) -> bool {
        self.clusters.values().flat_map(BTreeMap::values).all(Remote::is_settled)
    }

    /// Follows what an origin says: each entry is a cluster's name and its kubeconfig in base64.
    pub(super) fn apply(&mut self, origin: Origin, data: &BTreeMap<String, String>, outlet: &Outlet) {
        let mut wanted = BTreeMap::new();
        for (cluster, encoded) in data {
            match BASE64_STANDARD.decode(encoded).map(String::from_utf8) {
                Ok(Ok(text)) => _ = wanted.insert(cluster.clone(), text),
                _ => warn!(%origin, cluster, "ignoring a kubeconfig that is not text"),
            }
        }
        let mut known = self.clusters.remove(&origin).unwrap_or_default();
        known.retain(|cluster, remote| wanted.contains_key(cluster) || remote.go(cluster));
        for (cluster, text) in wanted {
            if *cluster == *self.beginning.options.cluster {
                warn!(%origin, cluster, "ignoring an entry that names the cluster itself");
                continue;
            }
            if let Some((other, _)) = self.clusters.iter().find(|(_, clusters)| clusters.contains_key(&cluster)) {
                warn!(%origin, cluster, %other, "ignoring an entry for a cluster that is there already");
                continue;
            }
            match known.get(&cluster) {
                Some(remote) => {
                    _ = remote.kubeconfig.send_if_modified(|told| {
                        *told != text && {
                            *told = text;
                            true
                        }
                    })
                }
                None => {
                    let remote = self.beginning.start(&cluster, text, outlet);
                    known.insert(cluster, remote);
                }
            }
        }
        self.clusters.insert(origin, known);
    }

    pub(super) fn delete(&mut self, origin: &Origin) {
        for (cluster, remote) in self.clusters.remove(origin).unwrap_or_default() {
            remote.go(&cluster);
        }
    }

    /// Removes the clusters of Secrets that a complete list does not have.
    pub(super) fn retain(&mut self, listed: &HashSet<(String, String)>) {
        let is_gone = |origin: &&Origin| match origin {
            Origin::Secret(name) => !listed.iter().any(|(_, listed)| listed == name),
            Origin::ConfigMap | Origin::Folder => false,
        };
        let gone: Vec<Origin> = self.clusters.keys().filter(is_gone).cloned().collect();
        gone.iter().for_each(|origin| self.delete(origin));
    }
}

impl Remote {
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

impl Beginning {
    fn start(&self, cluster: &str, kubeconfig: String, outlet: &Outlet) -> Remote {
        info!(cluster, "cluster added");
        let (kubeconfig, told) = watch::channel(kubeconfig);
        let leave = CancellationToken::new();
        let (settings, initial) = (self.settings.clone(), self.initial.clone());
        let options = Options { cluster: cluster.into(), is_primary: false, mesh_config: None, ..self.options.clone() };
        let access = Access::told(told, self.pace);
        let source = Kubernetes::further(access, self.manner.clone(), options, settings, initial, leave.clone());
        let (synced, is_refused) = (source.synced(), source.is_refused());
        let (batches, end) = outlet.shared();
        // It ends by itself when it is to leave or the process ends.
        spawn(source, batches, end);
        let patience = Duration::from_millis(self.initial.knobs.remote_cluster_timeout.0);
        Remote { kubeconfig, synced, is_refused, awaited_until: Instant::now() + patience, leave }
    }
}
