//! Further clusters, as Secrets of the first one name them: added, given new credentials and removed while
//! running. One that cannot be reached is not waited for past its time, and keeps what it told.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::settings::Settings;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::cluster::Options;
use super::live::{Access, Kubernetes};
use crate::source::{Outlet, spawn};

/// All further clusters.
pub(super) struct Remotes {
    options: Options,
    settings: watch::Receiver<Option<Settings>>,
    initial: Settings,
    /// By the name of the Secret, then by cluster.
    clusters: BTreeMap<String, BTreeMap<String, Remote>>,
}

struct Remote {
    kubeconfig: watch::Sender<String>,
    synced: watch::Receiver<bool>,
    awaited_until: Instant,
    leave: CancellationToken,
}

impl Remotes {
    pub(super) fn new(options: Options, settings: watch::Receiver<Option<Settings>>, initial: Settings) -> Remotes {
        Remotes { options, settings, initial, clusters: BTreeMap::new() }
    }

    /// Whether every cluster was listed once, or had its time.
    pub(super) fn are_settled(&self) -> bool {
        let mut all = self.clusters.values().flat_map(BTreeMap::values);
        all.all(|remote| *remote.synced.borrow() || Instant::now() >= remote.awaited_until)
    }

    /// Follows a Secret: each entry is a cluster's name and its kubeconfig.
    pub(super) fn apply(&mut self, secret: &str, data: &BTreeMap<String, String>, outlet: &Outlet) {
        let mut wanted = BTreeMap::new();
        for (cluster, encoded) in data {
            match BASE64_STANDARD.decode(encoded).map(String::from_utf8) {
                Ok(Ok(text)) => _ = wanted.insert(cluster.clone(), text),
                _ => warn!(secret, cluster, "ignoring a kubeconfig that is not text"),
            }
        }
        let known = self.clusters.entry(secret.to_owned()).or_default();
        known.retain(|cluster, remote| wanted.contains_key(cluster) || remote.go(cluster));
        for (cluster, text) in wanted {
            if *cluster == *self.options.cluster {
                warn!(secret, cluster, "ignoring a Secret that names the cluster itself");
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
                    let remote = start(&self.options, &self.settings, &self.initial, &cluster, text, outlet);
                    known.insert(cluster, remote);
                }
            }
        }
    }

    pub(super) fn delete(&mut self, secret: &str) {
        for (cluster, remote) in self.clusters.remove(secret).unwrap_or_default() {
            remote.go(&cluster);
        }
    }

    /// Removes the clusters of Secrets that a complete list does not have.
    pub(super) fn retain(&mut self, listed: &HashSet<(String, String)>) {
        let is_listed = |name: &String| listed.iter().any(|(_, listed)| listed == name);
        let gone: Vec<String> = self.clusters.keys().filter(|name| !is_listed(name)).cloned().collect();
        gone.iter().for_each(|name| self.delete(name));
    }
}

impl Remote {
    /// Has the cluster take back what it told. Always false, for `retain`.
    fn go(&self, cluster: &str) -> bool {
        info!(cluster, "cluster removed");
        self.leave.cancel();
        false
    }
}

fn start(
    options: &Options,
    settings: &watch::Receiver<Option<Settings>>,
    initial: &Settings,
    cluster: &str,
    kubeconfig: String,
    outlet: &Outlet,
) -> Remote {
    info!(cluster, "cluster added");
    let (kubeconfig, told) = watch::channel(kubeconfig);
    let leave = CancellationToken::new();
    let options = Options { cluster: cluster.into(), is_primary: false, mesh_config: None, ..options.clone() };
    let source = Kubernetes::further(Access::Told(told), options, settings.clone(), initial.clone(), leave.clone());
    let synced = source.synced();
    let (batches, end) = outlet.shared();
    // It ends by itself when it is to leave or the process ends.
    spawn(source, batches, end);
    let patience = Duration::from_millis(initial.knobs.remote_cluster_timeout.0);
    Remote { kubeconfig, synced, awaited_until: Instant::now() + patience, leave }
}
