//! What layers promise. After any edits they equal what a server would compute that has no class, no layer and no cache, byte
//! for byte, for every client; and what a computation did not read does not change its result.
//!
//! The cases are the same in each run; `testkit::properties` says how to get others.

pub(super) mod mesh;
mod sharing;
mod unread;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Resource, TypeUrl};
use model::change::{Batch, Change, SourceId};
use model::proxy::Proxy;
use model::settings::Settings;
use model::snapshot::Snapshot;
use proptest::collection::vec;
use proptest::{prop_assert, proptest};
use scope::{View, identity, inbound};
use testkit::properties::{self, repeat};
use tokio::sync::mpsc;
use translate::recipes;
use xds::ResourceSet;

use crate::serve::pins::{Pin, Pins, pinned};
use crate::serve::rendered::RenderedView;
use crate::serve::renderings::Renderings;
use crate::serve::snapshot_writer::PublishedSnapshot;
use crate::serve::views::{Placement, Views};
use mesh::{OBJECT_SLOTS, SLOTS, VARIANTS, change, clients, object, version};

const CASES: u32 = 40;
/// Types whose resources are listed without being named.
const LISTED: [TypeUrl; 5] =
    [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER, TypeUrl::EXTENSION, TypeUrl::NAME_TABLE];
const NAMED: [(TypeUrl, &[&str]); 3] = [
    (TypeUrl::ROUTE, &["80", "http.80", "https.443.https.edge.istio-system", "9000", "cart.example.com:80"]),
    (
        TypeUrl::ENDPOINT,
        &[
            "outbound|80||cart.example.com",
            "outbound|80|v1|pay.example.com",
            "outbound|80|v1|cart.example.com",
            "inbound|80||",
        ],
    ),
    (TypeUrl::SECRET, &["kubernetes://cert"]),
];

/// Resources by type and name, as bytes.
type Served = BTreeMap<String, Vec<u8>>;

fn bytes(resource: Option<&Resource>) -> Vec<u8> {
    resource.map_or(b"none".to_vec(), |resource| resource.body.joined().to_vec())
}

/// Everything that a client can request.
fn served(view: &RenderedView) -> Served {
    let mut found = Served::new();
    let mut add = |set: &ResourceSet, name: &str| {
        found.insert(format!("{} {name}", set.kind().short()), bytes(set.get(name).as_ref()));
    };
    for kind in LISTED {
        let set = view.set(&kind).unwrap();
        set.resources().for_each(|resource| add(&set, &resource.name));
    }
    for (kind, names) in NAMED {
        let set = view.set(&kind).unwrap();
        names.iter().for_each(|name| add(&set, name));
    }
    found
}

/// The same for a proxy in a world, computed with nothing that others use: the whole proxy instead of its class, and no
/// cache. Clusters and listeners come from the list of all recipes, not from one list for each direction.
fn computed(world: &Snapshot, proxy: &Proxy, pins: &Pins) -> Served {
    let world = pinned(world, pins);
    let proxy = Arc::new(identity::resolved(&world, proxy).into_owned());
    let view = View::new(&world, &proxy, inbound::targets(&world, &proxy));
    let mut expected = served(&RenderedView::alone(0, view.clone(), Arc::new(Renderings::default())));
    for kind in [TypeUrl::CLUSTER, TypeUrl::LISTENER] {
        expected.retain(|name, _| !name.starts_with(&format!("{} ", kind.short())));
        for recipe in recipes(&view, &kind, &mut Vec::new()) {
            let name = format!("{} {}", kind.short(), recipe.name);
            expected.entry(name).or_insert_with(|| bytes(Some(&recipe.render())));
        }
    }
    expected
}

/// The first differences, for a message.
fn difference(found: &Served, expected: &Served) -> String {
    let names: std::collections::BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    let differ = names.into_iter().filter(|name| found.get(*name) != expected.get(*name));
    let text = |side: &Served, name: &String| match side.get(name) {
        Some(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        None => "(absent)".to_owned(),
    };
    let lines = differ
        .take(3)
        .map(|name| format!("{name}\n  served:   {}\n  expected: {}", text(found, name), text(expected, name)));
    lines.collect::<Vec<_>>().join("\n")
}

/// A mesh that is edited, and the same computed again from what is in it.
struct EditedMesh {
    published: Arc<PublishedSnapshot>,
    current: BTreeMap<usize, Change>,
}

impl EditedMesh {
    fn new() -> EditedMesh {
        let published = Arc::new(PublishedSnapshot::empty(Settings::default()));
        let mut mesh = EditedMesh { published, current: BTreeMap::new() };
        // Settings as a source sends them.
        mesh.edit(OBJECT_SLOTS, 0);
        mesh.edit(OBJECT_SLOTS + 1, 0);
        mesh
    }

    fn edit(&mut self, slot: usize, variant: usize) {
        match version(slot, variant) {
            Some(change) => _ = self.current.insert(slot, change),
            None => _ = self.current.remove(&slot),
        }
        let (snapshot, delta) = self.published.snapshot.apply(vec![batch(vec![change(slot, variant)])]);
        self.published = Arc::new(self.published.next(snapshot, Some(delta)));
    }

    /// A snapshot of the same content, made at once.
    fn recomputed(&self) -> Snapshot {
        let changes = self.current.values().cloned().collect();
        Snapshot::empty(Settings::default()).apply(vec![batch(changes)]).0
    }
}

fn batch(changes: Vec<Change>) -> Batch {
    Batch { source: SourceId("files".into()), changes }
}

struct Follower {
    proxy: Arc<Proxy>,
    placement: Option<Placement>,
}

/// Pins of some clients: they are served another version of an object, or none.
fn pins_of(index: usize, (slot, variant): (usize, usize)) -> Pins {
    if index % 3 != 1 {
        return Pins::new();
    }
    let good = (variant + 1 < VARIANTS).then(|| object(slot, variant));
    [(object(slot, 0).key(), Pin { bad: None, good })].into_iter().collect()
}

proptest! {
    #![proptest_config(properties::config(CASES))]

    #[test]
    fn incremental_equals_full_recompute(
        edits in vec((0..SLOTS, 0..VARIANTS), 1..25),
        pin in (0..OBJECT_SLOTS, 0..VARIANTS),
    ) {
        let views = Views::new(mpsc::channel(1000).0);
        let mut mesh = EditedMesh::new();
        let mut followers: Vec<Follower> =
            clients().into_iter().map(|proxy| Follower { proxy, placement: None }).collect();
        for (at, (slot, variant)) in edits.into_iter().enumerate() {
            mesh.edit(slot, variant);
            let world = mesh.recomputed();
            for (index, follower) in followers.iter_mut().enumerate() {
                // Some clients lag and skip snapshots.
                if (at + index) % 3 == 1 {
                    continue;
                }
                // Pins come and go.
                let pins = if at % 8 < 4 { Pins::new() } else { pins_of(index, pin) };
                let (placement, cut) = views.cut(&mesh.published, &follower.proxy, &pins, follower.placement.as_ref());
                follower.placement = Some(placement);
                let (found, expected) = (served(&cut), computed(&world, &follower.proxy, &pins));
                prop_assert!(
                    found == expected,
                    "{}: client {} after edit {at}, pins {:?}:\n{}",
                    repeat(&properties::config(CASES)), follower.proxy.id, pins.keys(), difference(&found, &expected)
                );
            }
        }
    }
}
