//! Writes the statuses of Gateway API objects and Ingresses to an API server. Only the leader writes (`lease`), only
//! differences are written, and entries of other controllers are kept (`merge`). A status that another writer changed, or
//! that a recreated object lost, is written again (`observed`). Also creates the GatewayClasses.

mod lease;
mod merge;
mod observed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt as _;
use futures_util::stream;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use model::config::{Key, Kind, timestamp};
use model::snapshot::gateway_api::ConvertedConfig;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::backoff::Backoff;
use crate::kubernetes::access::Access;

pub use lease::Election;
pub(crate) use lease::elect;
pub use merge::{Controllers, merged};
use observed::{ObservedStatus, StatusWatches};

const FIELD_MANAGER: &str = "pilot-discovery";
const GATEWAY_API: &str = "gateway.networking.k8s.io";
/// How many objects are written concurrently.
const AT_ONCE: usize = 8;
/// How often a write is tried after conflicts with other writers.
const TRIES: usize = 4;
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Time before a status that another writer changed is written again: two controllers of one name write no faster.
const RESTORE_WAIT: Duration = Duration::from_secs(1);
/// How often one status is written again within `RESTORE_PERIOD`: another controller may insist on its own.
const RESTORES: u32 = 20;
const RESTORE_PERIOD: Duration = Duration::from_secs(600);
/// How often the GatewayClasses are checked.
const CLASS_INTERVAL: Duration = Duration::from_secs(15);

/// Statuses by object.
type StatusMap = BTreeMap<Key, Arc<Value>>;

/// Writes statuses and GatewayClasses.
#[derive(Clone, Debug)]
pub struct StatusWriter {
    pub access: Access,
    /// The controller name of gateways and routes.
    pub controller: String,
    /// The GatewayClass to create if it is missing; `None` creates none.
    pub class: Option<String>,
    /// The leader election; without one every replica writes.
    pub election: Option<Election>,
    /// Whether objects of the Gateway API get statuses; Ingresses always do.
    pub gateway_api: bool,
}

impl StatusWriter {
    /// Writes until stopped.
    pub async fn run(mut self, wanted: watch::Receiver<Arc<ConvertedConfig>>, stop: CancellationToken) {
        let Some(client) = self.client(&stop).await else { return };
        let (lead, leads) = watch::channel(self.election.is_none());
        let election = async {
            match self.election.clone() {
                Some(election) => lease::elect(client.clone(), election, lead, stop.clone()).await,
                // The channel must stay open: this replica always leads.
                None => {
                    stop.cancelled().await;
                    drop(lead);
                }
            }
        };
        let controllers = Controllers::new(&self.controller);
        let gateway_api = self.gateway_api;
        let is_written = move |key: &Key| gateway_api || key.kind.group() != GATEWAY_API;
        let writing = write(client.clone(), controllers, is_written, wanted, leads.clone(), stop.clone());
        let classes = keep_classes(&client, self.class.as_deref(), &self.controller, leads.clone(), &stop);
        tokio::join!(election, writing, classes);
    }

    async fn client(&mut self, stop: &CancellationToken) -> Option<Client> {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            match self.access.client().await {
                Ok(client) => return Some(client),
                Err(error) => warn!(%error, "could not set up a client to write statuses; retrying"),
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = backoff.wait() => {}
            }
        }
    }
}

