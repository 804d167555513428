//! Everything that is kept from some client: for the page, the gauge and the list of problems, and for clients
//! that come back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use api::TypeUrl;
use model::change::{Batch, Change, SourceId};
use model::config::Key;
use model::names::Text;
use model::problem::Problem;
use model::snapshot::Snapshot;
use tokio::sync::mpsc;

use super::{Pin, Pins};

/// Names of clients that are remembered for one object.
const MOST_NAMED: usize = 1000;
/// Messages repeat whole resources at times.
const LONGEST_MESSAGE: usize = 400;

/// What is kept from clients.
#[derive(Debug)]
pub struct Register {
    changes: mpsc::Sender<Batch>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    objects: BTreeMap<Key, (Pin, Affected)>,
    /// By client, type and name.
    resources: BTreeMap<(Text, TypeUrl, Arc<str>), Affected>,
    told: Vec<Problem>,
}

/// Who refused something, and why.
#[derive(Clone, Debug)]
pub struct Affected {
    pub since: SystemTime,
    pub kind: TypeUrl,
    /// The last message.
    pub message: String,
    /// Clients by `name.namespace`.
    pub clients: BTreeSet<Text>,
    /// Whether something is served instead.
    pub replaced: bool,
}

impl Affected {
    fn new(kind: &TypeUrl, message: &str, client: &Text, replaced: bool) -> Affected {
        let end = message.char_indices().nth(LONGEST_MESSAGE).map_or(message.len(), |(at, _)| at);
        Affected {
            since: SystemTime::now(),
            kind: kind.clone(),
            message: message.get(..end).unwrap_or_default().trim_end().to_owned(),
            clients: BTreeSet::from([client.clone()]),
            replaced,
        }
    }
}

impl Register {
    /// Problems are sent along with everybody else's changes.
    pub fn new(changes: mpsc::Sender<Batch>) -> Register {
        Register { changes, kept: Mutex::default() }
    }

    /// A client refused these objects.
    pub fn add_objects(&self, world: &Snapshot, client: &Text, kind: &TypeUrl, message: &str, pins: &Pins) {
        let mut kept = self.lock();
        for (key, pin) in pins {
            let affected = Affected::new(kind, message, client, pin.good.is_some());
            match kept.objects.get_mut(key) {
                Some((known, others)) if known.bad == pin.bad => {
                    if others.clients.len() < MOST_NAMED {
                        others.clients.insert(client.clone());
                    }
                    others.message = affected.message;
                }
                _ => {
                    kept.objects.insert(key.clone(), (pin.clone(), affected));
                }
            }
        }
        self.tell(&mut kept, world);
    }

    /// These resources are withheld from a client, and no others; each with whether something stands for it.
    pub fn set_resources<'a>(
        &self,
        world: &Snapshot,
        client: &Text,
        message: &str,
        withheld: impl Iterator<Item = (&'a TypeUrl, &'a Arc<str>, bool)>,
    ) {
        let mut kept = self.lock();
        let mut before: BTreeMap<_, Affected> = BTreeMap::new();
        std::mem::swap(&mut before, &mut kept.resources);
        let (mut own, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            before.into_iter().partition(|((of, _, _), _)| of == client);
        kept.resources = others;
        for (kind, name, replaced) in withheld {
            let at = (client.clone(), kind.clone(), name.clone());
            let affected = own.remove(&at).unwrap_or_else(|| Affected::new(kind, message, client, replaced));
            kept.resources.insert(at, affected);
        }
        self.tell(&mut kept, world);
    }

    /// Forgets objects that have a new version.
    pub fn follow(&self, world: &Snapshot) {
        self.tell(&mut self.lock(), world);
    }

    /// Objects whose current version was refused, by anybody or by one client.
    pub fn pins(&self, world: &Snapshot, client: Option<&Text>) -> Pins {
        let kept = self.lock();
        let is_asked_for = |affected: &Affected| client.is_none_or(|client| affected.clients.contains(client));
        let known = kept.objects.iter().filter(|(key, (pin, by))| pin.holds_in(key, world) && is_asked_for(by));
        known.map(|(key, (pin, _))| (key.clone(), pin.clone())).collect()
    }

    /// Objects whose current version is kept from some client.
    pub fn objects(&self, world: &Snapshot) -> Vec<(Key, Pin, Affected)> {
        let kept = self.lock();
        let current = kept.objects.iter().filter(|(key, (pin, _))| pin.holds_in(key, world));
        current.map(|(key, (pin, affected))| (key.clone(), pin.clone(), affected.clone())).collect()
    }

    /// Resources that are kept from connected clients, by name.
    pub fn resources(&self) -> Vec<(Arc<str>, Affected)> {
        self.lock().resources.iter().map(|((_, _, name), affected)| (name.clone(), affected.clone())).collect()
    }

    /// Sends the list of problems if it is not what was sent last.
    fn tell(&self, kept: &mut Kept, world: &Snapshot) {
        kept.objects.retain(|key, (pin, _)| pin.holds_in(key, world));
        let problems: Vec<Problem> = kept.problems();
        if problems != kept.told {
            let changes = vec![Change::Problems(problems.clone())];
            // A full channel means that batches wait; the next refusal or change tells it again.
            if self.changes.try_send(Batch { source: SourceId("clients".into()), changes }).is_ok() {
                kept.told = problems;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// One for each object, and one for all resources of a type.
    fn problems(&self) -> Vec<Problem> {
        let objects = self.objects.iter().map(|(key, (pin, affected))| {
            let instead = match pin.good {
                Some(_) => "they keep the version before",
                None => "they are served without it",
            };
            let place = pin.bad.as_ref().and_then(|bad| bad.meta.place.clone());
            Problem::error(key.to_string(), refused(affected, instead)).at(place)
        });
        let mut kinds: BTreeMap<&TypeUrl, (BTreeSet<&str>, &Affected)> = BTreeMap::new();
        for ((_, kind, name), affected) in &self.resources {
            kinds.entry(kind).or_insert_with(|| (BTreeSet::new(), affected)).0.insert(name);
        }
        let resources = kinds.into_iter().map(|(kind, (names, affected))| {
            let instead = if affected.replaced { "they keep the version before" } else { "they are served without it" };
            let first = names.first().copied().unwrap_or_default();
            let about = match names.len() {
                1 => format!("{} {first}", kind.short()),
                many => format!("{} {first} and {} more", kind.short(), many - 1),
            };
            Problem::error(about, refused(affected, instead))
        });
        objects.chain(resources).collect()
    }
}

fn refused(affected: &Affected, instead: &str) -> String {
    let first = affected.clients.first().map_or("", |client| client);
    format!("refused by Envoys, such as {first}; {instead}: {}", affected.message)
}
