//! Which Gateways need a write: a pure account of what is wanted, what was applied and what was observed since.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::object::{GatewayName, ObjectName};
use super::observed::{Observation, ObservedObject};
use super::{FIRST_WAIT, LONGEST_WAIT};
use crate::backoff::jittered;

/// How often changes of others are undone within `RESTORE_PERIOD`: another controller may insist on its own.
const RESTORES: u32 = 20;
const RESTORE_PERIOD: Duration = Duration::from_secs(600);

/// The objects of one Gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatewayDeployment {
    pub objects: Arc<Vec<Value>>,
    /// Hash of the objects.
    pub content: u64,
    /// Whether the Gateway has to be taken over from an older controller.
    pub takes_over: bool,
    /// Whether the user named the ServiceAccount: if it exists, it is used as it is.
    pub account_is_given: bool,
}

/// Gateways by name, with what is wanted for them.
pub type WantedDeployments = BTreeMap<GatewayName, Arc<GatewayDeployment>>;

/// A Gateway to write.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) gateway: GatewayName,
    pub(super) uid: String,
    pub(super) deployment: Arc<GatewayDeployment>,
    pub(super) stale: Vec<StaleObject>,
}

/// An object that the Gateway no longer needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StaleObject {
    pub(super) name: ObjectName,
    pub(super) uid: String,
}

/// An object as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AppliedObject {
    pub(super) version: u64,
    pub(super) fields: Option<u64>,
}

/// The result of writing one Gateway.
#[derive(Clone, Debug, Default)]
pub(super) struct DeploymentOutcome {
    pub(super) uid: String,
    pub(super) content: u64,
    pub(super) is_claimed: bool,
    pub(super) objects: BTreeMap<ObjectName, AppliedObject>,
    /// Objects that were deleted.
    pub(super) removed: Vec<ObjectName>,
    /// Objects that could not be written, with the cause.
    pub(super) problems: Vec<String>,
}

impl DeploymentOutcome {
    pub(super) fn fail(&mut self, problem: String) {
        self.problems.push(problem);
    }
}

/// Everything that is known of managed gateways.
#[derive(Default)]
pub(super) struct DeploymentState {
    wanted: WantedDeployments,
    /// UIDs of existing Gateways.
    uids: BTreeMap<GatewayName, String>,
    observed: BTreeMap<ObjectName, ObservedObject>,
    applied: BTreeMap<GatewayName, DeploymentOutcome>,
    queue: BTreeSet<GatewayName>,
    in_flight: BTreeSet<GatewayName>,
    /// Objects deleted while their Gateway is written, with their version.
    deleted_in_flight: BTreeMap<ObjectName, u64>,
    retries: BTreeMap<GatewayName, (u32, Instant)>,
    restores: BTreeMap<GatewayName, (u32, Instant)>,
}

impl DeploymentState {
    /// Replaces what is wanted.
    pub(super) fn set_wanted(&mut self, wanted: &WantedDeployments) {
        self.wanted = wanted.clone();
        for (name, deployment) in wanted {
            if let Some(applied) = self.applied.get_mut(name).filter(|_| !deployment.takes_over) {
                applied.is_claimed = false;
            }
        }
        self.applied.retain(|name, _| wanted.contains_key(name));
        self.retries.retain(|name, _| wanted.contains_key(name));
        self.restores.retain(|name, _| wanted.contains_key(name));
        let names: Vec<GatewayName> = wanted.keys().cloned().collect();
        names.into_iter().for_each(|name| self.consider(name));
    }

    /// Returns the names of Gateways whose problems changed.
    pub(super) fn observe(&mut self, observation: Observation) -> BTreeSet<GatewayName> {
        let mut reported = BTreeSet::new();
        match observation {
            Observation::Gateway(name, Some(uid)) => {
                self.uids.insert(name.clone(), uid);
                self.consider(name);
            }
            Observation::Gateway(name, None) => drop(self.uids.remove(&name)),
            Observation::GatewaysListed(names) => self.uids.retain(|name, _| names.contains(name)),
            Observation::Object(name, object) => {
                let gateway = object.gateway.clone();
                self.observed.insert(name.clone(), object);
                if !self.is_intact(&gateway, &name) {
                    reported.extend(self.restore(gateway));
                } else if self.has_stale(&gateway) {
                    self.consider(gateway);
                }
            }
            Observation::Deleted(name, gateway, version) => reported.extend(self.deleted(&name, gateway, version)),
            Observation::Listed(kind, names) => {
                let is_missing =
                    |(name, _): &(&ObjectName, &ObservedObject)| name.kind == kind && !names.contains(name);
                let missing = self.observed.iter().filter(is_missing);
                let missing: Vec<_> = missing.map(|(name, object)| (name.clone(), object.gateway.clone())).collect();
                let lost = missing.into_iter().filter_map(|(name, gateway)| self.deleted(&name, gateway, u64::MAX));
                reported.extend(lost);
            }
        }
        reported
    }

