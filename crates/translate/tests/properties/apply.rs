//! A snapshot changed step by step equals one built from scratch.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::change::Change;
use model::config::{Meta, Object};
use model::names::Namespace;
use model::snapshot::Snapshot;
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::{prop_assert, prop_assert_eq};

use crate::mesh::{batch, clients, empty, object, objects, view, world};

/// Everything readable of a snapshot, one line per fact.
fn facts(world: &Snapshot) -> Vec<String> {
    let mut facts: Vec<String> = world.objects.iter().map(|(_, object)| format!("{object:?}")).collect();
    let root = world.settings.root_namespace();
    for service in world.services.iter() {
        let owners: Vec<_> = world.services.owners(&service.hostname).collect();
        facts.push(format!("{service:?} owned by {owners:?}"));
        for client in ["shop", "bank", "istio-system"] {
            let rules = world.routing.destination_rules(&Namespace::from(client), service, &root);
            facts.push(format!("{client} to {}: {rules:?}", service.hostname));
        }
    }
    for key in world.endpoints.services() {
        let shards: Vec<_> = world.endpoints.shards(key).collect();
        facts.push(format!("{key:?} has {shards:?}"));
        for address in world.endpoints.of(key).flat_map(|e| &e.addresses) {
            facts.push(format!("{address} serves {:?}", world.endpoints.at(address)));
        }
    }
    facts.extend(world.routing.virtual_services.iter().map(|rule| format!("{rule:?}")));
    facts.push(format!("{:?} {:?} {:?}", world.policy, world.gateways, world.sidecars));
    for client in clients() {
        let view = view(world, &client);
        facts.push(format!("{} sees {:?} and {:?}", client.id, view.services(), view.egress));
        facts.push(format!("{} serves {:?} and {:?}", client.id, view.inbound, view.gateway));
    }
    facts
}

/// One edit of a mesh: an object is written or removed.
#[derive(Clone, Debug)]
enum Edit {
    Write(Box<Object>),
    /// Index into the objects written so far.
    Remove(usize),
}

fn steps() -> impl Strategy<Value = Vec<(Edit, bool)>> {
    let write = object().prop_map(|object| Edit::Write(Box::new(object)));
    let remove = any::<usize>().prop_map(Edit::Remove);
    vec((prop_oneof![4 => write, 1 => remove], any::<bool>()), 0..24)
}

/// The same object with another resource version and location: its meaning is unchanged.
fn reread(object: &Object) -> Object {
    let meta = Meta { resource_version: "8".into(), location: None, ..Meta::clone(&object.meta) };
    Object { meta: Arc::new(meta), spec: object.spec.clone() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn steps_in_any_split_end_where_a_rebuild_does(steps in steps()) {
        let mut stepwise = empty();
        let mut left = BTreeMap::new();
        let mut waiting = Vec::new();
        for (step, applied_now) in steps {
            match step {
                Edit::Write(object) => {
                    left.insert(object.key(), Object::clone(&object));
                    waiting.push(Change::Applied(*object));
                }
                Edit::Remove(index) if !left.is_empty() => {
                    let key = left.keys().nth(index % left.len()).cloned().expect("the index is in range");
                    left.remove(&key);
                    waiting.push(Change::Deleted(key));
                }
                Edit::Remove(_) => {}
            }
            if applied_now {
                stepwise = stepwise.apply(vec![batch(std::mem::take(&mut waiting))]).0;
            }
        }
        stepwise = stepwise.apply(vec![batch(waiting)]).0;
        let rebuilt = world(&left.into_values().collect::<Vec<_>>());
        prop_assert_eq!(facts(&stepwise), facts(&rebuilt));
    }

    #[test]
    fn objects_that_mean_the_same_change_nothing(objects in objects()) {
        let before = world(&objects);
        let again = objects.iter().map(reread).map(Change::Applied).collect();
        let (after, delta) = before.apply(vec![batch(again)]);
        prop_assert!(delta.is_empty(), "{:?}", delta);
        prop_assert!(Arc::ptr_eq(&before.routing, &after.routing) && Arc::ptr_eq(&before.services, &after.services));
    }

    #[test]
    fn removed_objects_leave_nothing_behind(objects in objects()) {
        let gone = objects.iter().map(|object| Change::Deleted(object.key())).collect();
        let (after, delta) = world(&objects).apply(vec![batch(gone)]);
        prop_assert_eq!(facts(&after), facts(&empty()));
        prop_assert_eq!(delta.objects.len(), objects.len());
    }
}
