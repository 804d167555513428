//! Equal meshes give equal bytes: versions are hashes of them, and clients must not be sent what they have.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::Resource;
use model::change::Change;
use model::config::Object;
use model::proxy::Proxy;
use model::snapshot::Snapshot;
use proptest::prelude::{Just, ProptestConfig, Strategy, proptest};
use proptest::{prop_assert, prop_assert_eq};
use translate::client::{self, sidecar};
use translate::{patch, render};

use crate::mesh::{batch, clients, empty, objects, view, world};

/// Route tables that the clients of these meshes ask for, and one that none has.
const ROUTES: &[&str] = &["80", "443", "9000", "http.80", "cart.example.com:80", "none"];

/// Everything that a client is sent, in order.
fn sent(world: &Snapshot, proxy: &Arc<Proxy>) -> Vec<Resource> {
    let view = view(world, proxy);
    let clusters: Vec<Resource> =
        client::clusters(&view, &mut Vec::new()).iter().map(patch::cluster::resource).collect();
    let listeners = client::listeners(&view, &mut Vec::new()).iter().map(patch::listener::resource).collect::<Vec<_>>();
    let endpoints: Vec<Resource> = clusters
        .iter()
        .filter_map(|cluster| sidecar::endpoints(&view, &cluster.name))
        .map(|plan| Resource::new(plan.name.clone(), &render::endpoints::endpoints(&plan)))
        .collect();
    let routes: Vec<Resource> = ROUTES
        .iter()
        .filter_map(|name| client::route(&view, name, &mut Vec::new()))
        .map(|wanted| patch::route::resource(&wanted, render::route::resource))
        .collect();
    let names = Resource::new("", &render::names::name_table(&sidecar::name_table(&view)));
    clusters.into_iter().chain(listeners).chain(endpoints).chain(routes).chain([names]).collect()
}

/// The same mesh twice, in two orders.
fn in_two_orders() -> impl Strategy<Value = (Vec<Object>, Vec<Object>)> {
    objects().prop_flat_map(|objects| (Just(objects.clone()), Just(objects).prop_shuffle()))
}

/// The mesh of these objects, told one by one.
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
            let clusters: Vec<Resource> = client::clusters(&view, &mut Vec::new()).iter().map(patch::cluster::resource).collect();
            let listeners: Vec<Resource> = client::listeners(&view, &mut Vec::new()).iter().map(patch::listener::resource).collect();
            for list in [clusters, listeners] {
                let names: BTreeSet<_> = list.iter().map(|r| &r.name).collect();
                prop_assert_eq!(names.len(), list.len());
            }
        }
    }
}