    fn deleted(&mut self, name: &ObjectName, gateway: GatewayName, version: u64) -> Option<GatewayName> {
        self.observed.remove(name);
        if self.in_flight.contains(&gateway) {
            self.deleted_in_flight.insert(name.clone(), version);
            return None;
        }
        let applied = self.applied.get_mut(&gateway);
        let written = applied.and_then(|applied| applied.objects.get(name).copied());
        if written.is_some_and(|written| version > written.version) {
            return self.restore(gateway);
        }
        if self.retries.contains_key(&gateway) {
            // It may have been in the way.
            self.retries.remove(&gateway);
            self.queue.insert(gateway);
        }
        None
    }

    /// Whether an object that was written still has our fields.
    fn is_intact(&self, gateway: &GatewayName, name: &ObjectName) -> bool {
        let written = self.applied.get(gateway).and_then(|applied| applied.objects.get(name));
        match (written, self.observed.get(name)) {
            (Some(written), Some(seen)) => seen.version <= written.version || seen.fields == written.fields,
            _ => true,
        }
    }

    /// Queues a Gateway whose objects another writer changed. If that happens again and again, it is a problem, and the
    /// Gateway is returned.
    fn restore(&mut self, gateway: GatewayName) -> Option<GatewayName> {
        if self.in_flight.contains(&gateway) {
            return None;
        }
        let (times, since) = self.restores.entry(gateway.clone()).or_insert_with(|| (0, Instant::now()));
        if since.elapsed() > RESTORE_PERIOD {
            (*times, *since) = (0, Instant::now());
        }
        *times = times.saturating_add(1);
        if *times <= RESTORES {
            self.queue.insert(gateway);
            return None;
        }
        if *times > RESTORES + 1 {
            return None;
        }
        self.retries.insert(gateway.clone(), (1, *since + RESTORE_PERIOD));
        let applied = self.applied.get_mut(&gateway)?;
        applied.fail("other writers change its objects again and again; leaving them for ten minutes".to_owned());
        Some(gateway)
    }

    /// Queues a Gateway if what is wanted was not applied.
    fn consider(&mut self, gateway: GatewayName) {
        let (Some(wanted), Some(uid)) = (self.wanted.get(&gateway), self.uids.get(&gateway)) else { return };
        let applied = self.applied.get(&gateway);
        let Some(applied) = applied.filter(|applied| applied.content == wanted.content && applied.uid == *uid) else {
            self.queue.insert(gateway);
            return;
        };
        // A failed write is tried again later.
        let may_write = !self.retries.contains_key(&gateway);
        if may_write && ((wanted.takes_over && !applied.is_claimed) || self.has_stale(&gateway)) {
            self.queue.insert(gateway);
        }
    }

    fn has_stale(&self, gateway: &GatewayName) -> bool {
        let (Some(wanted), Some(uid)) = (self.wanted.get(gateway), self.uids.get(gateway)) else { return false };
        !self.stale(gateway, wanted, uid).is_empty()
    }

    /// Objects of the Gateway that are removed because they are not wanted.
    fn stale(&self, gateway: &GatewayName, wanted: &GatewayDeployment, uid: &str) -> Vec<StaleObject> {
        let names: BTreeSet<ObjectName> = wanted.objects.iter().filter_map(ObjectName::of).collect();
        let objects = self.observed.iter().filter(|(name, object)| {
            name.kind.is_removed()
                && object.gateway == *gateway
                && object.owner.as_deref() == Some(uid)
                && !names.contains(*name)
        });
        objects.map(|(name, object)| StaleObject { name: name.clone(), uid: object.uid.clone() }).collect()
    }

    /// The next Gateway to write. Each is written by one task at a time.
    pub(super) fn next(&mut self) -> Option<Task> {
        let gateway = self.queue.iter().find(|name| !self.in_flight.contains(*name)).cloned()?;
        self.queue.remove(&gateway);
        let (Some(deployment), Some(uid)) = (self.wanted.get(&gateway).cloned(), self.uids.get(&gateway).cloned())
        else {
            return self.next();
        };
        let stale = self.stale(&gateway, &deployment, &uid);
        self.in_flight.insert(gateway.clone());
        Some(Task { gateway, uid, deployment, stale })
    }

