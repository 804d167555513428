//! Many services through few connections: the list of names wakes us when anything is registered, the list of
//! checks that do not pass when anyone's health changes. Both together say which services to read again;
//! nodes tell which of their services changed by the index that each bears.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;
use model::names::Str;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::agents::{Agents, CatalogQuery, IndexProgress, IndexStep, QueryResponse, escaped};
use super::options::ConsulOptions;
use super::schema::{CatalogServices, ConsulInstances, HealthCheck, NodeName, NodeServices};
use super::{CatalogEvent, instances_of};
use crate::backoff::Backoff;
use crate::registry::diff::MOST_HELD;
use crate::registry::poll_interval::PollInterval;

/// Connections used at the same time to read what changed.
const AT_ONCE: usize = 16;
const CHECKS: &str = "/v1/health/state/any";
const NODES: &str = "/v1/catalog/nodes";

/// The names there are now, with their tags.
type TagsByService = Arc<BTreeMap<Str, Vec<String>>>;
/// Checks by node and id.
type Checks = BTreeMap<(String, String), HealthCheck>;

/// The task that follows the lists; it ends with this.
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

    /// Called for every answer about names, changed or not: the answer itself says that something was registered.
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
        let question = CatalogQuery { path: CHECKS, parameters: &parameters, index: progress.index };
        let event = match agents.ask::<Vec<HealthCheck>>(question).await {
            Ok(answer) => {
                backoff.reset();
                if progress.step(&answer) == IndexStep::Anew {
                    continue;
                }
                let by_id = answer.value.into_iter().map(|check| ((check.node.clone(), check.check_id.clone()), check));
                failing.send_replace(Some(by_id.collect()));
                CatalogEvent::Same(CHECKS.into())
            }
            Err(reason) => {
                progress = IndexProgress::default();
                CatalogEvent::Unread(CHECKS.into(), reason)
            }
        };
        let is_unread = matches!(event, CatalogEvent::Unread(..));
        if events.send(event).await.is_err() {
            return;
        }
        if is_unread {
            backoff.wait().await;
        }
    }
}

/// Finds out what changed and reads it.
struct CatalogReader {
    agents: Arc<Agents>,
    events: mpsc::Sender<CatalogEvent>,
    options: ConsulOptions,
    names: TagsByService,
    /// Of every node: its instances by id, each with its service and the index of its last change.
    by_node: BTreeMap<String, BTreeMap<String, (Str, u64)>>,
    checks: Checks,
    /// Services to read.
    due: BTreeSet<Str>,
    /// ConsulInstances, by node and id, of services that were read after the last look at nodes. One may have come between
    /// the two and be gone before the next look, which then finds no difference.
    read: BTreeMap<Str, Vec<(String, String)>>,
    /// Something was registered somewhere.
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
            self.renamed(now);
            let failing = checks.borrow_and_update().clone();
            self.rechecked(failing.unwrap_or_default());
            if self.work().await.is_err() {
                return;
            }
            if self.due.is_empty() && !self.sweep {
                backoff.reset();
            }
        }
    }

    fn renamed(&mut self, now: TagsByService) {
        if Arc::ptr_eq(&self.names, &now) {
            return;
        }
        self.sweep = true;
        let is_new = |(name, tags): &(&Str, &Vec<String>)| self.names.get(*name) != Some(*tags);
        self.due.extend(now.iter().filter(is_new).map(|(name, _)| name.clone()));
        self.names = now;
    }

    /// A check that appeared, went or changed makes its service due; one of a node, all services there.
    fn rechecked(&mut self, now: Checks) {
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

    async fn work(&mut self) -> Result<(), ()> {
        if self.sweep {
            match self.swept().await {
                Ok(()) => {
                    self.sweep = false;
                    self.tell(CatalogEvent::Same(NODES.into())).await?;
                }
                Err(reason) => self.tell(CatalogEvent::Unread(NODES.into(), reason)).await?,
            }
        }
        let due: Vec<Str> = std::mem::take(&mut self.due).into_iter().filter(|n| self.names.contains_key(n)).collect();
        let (agents, options) = (&self.agents, &self.options);
        let mut reading = stream::iter(due)
            .map(async |name| {
                let (path, parameters) = instances_of(&name, options);
                let question = CatalogQuery { path: &path, parameters: &parameters, index: 0 };
                let answer: Result<QueryResponse<ConsulInstances>, String> = agents.ask(question).await;
                (name, answer)
            })
            .buffer_unordered(AT_ONCE);
        let mut unread = BTreeSet::new();
        while let Some((name, answer)) = reading.next().await {
            let event = match answer {
                Ok(answer) => {
                    let ids = answer.value.0.iter().map(|i| (i.node.node.clone(), i.service.id.clone()));
                    self.read.insert(name.clone(), ids.collect());
                    CatalogEvent::Instances(name, answer)
                }
                Err(reason) => {
                    unread.insert(name.clone());
                    CatalogEvent::Unread(name, reason)
                }
            };
            self.events.send(event).await.map_err(|_| ())?;
        }
        drop(reading);
        self.due.extend(unread);
        Ok(())
    }

    async fn tell(&self, event: CatalogEvent) -> Result<(), ()> {
        self.events.send(event).await.map_err(|_| ())
    }

    /// Makes due every service of which an instance came, went or changed since the last time.
    async fn swept(&mut self) -> Result<(), String> {
        let question = CatalogQuery { path: NODES, parameters: "", index: 0 };
        let nodes: QueryResponse<Vec<NodeName>> = self.agents.ask(question).await?;
        // Where nodes outnumber services it is cheaper to read the services.
        if nodes.value.len() > self.names.len() {
            self.due.extend(self.names.keys().cloned());
            self.read.clear();
            return Ok(());
        }
        let agents = &self.agents;
        let mut reading = stream::iter(nodes.value)
            .map(async |NodeName { node }| {
                let path = format!("/v1/catalog/node-services/{}", escaped(&node));
                let answer =
                    agents.ask::<Option<NodeServices>>(CatalogQuery { path: &path, parameters: "", index: 0 }).await;
                answer.map(|answer| (node, answer.value.unwrap_or_default()))
            })
            .buffer_unordered(AT_ONCE);
        let (mut by_node, mut count) = (BTreeMap::new(), 0);
        while let Some(read) = reading.next().await {
            let (node, NodeServices { services }) = read?;
            count += services.len();
            if count > MOST_HELD {
                return Err(format!("nodes have more than {MOST_HELD} services in all"));
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

/// Services of instances in `one` that are not the same in `other`.
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