/// Writes changed statuses while this replica leads.
async fn write(
    client: Client,
    controllers: Controllers,
    is_written: impl Fn(&Key) -> bool,
    mut wanted: watch::Receiver<Arc<ConvertedConfig>>,
    mut leads: watch::Receiver<bool>,
    stop: CancellationToken,
) {
    let mut watches = StatusWatches::new(client.clone());
    let mut sync = StatusSync::new(client, controllers);
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    loop {
        let now = wanted.borrow_and_update().clone();
        let leading = *leads.borrow_and_update();
        let mut failed = false;
        let mut kinds = BTreeSet::new();
        if leading {
            failed = !sync.catch_up(&now, &is_written).await;
            // Also of objects that were not found: only their watch shows that they were created again.
            kinds.extend(now.statuses.keys().filter(|key| is_written(key)).map(|key| key.kind));
        } else {
            // Another leader may write; everything is compared again when we lead.
            sync.written.clear();
        }
        watches.follow(&kinds);
        if !failed {
            backoff.reset();
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = wanted.changed() => if changed.is_err() { return },
            changed = leads.changed() => if changed.is_err() { return },
            () = sync.until_lost(&mut watches, &now), if leading => {}
            () = backoff.wait(), if failed => {}
        }
    }
}

/// The statuses written since this replica leads, and the kinds that it may not write.
struct StatusSync {
    client: Client,
    controllers: Controllers,
    written: StatusMap,
    /// Kinds whose statuses we have no permission to write.
    refused: BTreeSet<Kind>,
    /// Statuses that were written again: how often, and since when.
    restored: BTreeMap<Key, (u32, Instant)>,
}

impl StatusSync {
    fn new(client: Client, controllers: Controllers) -> StatusSync {
        let (written, refused, restored) = (StatusMap::new(), BTreeSet::new(), BTreeMap::new());
        StatusSync { client, controllers, written, refused, restored }
    }

    /// Waits until an object has another status than the one that was written, and forgets that it was written.
    async fn until_lost(&mut self, watches: &mut StatusWatches, now: &ConvertedConfig) {
        loop {
            let found = watches.next().await;
            if self.is_lost(&found, now) {
                break;
            }
        }
        tokio::time::sleep(RESTORE_WAIT).await;
        while let Some(found) = watches.try_next() {
            self.is_lost(&found, now);
        }
    }

    /// Whether an object lacks a status that we want. It is then no longer known as written.
    fn is_lost(&mut self, found: &ObservedStatus, wanted: &ConvertedConfig) -> bool {
        let Some(wanted) = wanted.statuses.get(&found.key) else { return false };
        let current = found.status.as_ref();
        if current == Some(&merged(current, wanted, &self.controllers, &now())) || !self.may_restore(&found.key) {
            return false;
        }
        self.written.remove(&found.key);
        true
    }

    /// Counts an attempt to restore a status. False if there were too many.
    fn may_restore(&mut self, key: &Key) -> bool {
        let (times, since) = self.restored.entry(key.clone()).or_insert_with(|| (0, Instant::now()));
        if since.elapsed() > RESTORE_PERIOD {
            (*times, *since) = (0, Instant::now());
        }
        *times = times.saturating_add(1);
        if *times == RESTORES + 1 {
            warn!(object = %key, "another writer changes the status again and again; leaving it for ten minutes");
        }
        *times <= RESTORES
    }

    /// Writes the statuses that changed. Returns whether all writes succeeded.
    async fn catch_up(&mut self, now: &ConvertedConfig, is_written: impl Fn(&Key) -> bool) -> bool {
        self.written.retain(|key, _| now.statuses.contains_key(key));
        self.restored.retain(|_, (_, since)| since.elapsed() <= RESTORE_PERIOD);
        let ours = now.statuses.iter().filter(|(key, _)| is_written(key));
        let pending = ours.filter(|(key, status)| self.written.get(*key) != Some(*status));
        let pending: Vec<_> = pending.map(|(key, status)| (key.clone(), status.clone())).collect();
        let (client, controllers) = (&self.client, &self.controllers);
        let writes = pending
            .into_iter()
            .map(|(key, status)| async move { (write_one(client, controllers, &key, &status).await, key, status) });
        let mut writes = stream::iter(writes).buffer_unordered(AT_ONCE);
        let mut is_complete = true;
        while let Some((result, key, status)) = writes.next().await {
            match result {
                Ok(WriteOutcome::Written) => {
                    self.refused.remove(&key.kind);
                    self.written.insert(key, status);
                }
                Ok(WriteOutcome::NotFound) => {}
                Err(error) => {
                    is_complete = false;
                    log_failure(&key, &error, &mut self.refused);
                }
            }
        }
        is_complete
    }
}

