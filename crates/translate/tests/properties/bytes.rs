//! Equal meshes give equal bytes. Versions are hashes of the bytes, and clients must not be sent what they have.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::{Resource, TypeUrl};
use model::change::Change;
use model::config::Object;
use model::proxy::Proxy;
use model::snapshot::Snapshot;
use proptest::prelude::{Just, ProptestConfig, Strategy, proptest};
use proptest::{prop_assert, prop_assert_eq};
use translate::{Recipe, recipe, recipes};

use crate::mesh::{batch, clients, empty, objects, view, world};

/// Route tables that clients of these meshes request, and an unknown one.
const ROUTES: &[&str] = &["80", "443", "9000", "http.80", "cart.example.com:80", "none"];

/// Everything that a client is sent, in order.
fn sent(world: &Snapshot, proxy: &Arc<Proxy>) -> Vec<Resource> {
    let view = view(world, proxy);
    let problems = &mut Vec::new();
    let types = [TypeUrl::CLUSTER, TypeUrl::LISTENER, TypeUrl::ENDPOINT, TypeUrl::EXTENSION, TypeUrl::NAME_TABLE];
    let mut all: Vec<Recipe> = types.iter().flat_map(|kind| recipes(&view, kind, problems)).collect();
    all.extend(ROUTES.iter().filter_map(|name| recipe(&view, &TypeUrl::ROUTE, name, problems)));
    all.iter().map(Recipe::render).collect()
}

/// The same mesh twice, in two orders.
fn in_two_orders() -> impl Strategy<Value = (Vec<Object>, Vec<Object>)> {
    objects().prop_flat_map(|objects| (Just(objects.clone()), Just(objects).prop_shuffle()))
}

/// The mesh of these objects, applied one by one.
fn applied_singly(objects: Vec<Object>) -> Snapshot {
    objects.into_iter().fold(empty(), |world, object| world.apply(vec![batch(vec![Change::Applied(object)])]).0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn order_of_objects_does_not_show_in_what_is_sent((first, second) in in_two_orders()) {
        let (at_once, singly) = (world(&first), applied_singly(second));
        for proxy in clients() {
            let (expected, found) = (sent(&at_once, &proxy), sent(&singly, &proxy));
            let names = |list: &[Resource]| list.iter().map(|r| r.name.clone()).collect::<Vec<_>>();
            prop_assert_eq!(names(&expected), names(&found));
            let differing: Vec<_> = expected.iter().zip(&found).filter(|(a, b)| a != b).map(|(a, _)| &a.name).collect();
            prop_assert!(differing.is_empty(), "{} is sent other bytes of {:?}", proxy.id, differing);
        }
    }

    #[test]
    fn same_mesh_is_sent_as_the_same_bytes(objects in objects()) {
        let world = world(&objects);
        for proxy in clients() {
            prop_assert!(sent(&world, &proxy) == sent(&world, &proxy));
        }
    }

    #[test]
    fn no_two_clusters_or_listeners_share_a_name(objects in objects()) {
        let world = world(&objects);
        for proxy in clients() {
            let view = view(&world, &proxy);
            for kind in [TypeUrl::CLUSTER, TypeUrl::LISTENER] {
                let list = recipes(&view, &kind, &mut Vec::new());
                let names: BTreeSet<_> = list.iter().map(|recipe| &recipe.name).collect();
                prop_assert_eq!(names.len(), list.len());
            }
        }
    }
}
