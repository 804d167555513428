//! Workloads that register themselves: a proxy that names a WorkloadGroup gets a WorkloadEntry for as long as it is
//! connected, and the health that its agent reports is written into the entry. `workload` keeps one entry, `store` writes
//! it, `sweep` deletes what other replicas left.

mod metrics;
mod store;
mod sweep;
mod workload;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use model::change::Batch;
use model::config::{Key, Object, Spec};
use model::proxy::Proxy;
use model::registration::{HEALTH_CHECKS, Registration, service_account};
use model::settings::Knobs;
use model::snapshot::Snapshot;
use parking_lot::Mutex;
use sources::kubernetes::access::Access;
use sources::kubernetes::rate_limit::RateLimit;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

pub(crate) use metrics::RegistrationMetrics;

use store::{EntryStore, MissingNamespace};
use workload::{Health, RegisteredWorkload, WorkloadEvent};

/// Requests to the API server per second, and the size of a burst.
const RATE: f64 = 100.0;
const BURST: i64 = 400;
/// Events of one workload that wait: connections and reports are few.
const QUEUE: usize = 64;

/// Returns the newest snapshot.
type NewestSnapshot = Box<dyn Fn() -> Arc<Snapshot> + Send + Sync>;

/// The namespace and service account that a client has proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProvenAccount<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) account: &'a str,
}

/// What registration is started with.
pub(crate) struct RegistrationStart {
    /// Of Kubernetes.
    pub(crate) api_server: Option<Access>,
    /// Used without Kubernetes. Without both, entries exist in this server only.
    pub(crate) config_api: Option<Access>,
    pub(crate) changes: mpsc::Sender<Batch>,
    /// Returns the newest snapshot.
    pub(crate) snapshot: NewestSnapshot,
    /// The name of this replica.
    pub(crate) controller: String,
    pub(crate) knobs: Knobs,
}

/// Registers workloads. Clones share everything.
#[derive(Clone)]
pub(crate) struct Registrar {
    shared: Arc<Shared>,
}

struct Shared {
    store: EntryStore,
    snapshot: NewestSnapshot,
    controller: String,
    grace: Duration,
    has_groups: bool,
    has_health: bool,
    checks_identity: bool,
    /// Channels to the tasks that keep an entry.
    workloads: Mutex<HashMap<Key, mpsc::Sender<WorkloadEvent>>>,
    metrics: RegistrationMetrics,
    stop: CancellationToken,
}

impl fmt::Debug for Registrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registrar").field("controller", &self.shared.controller).finish_non_exhaustive()
    }
}

/// A stream of a registered workload; it disconnects on drop.
#[derive(Debug)]
pub(crate) struct RegisteredStream {
    number: u64,
    events: mpsc::Sender<WorkloadEvent>,
}

/// Starts registration.
pub(crate) fn start(options: RegistrationStart, stop: &CancellationToken) -> Registrar {
    let knobs = &options.knobs;
    let limited = |access: &Access| access.with_own_rate_limit(RateLimit::of_flags(RATE, BURST));
    let store = match (&options.api_server, &options.config_api) {
        (Some(access), _) => EntryStore::objects(limited(access), MissingNamespace::Deleted),
        (None, Some(access)) => EntryStore::objects(limited(access), MissingNamespace::Made),
        (None, None) => EntryStore::memory(options.changes),
    };
    let is_shared = !matches!(store, EntryStore::Memory(_));
    let shared = Arc::new(Shared {
        store,
        snapshot: options.snapshot,
        controller: options.controller,
        grace: knobs.registration_grace.duration(),
        has_groups: knobs.auto_registration,
        has_health: knobs.workload_health_checks,
        checks_identity: knobs.registration_identity,
        workloads: Mutex::default(),
        metrics: RegistrationMetrics::default(),
        stop: stop.clone(),
    });
    if is_shared && knobs.auto_registration {
        tokio::spawn(sweep::run(Arc::clone(&shared)));
    }
    Registrar { shared }
}

impl Registrar {
    pub(crate) fn metrics(&self) -> &RegistrationMetrics {
        &self.shared.metrics
    }

