//! One watch of one collection: list, follow, and begin again after whatever happens. What is heard goes into
//! one channel, reduced to the fields that matter; errors are told and never end a watch.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, DynamicResourceScope, GroupVersionKind, Resource};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::debug;

use super::backoff::Backoff;
use super::client;
use super::join::Collection;
use super::response_limits::BadResponse;
use super::schema::{self, ClusterObject};

/// What busy API servers ask for.
const BUSY_WAIT: Duration = Duration::from_secs(1);
/// Failures of streaming lists, after which they are not asked for.
const MOST_REFUSALS: usize = 3;
/// A server that accepts a streaming list and then says nothing for this long does not know them.
const SILENCE: Duration = Duration::from_secs(20);
/// A watch that stands this long after a failure is one.
const STEADY: Duration = Duration::from_secs(3);
/// How long a definition is trusted to be there after it was seen.
const TRUST: Duration = Duration::from_millis(500);

/// Something that a watch heard.
#[derive(Debug)]
pub(super) struct WatchMessage {
    /// Which round of watches: after new credentials a new one begins.
    pub(super) session: u64,
    pub(super) collection: Collection,
    pub(super) what: WatchEvent,
}

#[derive(Debug)]
pub(super) enum WatchEvent {
    /// A complete list begins.
    Begun,
    /// An object of that list.
    Listed(NamedObject),
    /// The list is complete.
    Complete,
    Applied(NamedObject),
    Deleted(NamedObject),
    /// An object that was asked for beside the watch.
    Supplied(NamedObject),
    /// After a failure the watch stands again, though nothing happened yet.
    Reopened,
    /// The API server could not be asked. `code` is 0 where it did not answer.
    Failed {
        message: String,
        code: u16,
        /// Whether it answered what no API server answers that works well.
        is_wrong: bool,
    },
}

/// An object with its name.
#[derive(Debug)]
pub(super) struct NamedObject {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) content: ObjectContent,
}

#[derive(Debug)]
pub(super) enum ObjectContent {
    Item(ClusterObject),
    Definition(Box<schema::CustomResourceDefinition>),
    /// A Secret that holds the way to other clusters.
    Remote(schema::DataObject),
    /// The ConfigMap that names other clusters.
    Registry(schema::DataObject),
    /// A Secret that the ConfigMap names.
    Access(schema::DataObject),
}

/// Where one watch looks and what it makes of what it sees.
pub(super) struct CollectionWatch<K> {
    pub(super) session: u64,
    pub(super) collection: Collection,
    pub(super) api: Api<K>,
    /// How often the API server began to answer a watch of `api`.
    pub(super) opened: watch::Receiver<u64>,
    pub(super) config: watcher::Config,
    pub(super) object: fn(&ApiResource, K) -> ObjectContent,
    pub(super) resource: ApiResource,
    /// For custom kinds: their definition, which takes all objects with it when it goes.
    pub(super) definition: Option<(Client, String)>,
    /// How often everything is listed anew.
    pub(super) resync: Option<Duration>,
    /// Asks for a list beside those that the watch takes by itself.
    pub(super) relist: Arc<Notify>,
    /// Objects that one list may have.
    pub(super) max_objects: usize,
}

/// Objects that can be watched: kinds that are told by name.
pub(super) trait WatchableKind:
    Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>
    + Clone
    + DeserializeOwned
    + Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> WatchableKind for K where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static
{
}

impl<K: WatchableKind> CollectionWatch<K> {
    /// Watches until nobody listens.
    pub(super) async fn run(self, tell: mpsc::Sender<WatchMessage>) {
        let mut streaming = true;
        let mut backoff = Backoff::default();
        loop {
            match self.follow(&tell, streaming, &mut backoff).await {
                WatchEnd::Over => return,
                WatchEnd::NoStreaming => streaming = false,
                WatchEnd::Expired => debug!(collection = %self.collection, "listing anew"),
            }
        }
    }

