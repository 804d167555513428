//! The tree of one layout: which nodes are read next, and what their content means. Pure; `source` sends the requests.

use std::collections::{BTreeMap, BTreeSet};

use super::curator;
use super::options::ZooKeeperLayout;
use super::protocol::{NodeChange, ZooRequest, ZooUpdate};
use crate::registry::instances::{InstanceTable, dubbo};

/// What is known of the nodes in one session.
#[derive(Debug)]
pub(super) struct ServiceTree {
    layout: ZooKeeperLayout,
    /// The folder of all services.
    root: String,
    /// Folders of instances, with the names of their children.
    folders: BTreeMap<String, BTreeSet<String>>,
}

impl ServiceTree {
    pub(super) fn new(layout: ZooKeeperLayout, root: &str) -> ServiceTree {
        ServiceTree { layout, root: root.to_owned(), folders: BTreeMap::new() }
    }

    pub(super) fn first_request(&self) -> ZooRequest {
        ZooRequest::Children(self.root.clone())
    }

    /// Nodes that are watched.
    pub(super) fn watches(&self) -> usize {
        let of_instances = match self.layout {
            ZooKeeperLayout::Curator => self.folders.values().map(BTreeSet::len).sum(),
            ZooKeeperLayout::Dubbo => 0,
        };
        1 + self.folders.len() + of_instances
    }

    /// Takes an update in. Returns the requests that follow from it.
    pub(super) fn take(&mut self, update: ZooUpdate, table: &mut InstanceTable) -> Vec<ZooRequest> {
        match update {
            ZooUpdate::Children { path, names } if path == self.root => self.take_services(names, table),
            ZooUpdate::Children { path, names } => self.take_instances(path, names, table),
            ZooUpdate::Data { path, data } => {
                match (data, path.rsplit_once('/').and_then(|(folder, _)| folder.rsplit_once('/'))) {
                    (Some(data), Some((_, service))) => table.put(&path, curator::instances(service, &data)),
                    _ => table.remove(&path),
                }
                Vec::new()
            }
            ZooUpdate::Exists { path, is_found } => Vec::from_iter(is_found.then_some(ZooRequest::Children(path))),
            ZooUpdate::Forbidden { path } => {
                table.put(&path, Err("the user may not read it".to_owned()));
                Vec::new()
            }
            ZooUpdate::Changed { path, change } => self.changed(path, change),
        }
    }

    fn changed(&self, path: String, change: NodeChange) -> Vec<ZooRequest> {
        let is_folder = path == self.root || self.folders.contains_key(&path);
        match change {
            // The answer of a deleted folder says so, and sets a watch for its return.
            NodeChange::Created | NodeChange::Deleted | NodeChange::Children if is_folder => {
                vec![ZooRequest::Children(path)]
            }
            NodeChange::Data if !is_folder => vec![ZooRequest::Data(path)],
            // The folder of a deleted instance changed too.
            _ => Vec::new(),
        }
    }

    fn take_services(&mut self, names: Option<Vec<String>>, table: &mut InstanceTable) -> Vec<ZooRequest> {
        let root = self.root.clone();
        if names.is_some() {
            table.remove(&root);
        } else {
            table.put(&root, Err("it does not exist".to_owned()));
        }
        let is_missing = names.is_none();
        let listed: BTreeSet<String> = names.into_iter().flatten().filter_map(|name| self.folder(&name)).collect();
        let gone: Vec<String> = self.folders.keys().filter(|folder| !listed.contains(*folder)).cloned().collect();
        for folder in gone {
            self.folders.remove(&folder);
            remove_below(&folder, table);
        }
        let mut requests = Vec::from_iter(is_missing.then_some(ZooRequest::Exists(root)));
        for folder in listed {
            if !self.folders.contains_key(&folder) {
                self.folders.insert(folder.clone(), BTreeSet::new());
                requests.push(ZooRequest::Children(folder));
            }
        }
        requests
    }

    /// The folder with the instances of a child of the root; `None` for children that are no services.
    fn folder(&self, name: &str) -> Option<String> {
        match self.layout {
            ZooKeeperLayout::Curator => Some(format!("{}/{name}", self.root)),
            ZooKeeperLayout::Dubbo if dubbo::OTHER_FOLDERS.contains(&name) => None,
            ZooKeeperLayout::Dubbo => Some(format!("{}/{name}/{}", self.root, dubbo::PROVIDERS)),
        }
    }

    fn take_instances(
        &mut self,
        folder: String,
        names: Option<Vec<String>>,
        table: &mut InstanceTable,
    ) -> Vec<ZooRequest> {
        // The root may have lost the folder meanwhile.
        let Some(known) = self.folders.get_mut(&folder) else { return Vec::new() };
        table.remove(&folder);
        let is_missing = names.is_none();
        let listed: BTreeSet<String> = names.into_iter().flatten().collect();
        for gone in known.difference(&listed) {
            table.remove(&format!("{folder}/{gone}"));
        }
        let new = listed.difference(known).map(|name| format!("{folder}/{name}"));
        let mut requests = Vec::new();
        match self.layout {
            ZooKeeperLayout::Curator => requests.extend(new.map(ZooRequest::Data)),
            ZooKeeperLayout::Dubbo => {
                let interface = folder.rsplit('/').nth(1).unwrap_or_default();
                for name in listed.difference(known) {
                    let provider = dubbo::provider(interface, name).map(|provider| vec![provider]);
                    table.put(&format!("{folder}/{name}"), provider);
                }
            }
        }
        *known = listed;
        requests.extend(is_missing.then_some(ZooRequest::Exists(folder)));
        requests
    }
}

fn remove_below(folder: &str, table: &mut InstanceTable) {
    table.remove(folder);
    for key in table.keys_below(&format!("{folder}/")) {
        table.remove(&key);
    }
}
