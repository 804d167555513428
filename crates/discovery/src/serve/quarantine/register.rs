//! Pins and withheld resources of all clients: for the debug page, the gauge and the list of problems, and for clients
//! that reconnect.
//!
//! Rejections of a stream without a proved identity are listed while the stream lasts, and have no other effect. Only
//! rejections of a client with a certificate are remembered when it reconnects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::TypeUrl;
use model::change::{Batch, Change, SourceId};
use model::config::Key;
use model::names::Str;
use model::printable::excerpt;
use model::problem::{Problem, ProblemCode, Subject};
use model::snapshot::Snapshot;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::Payer;
use super::budget::Budgets;
use crate::serve::caller::Identity;
use crate::serve::pins::{Pin, Pins};
use crate::serve::snapshot_writer::PublishedSnapshot;

/// Clients remembered for one object.
const MOST_NAMED: usize = 1000;
/// Clients remembered for all objects together.
const MOST_REMEMBERED: usize = 20_000;
/// Withheld resources listed for one stream, and for all.
const MOST_RESOURCES: usize = 100;
const MOST_RESOURCES_IN_ALL: usize = 10_000;
/// Bytes of a message that are kept: messages may repeat whole resources.
const LONGEST_MESSAGE: usize = 400;
/// Minimum time between publications of problems: each wakes every stream, and any client can reject.
const PAUSE: Duration = Duration::from_millis(500);

/// The client that rejects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refuser {
    /// A client with a proved identity. It is recognized when it reconnects.
    Proven { identity: Identity, client: Str },
    /// A stream, whatever node id its client has.
    Stream { number: u64, client: Str },
}

impl Refuser {
    fn client(&self) -> &Str {
        match self {
            Refuser::Proven { client, .. } | Refuser::Stream { client, .. } => client,
        }
    }

    fn is_proven(&self) -> bool {
        matches!(self, Refuser::Proven { .. })
    }

    /// The namespace in its certificate.
    fn namespace(&self) -> Option<&str> {
        match self {
            Refuser::Proven { identity, .. } => Some(&identity.namespace),
            Refuser::Stream { .. } => None,
        }
    }
}

/// Pins and withheld resources of all clients.
#[derive(Debug)]
pub struct Register {
    changes: mpsc::Sender<Batch>,
    snapshots: watch::Receiver<Arc<PublishedSnapshot>>,
    kept: Mutex<Kept>,
    budgets: Budgets,
}

#[derive(Debug, Default)]
struct Kept {
    objects: BTreeMap<Key, Refused>,
    /// Withheld resources by stream.
    resources: BTreeMap<u64, BTreeMap<(TypeUrl, Arc<str>), Affected>>,
    published: Vec<Problem>,
    published_at: Option<Instant>,
    /// A publication is scheduled.
    is_due: bool,
}

/// An object that clients rejected, with the version that each is served instead.
#[derive(Debug)]
struct Refused {
    since: SystemTime,
    kind: TypeUrl,
    message: String,
    by: BTreeMap<Refuser, Pin>,
}

impl Refused {
    /// The rejected version, the same for all.
    fn pin(&self) -> Option<&Pin> {
        self.by.values().next()
    }

    fn holds_in(&self, key: &Key, world: &Snapshot) -> bool {
        self.pin().is_some_and(|pin| pin.holds_in(key, world))
    }

    fn affected(&self) -> Affected {
        Affected {
            since: self.since,
            kind: self.kind.clone(),
            message: self.message.clone(),
            clients: self.by.keys().map(|refuser| refuser.client().clone()).collect(),
            replaced: self.pin().is_some_and(|pin| pin.good.is_some()),
            is_proven: self.by.keys().any(Refuser::is_proven),
        }
    }
}

/// Clients that rejected something, and the reason.
#[derive(Clone, Debug)]
pub struct Affected {
    pub since: SystemTime,
    pub kind: TypeUrl,
    /// The last message.
    pub message: String,
    /// Clients by `name.namespace`, as in their node ids.
    pub clients: BTreeSet<Str>,
    /// Whether an earlier version is served instead.
    pub replaced: bool,
    /// Whether one of the clients has proved its identity.
    pub is_proven: bool,
}

