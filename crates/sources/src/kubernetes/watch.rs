//! The watch of one collection: list, watch, and list again when needed. Events go into one channel for all collections.
//! Errors are sent as events and never end a watch.

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

use super::client;
use super::collection::Collection;
use super::response_limits::BadResponse;
use super::schema::{self, ClusterObject};
use crate::backoff::Backoff;

/// The least wait after status 429.
const BUSY_WAIT: Duration = Duration::from_secs(1);
/// After this many failed streaming lists, plain lists are used.
const MAX_STREAMING_FAILURES: usize = 3;
/// A server that accepts a streaming list and sends nothing for this long does not support it.
const STREAMING_TIMEOUT: Duration = Duration::from_secs(20);
/// A watch that stays open this long after a failure has recovered.
const RECOVERY: Duration = Duration::from_secs(3);
/// How long the last check of a CustomResourceDefinition counts.
const DEFINITION_CHECK: Duration = Duration::from_millis(500);

/// The backoff for requests of one collection.
pub(super) fn watch_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5)).resetting_after(Duration::from_secs(10))
}

/// An event with its collection.
#[derive(Debug)]
pub(super) struct WatchMessage {
    /// The number of the `WatchSession`.
    pub(super) session: u64,
    pub(super) collection: Collection,
    pub(super) event: WatchEvent,
}

#[derive(Debug)]
pub(super) enum WatchEvent {
    /// A list of the whole collection starts.
    ListStarted,
    /// An object of that list.
    Listed(NamedObject),
    ListComplete,
    Applied(NamedObject),
    Deleted(NamedObject),
    /// The response to a request for one object, outside of the watch.
    Fetched(NamedObject),
    /// The watch is open again after a failure; there was no other event yet.
    Recovered,
    /// The request failed. `code` is the HTTP status, 0 without a response.
    Failed {
        message: String,
        code: u16,
        /// Whether the response is malformed or exceeds a limit.
        is_bad_response: bool,
    },
}

impl WatchEvent {
    /// Whether the collection can be watched. An incomplete list may still fail.
    pub(super) fn shows_that_watch_works(&self) -> bool {
        !matches!(self, WatchEvent::Failed { .. } | WatchEvent::ListStarted | WatchEvent::Listed(_))
    }
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
    /// A labelled Secret with kubeconfigs of remote clusters.
    Remote(schema::DataObject),
    /// The ConfigMap that names remote clusters.
    Registry(schema::DataObject),
    /// A Secret with a kubeconfig, which that ConfigMap names.
    Access(schema::DataObject),
}

/// What to watch, and how to convert its objects.
pub(super) struct CollectionWatch<K> {
    pub(super) session: u64,
    pub(super) collection: Collection,
    pub(super) api: Api<K>,
    /// How many watch requests of `api` got a response.
    pub(super) opened: watch::Receiver<u64>,
    pub(super) config: watcher::Config,
    pub(super) content: fn(&ApiResource, K) -> ObjectContent,
    pub(super) resource: ApiResource,
    /// For custom kinds, the name of the CustomResourceDefinition: its deletion deletes all objects.
    pub(super) definition: Option<(Client, String)>,
    /// How often the collection is listed again.
    pub(super) resync: Option<Duration>,
    /// Requests a new list.
    pub(super) relist: Arc<Notify>,
    /// The most objects that one list may have.
    pub(super) max_objects: usize,
}