    async fn follow(&self, tell: &mpsc::Sender<WatchMessage>, streaming: bool, backoff: &mut Backoff) -> WatchEnd {
        let config = if streaming { self.config.clone().streaming_lists() } else { self.config.clone() };
        let mut events = pin!(watcher(self.api.clone(), config));
        let mut opened = self.opened.clone();
        let mut state = WatchState::new(streaming);
        loop {
            let what = tokio::select! {
                event = timeout(state.patience(self.lasts()), events.next()) => match event {
                    Err(_) if state.listed.is_some() => return WatchEnd::Expired,
                    Err(_) => return WatchEnd::NoStreaming,
                    Ok(None) => return WatchEnd::Over,
                    Ok(Some(Ok(event))) => {
                        state.see(&event);
                        if state.in_list > self.max_objects {
                            state.too_many(self.max_objects)
                        } else if matches!(event, Event::Delete(_)) && self.has_ended(&mut state).await {
                            return WatchEnd::Over;
                        } else {
                            self.what(event)
                        }
                    }
                    Ok(Some(Err(error))) => {
                        debug!(collection = %self.collection, %error, "watch failed");
                        opened.mark_unchanged();
                        match state.fail(&error) {
                            Some(what) => what,
                            None => return WatchEnd::NoStreaming,
                        }
                    }
                },
                () = self.relist.notified() => return WatchEnd::Expired,
                Ok(()) = opened.changed(), if state.connectivity == Connectivity::Down => {
                    state.connectivity = Connectivity::Recovering(Instant::now() + STEADY);
                    continue;
                }
                () = sleep_until(state.steady_at()), if matches!(state.connectivity, Connectivity::Recovering(_)) => {
                    state.connectivity = Connectivity::Up;
                    WatchEvent::Reopened
                }
            };
            let failed = matches!(what, WatchEvent::Failed { .. });
            let heard = WatchMessage { session: self.session, collection: self.collection.clone(), what };
            if tell.send(heard).await.is_err() {
                return WatchEnd::Over;
            }
            if failed {
                sleep(backoff.next_wait().max(state.least_wait)).await;
            }
            if state.is_expired {
                return WatchEnd::Expired;
            }
        }
    }

    /// Whether a deletion is that of the whole kind.
    async fn has_ended(&self, state: &mut WatchState) -> bool {
        if Instant::now() < state.trusted_until {
            return false;
        }
        let is_undefined = self.is_undefined().await;
        state.trusted_until = Instant::now() + TRUST;
        is_undefined
    }

    /// How long a list is good for. Collections differ by up to a tenth, so that not all are listed at once.
    fn lasts(&self) -> Option<Duration> {
        let period = self.resync?;
        let mut hash = DefaultHasher::new();
        format!("{:?}", self.collection).hash(&mut hash);
        let share = (hash.finish() % 100) as f64 / 1000.0;
        Some(period + period.mul_f64(share))
    }

    fn what(&self, event: Event<K>) -> WatchEvent {
        let seen = |object: K| NamedObject {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            content: (self.object)(&self.resource, object),
        };
        match event {
            Event::Init => WatchEvent::Begun,
            Event::InitApply(object) => WatchEvent::Listed(seen(object)),
            Event::InitDone => WatchEvent::Complete,
            Event::Apply(object) => WatchEvent::Applied(seen(object)),
            Event::Delete(object) => WatchEvent::Deleted(seen(object)),
        }
    }

    /// Whether the definition of the kind is going or gone: then its objects go with it, by nobody's wish.
    async fn is_undefined(&self) -> bool {
        let Some((client, name)) = &self.definition else { return false };
        let definitions: Api<schema::CustomResourceDefinition> = Api::all_with(client.clone(), &definitions());
        let mut backoff = Backoff::default();
        loop {
            match definitions.get_opt(name).await {
                Ok(Some(definition)) => return definition.metadata.deletion_timestamp.is_some(),
                Ok(None) => return true,
                Err(kube::Error::Api(answer)) if answer.code == 403 => return false,
                // Until it is known, nothing is deleted.
                Err(_) => sleep(backoff.next_wait()).await,
            }
        }
    }
}