impl Register {
    /// Problems are sent to the snapshot writer as changes.
    pub fn new(changes: mpsc::Sender<Batch>, snapshots: watch::Receiver<Arc<PublishedSnapshot>>) -> Arc<Register> {
        Arc::new(Register { changes, snapshots, kept: Mutex::default(), budgets: Budgets::default() })
    }

    /// Records that a client rejected these objects.
    pub fn add_objects(self: &Arc<Self>, refuser: &Refuser, kind: &TypeUrl, message: &str, pins: &Pins) {
        let world = self.snapshots.borrow().snapshot.clone();
        let mut kept = self.lock();
        let mut remembered = kept.objects.values().map(|refused| refused.by.len()).sum::<usize>();
        // A stream that is behind may reject a version that no longer exists.
        for (key, pin) in pins.iter().filter(|(key, pin)| pin.holds_in(key, &world)) {
            if kept.objects.get(key).and_then(Refused::pin).is_none_or(|known| known.bad != pin.bad) {
                let fresh = Refused {
                    since: SystemTime::now(),
                    kind: kind.clone(),
                    message: String::new(),
                    by: BTreeMap::new(),
                };
                kept.objects.insert(key.clone(), fresh);
            }
            let Some(refused) = kept.objects.get_mut(key) else { continue };
            if remembered < MOST_REMEMBERED && refused.by.len() < MOST_NAMED {
                refused.by.insert(refuser.clone(), pin.clone());
                refused.message = excerpt(message.trim_end(), LONGEST_MESSAGE);
                remembered += 1;
            }
        }
        kept.objects.retain(|_, refused| !refused.by.is_empty());
        self.publish(&mut kept);
    }

