//! Watches many services over few connections. A blocking query for the service names returns when an instance is
//! registered or removed, one for the failing checks when the health of an instance changes. The services to read again
//! follow from the changed checks and from the `ModifyIndex` of the services on each node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;
use model::names::Str;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::agents::{Agents, CatalogQuery, IndexProgress, IndexStep, QueryResponse, escaped};
use super::catalog_event::{CatalogEvent, instances_query};
use super::error::ConsulError;
use super::options::ConsulOptions;
use super::schema::{CatalogServices, ConsulInstances, HealthCheck, NodeName, NodeServices};
use crate::backoff::Backoff;
use crate::registry::diff::MOST_HELD;
use crate::registry::poll_interval::PollInterval;

/// Concurrent queries for changed services and nodes.
const AT_ONCE: usize = 16;
const CHECKS: &str = "/v1/health/state/any";
const NODES: &str = "/v1/catalog/nodes";

/// Current services with their tags.
type TagsByService = Arc<BTreeMap<Str, Vec<String>>>;
/// Checks by node and id.
type Checks = BTreeMap<(String, String), HealthCheck>;

/// The watch of the whole catalog. Dropping it stops its tasks.
pub(super) struct CatalogWatch {
    names: watch::Sender<TagsByService>,
    _tasks: JoinSet<()>,
}

impl CatalogWatch {
    pub(super) fn start(
        agents: Arc<Agents>,
        events: mpsc::Sender<CatalogEvent>,
        options: &ConsulOptions,
    ) -> CatalogWatch {
        let (names, wanted) = watch::channel(TagsByService::default());
        let (failing, checks) = watch::channel(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(watch_checks(agents.clone(), events.clone(), failing, options.clone()));
        let reader = CatalogReader {
            agents,
            events,
            options: options.clone(),
            names: TagsByService::default(),
            by_node: BTreeMap::new(),
            checks: Checks::new(),
            due: BTreeSet::new(),
            read: BTreeMap::new(),
            sweep: true,
        };
        tasks.spawn(reader.run(wanted, checks));
        CatalogWatch { names, _tasks: tasks }
    }

    /// Takes each response about service names. Even one with equal names means that instances were registered.
    pub(super) fn follow(&self, names: CatalogServices, selected: &BTreeSet<Str>) {
        let known = selected.iter().map(|name| (name.clone(), names.get(&**name).cloned().unwrap_or_default()));
        self.names.send_replace(Arc::new(known.collect()));
    }
}

async fn watch_checks(
    agents: Arc<Agents>,
    events: mpsc::Sender<CatalogEvent>,
    failing: watch::Sender<Option<Checks>>,
    options: ConsulOptions,
) {
    let parameters = format!("&filter={}", escaped("Status != \"passing\""));
    let (mut progress, mut backoff, mut poll) =
        (IndexProgress::default(), Backoff::default(), PollInterval::new(options.interval.0));
    loop {
        poll.ready().await;
        let query = CatalogQuery { path: CHECKS, parameters: &parameters, index: progress.index };
        let event = match agents.query::<Vec<HealthCheck>>(query).await {
            Ok(response) => {
                backoff.reset();
                if progress.step(&response) == IndexStep::Restart {
                    continue;
                }
                let by_id =
                    response.value.into_iter().map(|check| ((check.node.clone(), check.check_id.clone()), check));
                failing.send_replace(Some(by_id.collect()));
                CatalogEvent::Unchanged(CHECKS.into())
            }
            Err(error) => {
                progress = IndexProgress::default();
                CatalogEvent::Failed(CHECKS.into(), error)
            }
        };
        let has_failed = matches!(event, CatalogEvent::Failed(..));
        if events.send(event).await.is_err() {
            return;
        }
        if has_failed {
            backoff.wait().await;
        }
    }
}

/// Determines the changed services and reads their instances.
struct CatalogReader {
    agents: Arc<Agents>,
    events: mpsc::Sender<CatalogEvent>,
    options: ConsulOptions,
    names: TagsByService,
    /// Instances of each node by id, with their service and `ModifyIndex`.
    by_node: BTreeMap<String, BTreeMap<String, (Str, u64)>>,
    checks: Checks,
    /// Services to read.
    due: BTreeSet<Str>,
    /// Instances, by node and id, of services read after the last sweep of the nodes. One that was registered after the
    /// sweep and is removed before the next one would be missed by comparing sweeps.
    read: BTreeMap<Str, Vec<(String, String)>>,
    /// Whether the nodes must be compared with the last sweep.
    sweep: bool,
}

impl CatalogReader {
    async fn run(mut self, mut names: watch::Receiver<TagsByService>, mut checks: watch::Receiver<Option<Checks>>) {
        let (mut backoff, mut poll) = (Backoff::default(), PollInterval::new(self.options.interval.0));
        loop {
            let is_idle = self.due.is_empty() && !self.sweep;
            tokio::select! {
                changed = names.changed() => if changed.is_err() { return },
                changed = checks.changed() => if changed.is_err() { return },
                () = backoff.wait(), if !is_idle => {}
            }
            poll.ready().await;
            let now = names.borrow_and_update().clone();
            self.update_names(now);
            let failing = checks.borrow_and_update().clone();
            self.update_checks(failing.unwrap_or_default());
            if self.read_due().await.is_err() {
                return;
            }
            if self.due.is_empty() && !self.sweep {
                backoff.reset();
            }
        }
    }