/// A missing permission concerns all objects of the kind, so it is logged once per kind.
fn log_failure(key: &Key, error: &kube::Error, refused: &mut BTreeSet<Kind>) {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            if refused.insert(key.kind) {
                let needs = format!("update of {}/status in {}", key.kind.plural(), key.kind.group());
                warn!(needs, %error, "could not write statuses: permission is missing; retrying");
            }
        }
        _ => warn!(object = %key, %error, "could not write the status; retrying"),
    }
}

/// What a write without an error did.
enum WriteOutcome {
    /// The object has the status.
    Written,
    /// The object is gone. One that is created again needs its status.
    NotFound,
}

/// Updates the status of one object if it differs.
async fn write_one(
    client: &Client,
    controllers: &Controllers,
    key: &Key,
    status: &Value,
) -> Result<WriteOutcome, kube::Error> {
    let api = api(client, key);
    for left in (0..TRIES).rev() {
        let Some(mut object) = api.get_opt(&key.name).await? else { return Ok(WriteOutcome::NotFound) };
        let current = object.data.get("status");
        let merged = merged(current, status, controllers, &now());
        if current == Some(&merged) {
            return Ok(WriteOutcome::Written);
        }
        object.data["status"] = merged;
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match api.replace_status(&key.name, &parameters, &object).await {
            Ok(_) => return Ok(WriteOutcome::Written),
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(WriteOutcome::NotFound),
            Err(kube::Error::Api(status)) if status.is_conflict() && left > 0 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(WriteOutcome::Written)
}

fn api(client: &Client, key: &Key) -> Api<DynamicObject> {
    let resource = resource(key.kind);
    match key.kind.is_cluster_wide() {
        true => Api::all_with(client.clone(), &resource),
        false => Api::namespaced_with(client.clone(), &key.namespace, &resource),
    }
}

fn resource(kind: Kind) -> ApiResource {
    let (group, version) = (kind.group().to_owned(), kind.versions().first().copied().unwrap_or("v1").to_owned());
    ApiResource {
        api_version: format!("{group}/{version}"),
        group,
        version,
        kind: kind.as_str().to_owned(),
        plural: kind.plural().to_owned(),
    }
}

/// Creates the GatewayClasses while this replica leads, and checks them at intervals: a user may delete them, and their
/// CustomResourceDefinition may be installed later.
async fn keep_classes(
    client: &Client,
    class: Option<&str>,
    controller: &str,
    mut leads: watch::Receiver<bool>,
    stop: &CancellationToken,
) {
    let Some(class) = class else { return };
    loop {
        if *leads.borrow_and_update()
            && let Err(error) = create_classes(client, class, controller).await
        {
            debug!(%error, "could not create the GatewayClasses; retrying");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = leads.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(CLASS_INTERVAL) => {}
        }
    }
}

/// Creates the GatewayClasses of our controllers. Existing ones are not changed.
async fn create_classes(client: &Client, class: &str, controller: &str) -> Result<(), kube::Error> {
    let classes = [
        (class, controller, "The default Istio GatewayClass"),
        (
            "istio-remote",
            "istio.io/unmanaged-gateway",
            "Remote to this cluster. Does not deploy or affect configuration.",
        ),
    ];
    let resource = resource(Kind::GatewayClass);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    for (name, controller, description) in classes {
        if api.get_opt(name).await?.is_some() {
            continue;
        }
        let spec = serde_json::json!({"controllerName": controller, "description": description});
        let object = DynamicObject::new(name, &resource).data(serde_json::json!({"spec": spec}));
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => info!(class = name, "created GatewayClass"),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The current time in the format of conditions.
fn now() -> String {
    timestamp::format(since_1970().as_secs() as i64)
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
