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

use super::answer::WrongAnswer;
use super::backoff::Backoff;
use super::client;
use super::cluster::Collection;
use super::wire::{self, Item};

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
pub(super) struct Heard {
    /// Which round of watches: after new credentials a new one begins.
    pub(super) round: u64,
    pub(super) collection: Collection,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// A complete list begins.
    Begun,
    /// An object of that list.
    Listed(Seen),
    /// The list is complete.
    Complete,
    Applied(Seen),
    Deleted(Seen),
    /// An object that was asked for beside the watch.
    Supplied(Seen),
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
pub(super) struct Seen {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) object: Object,
}

#[derive(Debug)]
pub(super) enum Object {
    Item(Item),
    Definition(Box<wire::Definition>),
    /// A Secret that holds the way to other clusters.
    Remote(wire::Holding),
    /// The ConfigMap that names other clusters.
    Registry(wire::Holding),
    /// A Secret that the ConfigMap names.
    Access(wire::Holding),
}

/// Where one watch looks and what it makes of what it sees.
pub(super) struct Watch<K> {
    pub(super) round: u64,
    pub(super) collection: Collection,
    pub(super) api: Api<K>,
    /// How often the API server began to answer a watch of `api`.
    pub(super) opened: watch::Receiver<u64>,
    pub(super) config: watcher::Config,
    pub(super) object: fn(&ApiResource, K) -> Object,
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
pub(super) trait Watched:
    Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>
    + Clone
    + DeserializeOwned
    + Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> Watched for K where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static
{
}

impl<K: Watched> Watch<K> {
    /// Watches until nobody listens.
    pub(super) async fn run(self, tell: mpsc::Sender<Heard>) {
        let mut streaming = true;
        let mut backoff = Backoff::default();
        loop {
            match self.follow(&tell, streaming, &mut backoff).await {
                Ended::Over => return,
                Ended::NoStreaming => streaming = false,
                Ended::Expired => debug!(collection = %self.collection, "listing anew"),
            }
        }
    }

    async fn follow(&self, tell: &mpsc::Sender<Heard>, streaming: bool, backoff: &mut Backoff) -> Ended {
        let config = if streaming { self.config.clone().streaming_lists() } else { self.config.clone() };
        let mut events = pin!(watcher(self.api.clone(), config));
        let mut opened = self.opened.clone();
        let mut course = Course::new(streaming);
        loop {
            let what = tokio::select! {
                event = timeout(course.patience(self.lasts()), events.next()) => match event {
                    Err(_) if course.listed.is_some() => return Ended::Expired,
                    Err(_) => return Ended::NoStreaming,
                    Ok(None) => return Ended::Over,
                    Ok(Some(Ok(event))) => {
                        course.see(&event);
                        if course.in_list > self.max_objects {
                            course.too_many(self.max_objects)
                        } else if matches!(event, Event::Delete(_)) && self.has_ended(&mut course).await {
                            return Ended::Over;
                        } else {
                            self.what(event)
                        }
                    }
                    Ok(Some(Err(error))) => {
                        debug!(collection = %self.collection, %error, "watch failed");
                        opened.mark_unchanged();
                        match course.fail(&error) {
                            Some(what) => what,
                            None => return Ended::NoStreaming,
                        }
                    }
                },
                () = self.relist.notified() => return Ended::Expired,
                Ok(()) = opened.changed(), if course.sight == Sight::None => {
                    course.sight = Sight::Returning(Instant::now() + STEADY);
                    continue;
                }
                () = sleep_until(course.steady_at()), if matches!(course.sight, Sight::Returning(_)) => {
                    course.sight = Sight::Clear;
                    What::Reopened
                }
            };
            let failed = matches!(what, What::Failed { .. });
            let heard = Heard { round: self.round, collection: self.collection.clone(), what };
            if tell.send(heard).await.is_err() {
                return Ended::Over;
            }
            if failed {
                sleep(backoff.next_wait().max(course.least_wait)).await;
            }
            if course.is_expired {
                return Ended::Expired;
            }
        }
    }

    /// Whether a deletion is that of the whole kind.
    async fn has_ended(&self, course: &mut Course) -> bool {
        if Instant::now() < course.trusted_until {
            return false;
        }
        let is_undefined = self.is_undefined().await;
        course.trusted_until = Instant::now() + TRUST;
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

    fn what(&self, event: Event<K>) -> What {
        let seen = |object: K| Seen {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            object: (self.object)(&self.resource, object),
        };
        match event {
            Event::Init => What::Begun,
            Event::InitApply(object) => What::Listed(seen(object)),
            Event::InitDone => What::Complete,
            Event::Apply(object) => What::Applied(seen(object)),
            Event::Delete(object) => What::Deleted(seen(object)),
        }
    }

    /// Whether the definition of the kind is going or gone: then its objects go with it, by nobody's wish.
    async fn is_undefined(&self) -> bool {
        let Some((client, name)) = &self.definition else { return false };
        let definitions: Api<wire::Definition> = Api::all_with(client.clone(), &definitions());
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
struct Course {
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
    sight: Sight,
    /// Whether the next step is a new list.
    is_expired: bool,
}

/// Whether the collection is seen as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    Clear,
    /// The last word was a failure.
    None,
    /// The watch stands again; at this moment it counts.
    Returning(Instant),
}

impl Course {
    fn new(streaming: bool) -> Course {
        Course {
            streaming,
            listed: None,
            in_list: 0,
            least_wait: Duration::ZERO,
            refusals: 0,
            trusted_until: Instant::now(),
            sight: Sight::Clear,
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
        self.sight = Sight::Clear;
    }

    /// What to tell of a failure; `None` where the server only does not know streaming lists.
    fn fail(&mut self, error: &watcher::Error) -> Option<What> {
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
        self.sight = Sight::None;
        let is_wrong = WrongAnswer::in_chain(error).is_some();
        Some(What::Failed { message: reason(error), code, is_wrong })
    }

    /// A list without end: it is given up.
    fn too_many(&mut self, max_objects: usize) -> What {
        self.is_expired = true;
        self.sight = Sight::None;
        let message = format!("a list of more than {max_objects} objects (PILOTAGE_KUBERNETES_MAX_OBJECTS)");
        What::Failed { message, code: 0, is_wrong: true }
    }

    fn steady_at(&self) -> Instant {
        match self.sight {
            Sight::Returning(at) => at,
            Sight::Clear | Sight::None => Instant::now(),
        }
    }
}

#[derive(PartialEq, Eq)]
enum Ended {
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
pub(super) fn document(resource: &ApiResource, mut object: DynamicObject) -> Object {
    object.metadata.managed_fields = None;
    object.types = None;
    let mut json = serde_json::to_value(&object).unwrap_or_default();
    // Lists leave these out of their items.
    json["apiVersion"] = resource.api_version.as_str().into();
    json["kind"] = resource.kind.as_str().into();
    Object::Item(Item::Config(Box::new(json)))
}