    fn update_names(&mut self, now: TagsByService) {
        if Arc::ptr_eq(&self.names, &now) {
            return;
        }
        self.sweep = true;
        let is_new = |(name, tags): &(&Str, &Vec<String>)| self.names.get(*name) != Some(*tags);
        self.due.extend(now.iter().filter(is_new).map(|(name, _)| name.clone()));
        self.names = now;
    }

    /// Marks the services of added, removed and changed checks as due; for a check of a node, all services on it.
    fn update_checks(&mut self, now: Checks) {
        let before = std::mem::replace(&mut self.checks, now);
        let changed = self.checks.iter().filter(|(id, check)| before.get(*id) != Some(*check)).map(|(_, check)| check);
        let gone = before.iter().filter(|(id, _)| !self.checks.contains_key(*id)).map(|(_, check)| check);
        for check in changed.chain(gone) {
            if check.service_id.is_empty() {
                let there = self.by_node.get(&check.node).into_iter().flat_map(|ids| ids.values());
                self.due.extend(there.map(|(name, _)| name.clone()));
            } else {
                self.due.insert(check.service_name.as_str().into());
            }
        }
    }

    async fn read_due(&mut self) -> Result<(), ()> {
        if self.sweep {
            match self.sweep_nodes().await {
                Ok(()) => {
                    self.sweep = false;
                    self.publish(CatalogEvent::Unchanged(NODES.into())).await?;
                }
                Err(error) => self.publish(CatalogEvent::Failed(NODES.into(), error)).await?,
            }
        }
        let due: Vec<Str> = std::mem::take(&mut self.due).into_iter().filter(|n| self.names.contains_key(n)).collect();
        let (agents, options) = (&self.agents, &self.options);
        let mut reading = stream::iter(due)
            .map(async |name| {
                let (path, parameters) = instances_query(&name, options);
                let query = CatalogQuery { path: &path, parameters: &parameters, index: 0 };
                let response: Result<QueryResponse<ConsulInstances>, ConsulError> = agents.query(query).await;
                (name, response)
            })
            .buffer_unordered(AT_ONCE);
        let mut failed = BTreeSet::new();
        while let Some((name, response)) = reading.next().await {
            let event = match response {
                Ok(response) => {
                    let ids = response.value.0.iter().map(|i| (i.node.node.clone(), i.service.id.clone()));
                    self.read.insert(name.clone(), ids.collect());
                    CatalogEvent::Instances(name, response)
                }
                Err(error) => {
                    failed.insert(name.clone());
                    CatalogEvent::Failed(name, error)
                }
            };
            self.events.send(event).await.map_err(|_| ())?;
        }
        drop(reading);
        self.due.extend(failed);
        Ok(())
    }

    async fn publish(&self, event: CatalogEvent) -> Result<(), ()> {
        self.events.send(event).await.map_err(|_| ())
    }

    /// Marks services as due whose instances were added, removed or changed since the last sweep of the nodes.
    async fn sweep_nodes(&mut self) -> Result<(), ConsulError> {
        let query = CatalogQuery { path: NODES, parameters: "", index: 0 };
        let nodes: QueryResponse<Vec<NodeName>> = self.agents.query(query).await?;
        // Reading all services is cheaper than reading a larger number of nodes.
        if nodes.value.len() > self.names.len() {
            self.due.extend(self.names.keys().cloned());
            self.read.clear();
            return Ok(());
        }
        let agents = &self.agents;
        let mut reading = stream::iter(nodes.value)
            .map(async |NodeName { node }| {
                let path = format!("/v1/catalog/node-services/{}", escaped(&node));
                let response =
                    agents.query::<Option<NodeServices>>(CatalogQuery { path: &path, parameters: "", index: 0 }).await;
                response.map(|response| (node, response.value.unwrap_or_default()))
            })
            .buffer_unordered(AT_ONCE);
        let (mut by_node, mut count) = (BTreeMap::new(), 0);
        while let Some(read) = reading.next().await {
            let (node, NodeServices { services }) = read?;
            count += services.len();
            if count > MOST_HELD {
                return Err(ConsulError::TooManyServices(MOST_HELD));
            }
            let ids = services.into_iter().map(|s| (s.id, (Str::from(s.service), s.modify_index)));
            by_node.insert(node, ids.collect::<BTreeMap<_, _>>());
        }
        drop(reading);
        let before = std::mem::replace(&mut self.by_node, by_node);
        differing(&before, &self.by_node, &mut self.due);
        differing(&self.by_node, &before, &mut self.due);
        let is_gone = |(node, id): &(String, String)| self.by_node.get(node).is_none_or(|ids| !ids.contains_key(id));
        let gone = std::mem::take(&mut self.read).into_iter().filter(|(_, ids)| ids.iter().any(is_gone));
        self.due.extend(gone.map(|(name, _)| name));
        Ok(())
    }
}

/// Adds the services of instances in `one` that are missing or different in `other` to `due`.
fn differing(
    one: &BTreeMap<String, BTreeMap<String, (Str, u64)>>,
    other: &BTreeMap<String, BTreeMap<String, (Str, u64)>>,
    due: &mut BTreeSet<Str>,
) {
    for (node, ids) in one {
        let there = other.get(node);
        let changed = ids.iter().filter(|(id, state)| there.and_then(|ids| ids.get(*id)) != Some(*state));
        due.extend(changed.map(|(_, (name, _))| name.clone()));
    }
}
