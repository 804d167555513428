//! Access to the remote clusters that are known now, for requests other than watches: the control plane reviews tokens of
//! their workloads.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::access::Access;

/// Access by cluster. Clones share everything.
#[derive(Clone, Default)]
pub struct RemoteAccess(Arc<Mutex<AccessTable>>);

#[derive(Default)]
struct AccessTable {
    clusters: BTreeMap<String, (u64, Access)>,
    last_version: u64,
}

impl RemoteAccess {
    /// Access to a cluster, with a number that changes with its credentials. `None` if the cluster is not known.
    pub fn get(&self, cluster: &str) -> Option<(u64, Access)> {
        self.0.lock().clusters.get(cluster).cloned()
    }

    pub(super) fn put(&self, cluster: &str, access: Access) {
        let mut table = self.0.lock();
        table.last_version += 1;
        let version = table.last_version;
        table.clusters.insert(cluster.to_owned(), (version, access));
    }

    pub(super) fn remove(&self, cluster: &str) {
        self.0.lock().clusters.remove(cluster);
    }
}

impl fmt::Debug for RemoteAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().clusters.keys()).finish()
    }
}
