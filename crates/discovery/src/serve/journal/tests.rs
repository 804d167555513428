//! The journal has what changed, and stays within its limits.

use std::collections::BTreeSet;
use std::time::SystemTime;

use model::change::{Batch, Change, SourceId};
use model::config::{Key, Kind, parse};
use model::settings::Settings;
use model::snapshot::Snapshot;

use super::{AppliedChange, Journal, MOST_BYTES, UNCOUNTED};

struct RecordedMesh {
    journal: Journal,
    snapshot: Snapshot,
    number: u64,
}

impl RecordedMesh {
    fn new() -> RecordedMesh {
        RecordedMesh { journal: Journal::default(), snapshot: Snapshot::empty(Settings::default()), number: 0 }
    }

    fn apply(&mut self, changes: Vec<Change>) {
        let source = SourceId("files".into());
        let sources = BTreeSet::from([source.clone()]);
        let (after, delta) = self.snapshot.apply(vec![Batch { source, changes }]);
        self.number += 1;
        let (number, before) = (self.number, &self.snapshot);
        self.journal.record(&AppliedChange {
            number,
            before,
            after: &after,
            delta: &delta,
            sources: &sources,
            synced: &[],
        });
        self.snapshot = after;
    }

    fn put(&mut self, names: &[String], host: &str) {
        let objects = names.iter().flat_map(|name| {
            let text = format!(
                "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\n\
                 spec: {{hosts: [{host}], http: [{{route: [{{destination: {{host: a}}}}]}}]}}\n"
            );
            parse::documents(&text, "shop.yaml").objects
        });
        self.apply(objects.map(Change::Applied).collect());
    }
}

fn key(name: &str) -> Key {
    Key { kind: Kind::VirtualService, namespace: "shop".into(), name: name.into() }
}

#[test]
fn changes_are_recorded_with_source_file_and_earlier_version() {
    let mut mesh = RecordedMesh::new();
    mesh.put(&["a".to_owned()], "one.example");
    mesh.put(&["a".to_owned()], "two.example");
    mesh.apply(vec![Change::Deleted(key("a"))]);
    mesh.journal.acknowledged(2, &"cart.shop".into());
    let view = mesh.journal.since(0);
    let verbs: Vec<_> = view.entries.iter().map(|entry| entry.objects[0].verb()).collect();
    assert_eq!(verbs, ["added", "changed", "deleted"]);
    let change = &view.entries[1];
    assert_eq!(&*change.sources[0], "files");
    assert_eq!(&*change.objects[0].location.as_ref().unwrap().file, "shop.yaml");
    assert_eq!(&*change.acknowledged[0].client, "cart.shop");
    let hosts = |number: u64| {
        let earlier = view.earlier(number).unwrap();
        earlier[&key("a")].as_ref().map(|object| object.spec.to_json()["hosts"][0].clone())
    };
    assert_eq!(hosts(0), None, "it did not exist");
    assert_eq!((hosts(1).unwrap(), hosts(2).unwrap()), ("one.example".into(), "two.example".into()));
    assert_eq!(mesh.journal.since(2).entries.len(), 1);
    assert_eq!(view.number_at(SystemTime::now()), Some(3));
}

#[test]
fn hole_03_the_journal_is_bounded_and_says_how_far_it_reaches() {
    let mut mesh = RecordedMesh::new();
    let large = format!("{}.example", "x".repeat(40_000));
    for round in 0..60 {
        mesh.put(&[format!("v{}", round % 3)], &format!("{round}.{large}"));
        for client in 0..5000 {
            mesh.journal.acknowledged(mesh.number, &format!("p{client}.shop").into());
        }
        assert!(mesh.journal.bytes() <= MOST_BYTES + UNCOUNTED);
    }
    let view = mesh.journal.since(0);
    assert!(view.entries.len() > 10 && view.entries.len() < 60, "{}", view.entries.len());
    assert!(view.earlier(1).is_none() && view.earlier(59).is_some());
    let many: Vec<String> = (0..300).map(|n| format!("m{n}")).collect();
    mesh.put(&many, "many.example");
    assert_eq!(mesh.journal.since(60).entries[0].changed_objects, 300);
    assert!(mesh.journal.since(0).earlier(60).is_none(), "too many objects changed at once");
}