/// Objects whose kind is given at run time by an `ApiResource`.
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
    /// Watches until the receiver is closed or the kind is deleted.
    pub(super) async fn run(self, messages: mpsc::Sender<WatchMessage>) {
        let mut streaming = true;
        let mut backoff = watch_backoff();
        loop {
            match self.watch(&messages, streaming, &mut backoff).await {
                WatchEnd::Over => return,
                WatchEnd::NoStreaming => streaming = false,
                WatchEnd::Expired => debug!(collection = %self.collection, "listing the collection again"),
            }
        }
    }

    async fn watch(&self, messages: &mpsc::Sender<WatchMessage>, streaming: bool, backoff: &mut Backoff) -> WatchEnd {
        let config = if streaming { self.config.clone().streaming_lists() } else { self.config.clone() };
        let mut events = pin!(watcher(self.api.clone(), config));
        let mut opened = self.opened.clone();
        let mut state = WatchState::new(streaming);
        loop {
            let event = tokio::select! {
                event = timeout(state.timeout(self.list_lifetime()), events.next()) => match event {
                    Err(_) if state.listed.is_some() => return WatchEnd::Expired,
                    Err(_) => return WatchEnd::NoStreaming,
                    Ok(None) => return WatchEnd::Over,
                    Ok(Some(Ok(event))) => {
                        state.record(&event);
                        if state.in_list > self.max_objects {
                            state.abandon_list(self.max_objects)
                        } else if matches!(event, Event::Delete(_)) && self.is_kind_deleted(&mut state).await {
                            return WatchEnd::Over;
                        } else {
                            self.convert(event)
                        }
                    }
                    Ok(Some(Err(error))) => {
                        debug!(collection = %self.collection, %error, "watch failed");
                        opened.mark_unchanged();
                        match state.fail(&error) {
                            Some(event) => event,
                            None => return WatchEnd::NoStreaming,
                        }
                    }
                },
                () = self.relist.notified() => return WatchEnd::Expired,
                Ok(()) = opened.changed(), if state.connectivity == Connectivity::Down => {
                    state.connectivity = Connectivity::Recovering(Instant::now() + RECOVERY);
                    continue;
                }
                () = sleep_until(state.recovered_at()), if matches!(state.connectivity, Connectivity::Recovering(_)) => {
                    state.connectivity = Connectivity::Up;
                    WatchEvent::Recovered
                }
            };
            let failed = matches!(event, WatchEvent::Failed { .. });
            let message = WatchMessage { session: self.session, collection: self.collection.clone(), event };
            if messages.send(message).await.is_err() {
                return WatchEnd::Over;
            }
            if failed {
                sleep(backoff.next_wait().max(state.min_wait)).await;
            }
            if state.is_expired {
                return WatchEnd::Expired;
            }
        }
    }

    /// Whether an object is deleted because its kind is deleted. Checked at most once per `DEFINITION_CHECK`.
    async fn is_kind_deleted(&self, state: &mut WatchState) -> bool {
        if Instant::now() < state.definition_checked_until {
            return false;
        }
        let is_undefined = self.is_undefined().await;
        state.definition_checked_until = Instant::now() + DEFINITION_CHECK;
        is_undefined
    }

    /// The time between lists: `resync` plus up to a tenth, by collection, so that not all are listed at once.
    fn list_lifetime(&self) -> Option<Duration> {
        let period = self.resync?;
        let mut hash = DefaultHasher::new();
        format!("{:?}", self.collection).hash(&mut hash);
        let share = (hash.finish() % 100) as f64 / 1000.0;
        Some(period + period.mul_f64(share))
    }

    fn convert(&self, event: Event<K>) -> WatchEvent {
        let named = |object: K| NamedObject {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            content: (self.content)(&self.resource, object),
        };
        match event {
            Event::Init => WatchEvent::ListStarted,
            Event::InitApply(object) => WatchEvent::Listed(named(object)),
            Event::InitDone => WatchEvent::ListComplete,
            Event::Apply(object) => WatchEvent::Applied(named(object)),
            Event::Delete(object) => WatchEvent::Deleted(named(object)),
        }
    }

    /// Whether the CustomResourceDefinition is deleted or being deleted. Its objects are then deleted with it, which is
    /// not what their authors asked for.
    async fn is_undefined(&self) -> bool {
        let Some((client, name)) = &self.definition else { return false };
        let definitions: Api<schema::CustomResourceDefinition> = Api::all_with(client.clone(), &definitions());
        let mut backoff = watch_backoff();
        loop {
            match definitions.get_opt(name).await {
                Ok(Some(definition)) => return definition.metadata.deletion_timestamp.is_some(),
                Ok(None) => return true,
                Err(kube::Error::Api(status)) if status.code == 403 => return false,
                // No deletion is sent until this is known.
                Err(_) => sleep(backoff.next_wait()).await,
            }
        }
    }
}