/// How one watch goes.
struct WatchState {
    streaming: bool,
    /// When it was last listed.
    listed: Option<Instant>,
    /// Objects of the list that is read now.
    in_list: usize,
    /// What the API server asked for after the last failure.
    least_wait: Duration,
    refusals: usize,
    /// Until when the definition of the kind need not be looked at.
    trusted_until: Instant,
    connectivity: Connectivity,
    /// Whether the next step is a new list.
    is_expired: bool,
}

/// Whether the collection is seen as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connectivity {
    Up,
    /// The last word was a failure.
    Down,
    /// The watch stands again; at this moment it counts.
    Recovering(Instant),
}

impl WatchState {
    fn new(streaming: bool) -> WatchState {
        WatchState {
            streaming,
            listed: None,
            in_list: 0,
            least_wait: Duration::ZERO,
            refusals: 0,
            trusted_until: Instant::now(),
            connectivity: Connectivity::Up,
            is_expired: false,
        }
    }

    /// How long the next event is waited for, where a list is good for `lasts`.
    fn patience(&self, lasts: Option<Duration>) -> Duration {
        match self.listed {
            Some(at) => lasts.map_or(Duration::MAX, |lasts| lasts.saturating_sub(at.elapsed())),
            None if self.streaming => SILENCE,
            None => Duration::MAX,
        }
    }

    fn see<K>(&mut self, event: &Event<K>) {
        match event {
            // Told before the API server was asked.
            Event::Init => {
                self.in_list = 0;
                return;
            }
            Event::InitDone => self.listed = Some(Instant::now()),
            Event::InitApply(_) => self.in_list += 1,
            Event::Apply(_) | Event::Delete(_) => {}
        }
        self.connectivity = Connectivity::Up;
    }

    /// What to tell of a failure; `None` where the server only does not know streaming lists.
    fn fail(&mut self, error: &watcher::Error) -> Option<WatchEvent> {
        let code = code(error);
        // Older servers refuse streaming lists, and those on an old etcd fail in them.
        self.refusals += usize::from(code == 500);
        let refuses = [400, 422, 501].contains(&code) || self.refusals == MOST_REFUSALS;
        if self.streaming && self.listed.is_none() && refuses {
            return None;
        }
        // kube lists again after an expired watch; some proxies in front of API servers report one at once.
        self.is_expired = self.listed.is_some() && code == 410 && matches!(error, watcher::Error::WatchStartFailed(_));
        self.least_wait = if code == 429 { BUSY_WAIT } else { Duration::ZERO };
        self.connectivity = Connectivity::Down;
        let is_wrong = BadResponse::in_chain(error).is_some();
        Some(WatchEvent::Failed { message: reason(error), code, is_wrong })
    }

    /// A list without end: it is given up.
    fn too_many(&mut self, max_objects: usize) -> WatchEvent {
        self.is_expired = true;
        self.connectivity = Connectivity::Down;
        let message = format!("a list of more than {max_objects} objects (PILOTAGE_KUBERNETES_MAX_OBJECTS)");
        WatchEvent::Failed { message, code: 0, is_wrong: true }
    }

    fn steady_at(&self) -> Instant {
        match self.connectivity {
            Connectivity::Recovering(at) => at,
            Connectivity::Up | Connectivity::Down => Instant::now(),
        }
    }
}

#[derive(PartialEq, Eq)]
enum WatchEnd {
    Over,
    NoStreaming,
    /// What was listed is too old: the history from which to go on is gone, or it is time.
    Expired,
}

fn code(error: &watcher::Error) -> u16 {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.code,
        _ => 0,
    }
}

fn reason(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => client::reason(error),
        other => client::shortened(&other.to_string()),
    }
}

/// The kind of definitions of kinds.
pub(super) fn definitions() -> ApiResource {
    resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
}

/// A kind by its names.
pub(super) fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// An object of a kind that the model reads as a document.
pub(super) fn document(resource: &ApiResource, mut object: DynamicObject) -> ObjectContent {
    object.metadata.managed_fields = None;
    object.types = None;
    let mut json = serde_json::to_value(&object).unwrap_or_default();
    // Lists leave these out of their items.
    json["apiVersion"] = resource.api_version.as_str().into();
    json["kind"] = resource.kind.as_str().into();
    ObjectContent::Item(ClusterObject::Config(Box::new(json)))
}