    /// Records a written Gateway, and queues it again if something changed meanwhile.
    pub(super) fn done(&mut self, gateway: &GatewayName, outcome: DeploymentOutcome) {
        self.in_flight.remove(gateway);
        if !self.wanted.contains_key(gateway) {
            return;
        }
        let deleted = |(name, written): (&ObjectName, &AppliedObject)| {
            // Without a version it was missing in a list, which may be older than the write.
            self.deleted_in_flight.get(name).is_some_and(|at| *at != u64::MAX && *at > written.version)
        };
        let is_deleted = outcome.objects.iter().any(deleted);
        for name in outcome.objects.keys() {
            self.deleted_in_flight.remove(name);
        }
        for name in &outcome.removed {
            self.observed.remove(name);
        }
        if outcome.problems.is_empty() {
            self.retries.remove(gateway);
        } else {
            let (failures, _) = self.retries.get(gateway).copied().unwrap_or((0, Instant::now()));
            let wait = FIRST_WAIT.saturating_mul(1 << failures.min(16)).min(LONGEST_WAIT);
            self.retries.insert(gateway.clone(), (failures.saturating_add(1), Instant::now() + jittered(wait)));
        }
        let names: Vec<ObjectName> = outcome.objects.keys().cloned().collect();
        self.applied.insert(gateway.clone(), outcome);
        if is_deleted || names.iter().any(|name| !self.is_intact(gateway, name)) {
            // Its problems are published after every write.
            let _ = self.restore(gateway.clone());
        }
        self.consider(gateway.clone());
    }