    /// Registers a connected proxy. `None` if it does not ask for it; an error refuses the stream.
    pub(crate) fn register(
        &self,
        number: u64,
        proxy: &Arc<Proxy>,
        identity: Option<ProvenAccount<'_>>,
        snapshot: &Snapshot,
    ) -> Result<Option<RegisteredStream>, Status> {
        let Some(registration) = Registration::of(proxy) else { return Ok(None) };
        let shared = &self.shared;
        match &registration.group {
            Some(_) if !shared.has_groups => return Ok(None),
            None if !shared.has_health => return Ok(None),
            Some(group) => shared.check(group, proxy, identity, snapshot)?,
            None => match snapshot.objects.get(&registration.entry).and_then(probed_account) {
                Some(account) if shared.is_of(proxy, identity, &account) => {}
                _ => return Ok(None),
            },
        }
        let connected = WorkloadEvent::Connected { number, proxy: Arc::clone(proxy) };
        match shared.notify(&registration, connected) {
            Some(events) => Ok(Some(RegisteredStream { number, events })),
            None => Err(Status::resource_exhausted(format!("too many streams register {}", registration.entry))),
        }
    }
}

impl Shared {
    fn check(
        &self,
        group: &Key,
        proxy: &Proxy,
        identity: Option<ProvenAccount<'_>>,
        snapshot: &Snapshot,
    ) -> Result<(), Status> {
        let Some(found) = snapshot.objects.get(group) else {
            return Err(Status::failed_precondition(format!("could not register the workload: there is no {group}")));
        };
        let account = service_account(found);
        if self.is_of(proxy, identity, &account) {
            return Ok(());
        }
        let expected = if account.is_empty() { "any".to_owned() } else { account.to_string() };
        Err(Status::permission_denied(format!(
            "could not register the workload with {group}: it must prove to be of namespace {} and service account \
             {expected}, with a token or certificate on the TLS port",
            proxy.namespace
        )))
    }

    /// Whether the proxy has proved its namespace and this account; an empty account means any.
    fn is_of(&self, proxy: &Proxy, identity: Option<ProvenAccount<'_>>, account: &str) -> bool {
        let is_own = |proven: ProvenAccount<'_>| {
            proxy.namespace == proven.namespace && (account.is_empty() || proven.account == account)
        };
        !self.checks_identity || identity.is_some_and(is_own)
    }

    /// Sends an event to the task of an entry, which is started if there is none. `None` if too many events wait. The lock is
    /// held until the event is sent, so that the task does not end before it has received it.
    fn notify(
        self: &Arc<Self>,
        registration: &Registration,
        event: WorkloadEvent,
    ) -> Option<mpsc::Sender<WorkloadEvent>> {
        let mut workloads = self.workloads.lock();
        let events = workloads.entry(registration.entry.clone()).or_insert_with(|| {
            let (sender, events) = mpsc::channel(QUEUE);
            tokio::spawn(RegisteredWorkload::new(Arc::clone(self), registration.clone()).run(events));
            sender
        });
        events.try_send(event).is_ok().then(|| events.clone())
    }

    /// Ends the task of an entry, unless an event arrived meanwhile.
    fn forget(&self, key: &Key, events: &mpsc::Receiver<WorkloadEvent>) -> bool {
        let mut workloads = self.workloads.lock();
        let is_idle = events.is_empty();
        if is_idle {
            workloads.remove(key);
        }
        is_idle
    }
}

/// The service account of an entry whose agent reports its health; `None` if it has no such agent.
fn probed_account(entry: &Object) -> Option<String> {
    let Spec::WorkloadEntry(workload) = &entry.spec else { return None };
    let has_checks = entry.meta.annotations.get(HEALTH_CHECKS).is_some_and(|value| **value == *"true");
    has_checks.then(|| workload.open().service_account)
}

impl RegisteredStream {
    /// Reports the workload's health; an error text means that it is not healthy.
    pub(crate) fn report(&self, error: Option<&str>) {
        let health = error.map_or(Health::Healthy, |text| Health::Unhealthy(Health::shortened(text)));
        // A full queue means that many reports wait; the agent reports again when the health changes.
        let _ = self.events.try_send(WorkloadEvent::Health { number: self.number, health });
    }
}

impl Drop for RegisteredStream {
    fn drop(&mut self) {
        let event = WorkloadEvent::Disconnected { number: self.number };
        if let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event) {
            let events = self.events.clone();
            // The end of a stream must not be lost.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { events.send(event).await });
            }
        }
    }
}
