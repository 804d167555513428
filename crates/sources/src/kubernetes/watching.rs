//! One watch of one collection: list, follow, and begin again after whatever happens. What is heard goes into
//! one channel, reduced to the fields that matter; errors are told and never end a watch.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind, Resource};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::cluster::Collection;
use super::wire::{self, Item};

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// What busy API servers ask for.
const BUSY_WAIT: Duration = Duration::from_secs(1);
/// Failures of streaming lists, after which they are not asked for.
const MOST_REFUSALS: usize = 3;
/// A server that accepts a streaming list and then says nothing for this long does not know them.
const SILENCE: Duration = Duration::from_secs(20);
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
    /// The API server could not be asked. `code` is 0 where it did not answer.
    Failed {
        message: String,
        code: u16,
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
    pub(super) config: watcher::Config,
    pub(super) object: fn(&ApiResource, K) -> Object,
    pub(super) resource: ApiResource,
    /// For custom kinds: their definition, which takes all objects with it when it goes.
    pub(super) definition: Option<(Client, String)>,
    /// How often everything is listed anew.
    pub(super) resync: Option<Duration>,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Watches until nobody listens.
    pub(super) async fn run(self, tell: mpsc::Sender<Heard>) {
        let mut streaming = true;
        loop {
            match self.follow(&tell, streaming).await {
                Ended::Over => return,
                Ended::NoStreaming => streaming = false,
                Ended::Expired => debug!(collection = ?self.collection, "listing anew"),
            }
        }
    }

    async fn follow(&self, tell: &mpsc::Sender<Heard>, streaming: bool) -> Ended {
        let config = if streaming { self.config.clone().streaming_lists() } else { self.config.clone() };
        let mut events = pin!(watcher(self.api.clone(), config));
        let mut wait = FIRST_WAIT;
        let mut listed: Option<Instant> = None;
        let mut trusted_until = Instant::now();
        let mut refusals = 0;
        loop {
            let patience = match listed {
                Some(at) => self.lasts().map_or(Duration::MAX, |lasts| lasts.saturating_sub(at.elapsed())),
                None if streaming => SILENCE,
                None => Duration::MAX,
            };
            let Ok(event) = timeout(patience, events.next()).await else {
                return if listed.is_some() { Ended::Expired } else { Ended::NoStreaming };
            };
            let mut expired = false;
            let what = match event {
                None => return Ended::Over,
                Some(Ok(event)) => {
                    wait = FIRST_WAIT;
                    if matches!(event, Event::InitDone) {
                        listed = Some(Instant::now());
                    }
                    if matches!(event, Event::Delete(_)) && Instant::now() >= trusted_until {
                        if self.is_undefined().await {
                            return Ended::Over;
                        }
                        trusted_until = Instant::now() + TRUST;
                    }
                    self.what(event)
                }
                Some(Err(error)) => {
                    let code = code(&error);
                    debug!(collection = ?self.collection, %error, "watch failed");
                    // Older servers refuse streaming lists, and those on an old etcd fail in them.
                    refusals += usize::from(code == 500);
                    if streaming && listed.is_none() && ([400, 422, 501].contains(&code) || refusals == MOST_REFUSALS) {
                        return Ended::NoStreaming;
                    }
                    expired = listed.is_some() && code == 410 && matches!(error, watcher::Error::WatchStartFailed(_));
                    wait = match code {
                        // The API server is there; a list is all that it wants.
                        410 => FIRST_WAIT,
                        429 => BUSY_WAIT,
                        _ => wait,
                    };
                    What::Failed { message: error.to_string(), code }
                }
            };
            let failed = matches!(what, What::Failed { .. });
            let heard = Heard { round: self.round, collection: self.collection.clone(), what };
            if tell.send(heard).await.is_err() {
                return Ended::Over;
            }
            if failed {
                sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
            // kube lists anew when a watch is told so in its stream; some that stand before API servers tell it at once.
            if expired {
                return Ended::Expired;
            }
        }
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
        let mut wait = FIRST_WAIT;
        loop {
            match definitions.get_opt(name).await {
                Ok(Some(definition)) => return definition.metadata.deletion_timestamp.is_some(),
                Ok(None) => return true,
                Err(kube::Error::Api(answer)) if answer.code == 403 => return false,
                // Until it is known, nothing is deleted.
                Err(_) => sleep(wait).await,
            }
            wait = (wait * 2).min(LONGEST_WAIT);
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