    /// When the next failed Gateway is to be tried again.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        let waiting =
            self.retries.iter().filter(|(name, _)| !self.queue.contains(*name) && !self.in_flight.contains(*name));
        waiting.map(|(_, (_, at))| *at).min()
    }

    /// Queues the Gateways whose time to retry has come.
    pub(super) fn retry_due(&mut self) {
        let now = Instant::now();
        let due = self.retries.iter().filter(|(_, (_, at))| *at <= now).map(|(name, _)| name.clone());
        self.queue.extend(due.collect::<Vec<_>>());
    }

    /// Problems of a Gateway; `None` if there are none.
    pub(super) fn problems_of(&self, gateway: &GatewayName) -> Option<&Vec<String>> {
        self.applied.get(gateway).map(|applied| &applied.problems).filter(|problems| !problems.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use serde_json::json;

    use super::{AppliedObject, DeploymentOutcome, DeploymentState, GatewayDeployment, WantedDeployments};
    use crate::gateways::object::{DeployedKind, GatewayName, ObjectName};
    use crate::gateways::observed::{Observation, ObservedObject};

    fn front() -> GatewayName {
        GatewayName { namespace: "shop".to_owned(), name: "front".to_owned() }
    }

    fn object(kind: DeployedKind) -> ObjectName {
        ObjectName { kind, namespace: "shop".to_owned(), name: "front-istio".to_owned() }
    }

    fn deployment(content: u64, kinds: &[&str]) -> Arc<GatewayDeployment> {
        let object = |kind: &&str| json!({"kind": kind, "metadata": {"namespace": "shop", "name": "front-istio"}});
        let objects = Arc::new(kinds.iter().map(object).collect());
        Arc::new(GatewayDeployment { objects, content, ..GatewayDeployment::default() })
    }

    fn wanted(content: u64) -> WantedDeployments {
        [(front(), deployment(content, &["Service"]))].into()
    }

    fn seen(version: u64, fields: u64) -> ObservedObject {
        let (uid, owner) = ("object".to_owned(), Some("1".to_owned()));
        ObservedObject { gateway: front(), uid, owner, version, fields: Some(fields) }
    }

    fn written(content: u64, version: u64) -> DeploymentOutcome {
        let applied = AppliedObject { version, fields: Some(7) };
        let objects = [(object(DeployedKind::Service), applied)].into();
        DeploymentOutcome { uid: "1".to_owned(), content, objects, ..DeploymentOutcome::default() }
    }

    /// A state in which the Gateway was written once, in version 10.
    fn applied() -> DeploymentState {
        let mut state = DeploymentState::default();
        state.set_wanted(&wanted(1));
        assert!(state.next().is_none(), "the Gateway was not seen yet");
        state.observe(Observation::Gateway(front(), Some("1".to_owned())));
        assert_eq!(state.next().map(|task| task.uid).as_deref(), Some("1"));
        state.done(&front(), written(1, 10));
        assert!(state.next().is_none());
        state
    }

    #[test]
    fn only_changed_gateways_are_written() {
        let mut state = applied();
        state.set_wanted(&wanted(1));
        assert!(state.next().is_none());
        state.set_wanted(&wanted(2));
        assert!(state.next().is_some());
        assert!(state.next().is_none(), "it is being written");
        state.set_wanted(&wanted(3));
        assert!(state.next().is_none(), "one task at a time");
        state.done(&front(), written(2, 11));
        assert!(state.next().is_some(), "it changed meanwhile");
    }

    #[test]
    fn recreated_gateway_is_written_again() {
        let mut state = applied();
        state.observe(Observation::Gateway(front(), Some("2".to_owned())));
        assert_eq!(state.next().map(|task| task.uid).as_deref(), Some("2"));
    }

    #[test]
    fn our_own_writes_and_those_to_other_fields_are_ignored() {
        let mut state = applied();
        for (version, fields) in [(9, 1), (10, 7), (12, 7)] {
            state.observe(Observation::Object(object(DeployedKind::Service), seen(version, fields)));
            assert!(state.next().is_none(), "version {version}");
        }
        state.observe(Observation::Object(object(DeployedKind::Service), seen(13, 6)));
        assert!(state.next().is_some(), "a field of ours was changed");
    }

    #[test]
    fn deleted_objects_are_written_again() {
        let mut state = applied();
        state.observe(Observation::Deleted(object(DeployedKind::Service), front(), 9));
        assert!(state.next().is_none(), "it was written after that");
        state.observe(Observation::Deleted(object(DeployedKind::Service), front(), 11));
        assert!(state.next().is_some());
        state.observe(Observation::Deleted(object(DeployedKind::Service), front(), 13));
        state.done(&front(), written(1, 12));
        assert!(state.next().is_some(), "it was deleted meanwhile");
    }

    #[test]
    fn objects_missing_in_a_list_are_written_again() {
        let mut state = applied();
        state.observe(Observation::Object(object(DeployedKind::Service), seen(10, 7)));
        state.observe(Observation::Listed(DeployedKind::Deployment, BTreeSet::new()));
        assert!(state.next().is_none(), "another kind");
        state.observe(Observation::Listed(DeployedKind::Service, BTreeSet::new()));
        assert!(state.next().is_some());
    }

    #[test]
    fn two_controllers_do_not_write_without_end() {
        let mut state = applied();
        let mut writes = 0;
        for round in 0..100 {
            state.observe(Observation::Object(object(DeployedKind::Service), seen(11 + 2 * round, 6)));
            if state.next().is_some() {
                writes += 1;
                state.done(&front(), written(1, 12 + 2 * round));
            }
        }
        assert_eq!(writes, 20);
        assert!(state.problems_of(&front()).is_some_and(|all| all[0].contains("again and again")));
    }

    #[test]
    fn failed_writes_are_retried_and_reported() {
        let mut state = applied();
        state.set_wanted(&wanted(2));
        assert!(state.next().is_some());
        let mut outcome = written(2, 11);
        outcome.fail("forbidden".to_owned());
        state.done(&front(), outcome);
        assert!(state.next().is_none(), "it waits");
        assert!(state.next_retry().is_some());
        assert_eq!(state.problems_of(&front()), Some(&vec!["forbidden".to_owned()]));
        state.observe(Observation::Deleted(object(DeployedKind::Deployment), front(), 11));
        assert!(state.next().is_some(), "the object in the way is gone");
        state.done(&front(), written(2, 12));
        assert!(state.problems_of(&front()).is_none() && state.next_retry().is_none());
    }

    #[test]
    fn autoscaler_that_is_no_longer_wanted_is_deleted() {
        let mut state = applied();
        state.observe(Observation::Object(object(DeployedKind::Deployment), seen(10, 7)));
        assert!(state.next().is_none(), "a Deployment is kept");
        state.observe(Observation::Object(object(DeployedKind::Autoscaler), seen(10, 7)));
        let task = state.next().expect("a task");
        assert_eq!(task.stale.len(), 1);
        let removed = vec![object(DeployedKind::Autoscaler)];
        state.done(&front(), DeploymentOutcome { removed, ..written(1, 10) });
        assert!(state.next().is_none());
        let of_others = ObservedObject { owner: Some("2".to_owned()), ..seen(10, 7) };
        state.observe(Observation::Object(object(DeployedKind::Autoscaler), of_others));
        assert!(state.next().is_none());
    }
}