/// The state of one watch since its last list.
struct WatchState {
    streaming: bool,
    /// When the list was complete.
    listed: Option<Instant>,
    /// Objects so far in the list that is being read.
    in_list: usize,
    /// The least wait after the last failure.
    min_wait: Duration,
    streaming_failures: usize,
    /// Until when the CustomResourceDefinition is known to exist.
    definition_checked_until: Instant,
    connectivity: Connectivity,
    /// Whether the collection must be listed again.
    is_expired: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connectivity {
    Up,
    /// The last request failed.
    Down,
    /// The watch is open again, and up from this moment if it stays open.
    Recovering(Instant),
}

impl WatchState {
    fn new(streaming: bool) -> WatchState {
        WatchState {
            streaming,
            listed: None,
            in_list: 0,
            min_wait: Duration::ZERO,
            streaming_failures: 0,
            definition_checked_until: Instant::now(),
            connectivity: Connectivity::Up,
            is_expired: false,
        }
    }

    /// How long to wait for the next event.
    fn timeout(&self, list_lifetime: Option<Duration>) -> Duration {
        match self.listed {
            Some(at) => list_lifetime.map_or(Duration::MAX, |lifetime| lifetime.saturating_sub(at.elapsed())),
            None if self.streaming => STREAMING_TIMEOUT,
            None => Duration::MAX,
        }
    }

    fn record<K>(&mut self, event: &Event<K>) {
        match event {
            // Comes before the request is sent.
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

    /// The event for a failure; `None` if the server does not support streaming lists.
    fn fail(&mut self, error: &watcher::Error) -> Option<WatchEvent> {
        let code = code(error);
        // Older servers reject streaming lists, and those on an old etcd fail in them.
        self.streaming_failures += usize::from(code == 500);
        let unsupported = [400, 422, 501].contains(&code) || self.streaming_failures == MAX_STREAMING_FAILURES;
        if self.streaming && self.listed.is_none() && unsupported {
            return None;
        }
        // kube lists again when a watch expires, but not when its start fails with 410, as some proxies in front of API
        // servers answer.
        self.is_expired = self.listed.is_some() && code == 410 && matches!(error, watcher::Error::WatchStartFailed(_));
        self.min_wait = if code == 429 { BUSY_WAIT } else { Duration::ZERO };
        self.connectivity = Connectivity::Down;
        let is_bad_response = BadResponse::in_chain(error).is_some();
        Some(WatchEvent::Failed { message: reason(error), code, is_bad_response })
    }

    /// Gives up a list with too many objects.
    fn abandon_list(&mut self, max_objects: usize) -> WatchEvent {
        self.is_expired = true;
        self.connectivity = Connectivity::Down;
        let message = format!("a list of more than {max_objects} objects (PILOTAGE_KUBERNETES_MAX_OBJECTS)");
        WatchEvent::Failed { message, code: 0, is_bad_response: true }
    }

    fn recovered_at(&self) -> Instant {
        match self.connectivity {
            Connectivity::Recovering(at) => at,
            Connectivity::Up | Connectivity::Down => Instant::now(),
        }
    }
}

#[derive(PartialEq, Eq)]
enum WatchEnd {
    Over,
    /// The server does not support streaming lists.
    NoStreaming,
    /// The collection must be listed again.
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

/// The resource of CustomResourceDefinitions.
pub(super) fn definitions() -> ApiResource {
    resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
}

/// A resource by its names.
pub(super) fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// Converts an object of a config kind, which the model parses from JSON.
pub(super) fn document(resource: &ApiResource, mut object: DynamicObject) -> ObjectContent {
    object.metadata.managed_fields = None;
    object.types = None;
    let mut json = serde_json::to_value(&object).unwrap_or_default();
    // Items of lists do not have these fields.
    json["apiVersion"] = resource.api_version.as_str().into();
    json["kind"] = resource.kind.as_str().into();
    ObjectContent::Item(ClusterObject::Config(Box::new(json)))
}