    /// Replaces the withheld resources of a stream; each with whether another version is served.
    pub fn set_resources<'a>(
        self: &Arc<Self>,
        stream: u64,
        refuser: &Refuser,
        message: &str,
        withheld: impl Iterator<Item = (&'a TypeUrl, &'a Arc<str>, bool)>,
    ) {
        let mut kept = self.lock();
        let mut own = kept.resources.remove(&stream).unwrap_or_default();
        let others = kept.resources.values().map(BTreeMap::len).sum::<usize>();
        let most = MOST_RESOURCES.min(MOST_RESOURCES_IN_ALL.saturating_sub(others));
        let now = withheld.take(most).map(|(kind, name, replaced)| {
            let at = (kind.clone(), name.clone());
            let known = own.remove(&at);
            let affected = known.unwrap_or_else(|| Affected {
                since: SystemTime::now(),
                kind: kind.clone(),
                message: excerpt(message.trim_end(), LONGEST_MESSAGE),
                clients: BTreeSet::from([refuser.client().clone()]),
                replaced,
                is_proven: refuser.is_proven(),
            });
            (at, Affected { replaced, ..affected })
        });
        let now: BTreeMap<_, _> = now.collect();
        if !now.is_empty() {
            kept.resources.insert(stream, now);
        }
        self.publish(&mut kept);
    }

    /// A stream ended: its withheld resources and its rejections without a proved identity are dropped.
    pub fn leave(self: &Arc<Self>, stream: u64, refuser: &Refuser) {
        let mut kept = self.lock();
        kept.resources.remove(&stream);
        if !refuser.is_proven() {
            kept.objects.values_mut().for_each(|refused| drop(refused.by.remove(refuser)));
            kept.objects.retain(|_, refused| !refused.by.is_empty());
        }
        self.publish(&mut kept);
    }

    /// Drops objects that have a new version.
    pub fn follow(self: &Arc<Self>) {
        self.publish(&mut self.lock());
    }

    /// Objects whose current version this client rejected on a stream that has ended.
    pub fn pins(&self, world: &Snapshot, refuser: &Refuser) -> Pins {
        self.lock().pins(world, |by| by == refuser)
    }

    /// Objects whose current version was rejected by clients with a proved identity of the same namespace.
    pub fn evidence(&self, world: &Snapshot, refuser: &Refuser) -> Pins {
        let Some(namespace) = refuser.namespace() else { return Pins::new() };
        self.lock().pins(world, |by| by.namespace() == Some(namespace))
    }

    /// Objects whose current version is kept from a client.
    pub fn objects(&self, world: &Snapshot) -> Vec<(Key, Pin, Affected)> {
        let kept = self.lock();
        let current = kept.objects.iter().filter(|(key, refused)| refused.holds_in(key, world));
        current.filter_map(|(key, refused)| Some((key.clone(), refused.pin()?.clone(), refused.affected()))).collect()
    }

    /// Resources that are withheld from connected clients, by name.
    pub fn resources(&self) -> Vec<(Arc<str>, Affected)> {
        let kept = self.lock();
        let all = kept.resources.values().flatten();
        all.map(|((_, name), affected)| (name.clone(), affected.clone())).collect()
    }

    /// Time that a search for this client may take.
    pub fn search_time(&self, payer: &Payer) -> Duration {
        self.budgets.left(payer, Instant::now())
    }

    /// Charges a search that started at this time.
    pub fn searched(&self, payer: &Payer, begun: Instant) {
        self.budgets.spend(payer, begun.elapsed(), Instant::now());
    }

    /// Sends the list of problems if it changed: now, or when the minimum time since the last has passed.
    fn publish(self: &Arc<Self>, kept: &mut Kept) {
        if kept.is_due {
            return;
        }
        let wait = kept.published_at.map_or(Duration::ZERO, |at| PAUSE.saturating_sub(at.elapsed()));
        match Handle::try_current() {
            Ok(runtime) if !wait.is_zero() => {
                kept.is_due = true;
                let register = Arc::downgrade(self);
                runtime.spawn(async move {
                    tokio::time::sleep(wait).await;
                    if let Some(register) = register.upgrade() {
                        register.publish_now(&mut register.lock());
                    }
                });
            }
            _ => self.publish_now(kept),
        }
    }

    fn publish_now(&self, kept: &mut Kept) {
        kept.is_due = false;
        let world = self.snapshots.borrow().snapshot.clone();
        kept.objects.retain(|key, refused| refused.holds_in(key, &world));
        let problems: Vec<Problem> = kept.problems();
        if problems != kept.published {
            let changes = vec![Change::Problems(problems.clone())];
            // If the channel is full, the next rejection or change sends the list again.
            if self.changes.try_send(Batch { source: SourceId("clients".into()), changes }).is_ok() {
                kept.published = problems;
                kept.published_at = Some(Instant::now());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock()
    }
}

impl Kept {
    /// The pins of these clients whose rejected version is still current.
    fn pins(&self, world: &Snapshot, is_asked_for: impl Fn(&Refuser) -> bool) -> Pins {
        let current = self.objects.iter().filter(|(key, refused)| refused.holds_in(key, world));
        let pin = |refused: &Refused| refused.by.iter().find(|(by, _)| is_asked_for(by)).map(|(_, pin)| pin.clone());
        current.filter_map(|(key, refused)| Some((key.clone(), pin(refused)?))).collect()
    }

    /// One problem for each object, and one for all resources of a type.
    fn problems(&self) -> Vec<Problem> {
        let objects = self.objects.iter().map(|(key, refused)| {
            let location = refused.pin().and_then(|pin| pin.bad.as_ref()).and_then(|bad| bad.meta.location.clone());
            Problem::error(key.clone(), text(&refused.affected())).coded(ProblemCode::Rejected).at(location)
        });
        let mut kinds: BTreeMap<&TypeUrl, (BTreeSet<&str>, &Affected)> = BTreeMap::new();
        for ((kind, name), affected) in self.resources.values().flatten() {
            kinds.entry(kind).or_insert_with(|| (BTreeSet::new(), affected)).0.insert(name);
        }
        let resources = kinds.into_iter().map(|(kind, (names, affected))| {
            let first = names.first().copied().unwrap_or_default();
            let others = names.len().saturating_sub(1);
            let about = Subject::Resource { kind: kind.short().into(), name: first.into(), others };
            Problem::error(about, text(affected)).coded(ProblemCode::Rejected)
        });
        objects.chain(resources).collect()
    }
}

fn text(affected: &Affected) -> String {
    let first = affected.clients.first().map_or("", |client| client);
    let instead = if affected.replaced { "they keep the previous version" } else { "they are served without it" };
    format!("rejected by Envoys, such as {first}; {instead}: {}", affected.message)
}
