//! Which clients share layers: those that agree in what is read, and no others.

use std::sync::Arc;

use api::TypeUrl;
use model::change::Change;
use model::config::mesh::parse_networks;
use model::config::parse::documents;
use model::proxy::Proxy;
use model::settings::Settings;
use tokio::sync::mpsc;

use super::mesh::{OBJECT_SLOTS, change, client, client_in, clients, object, slot};
use super::{batch, computed, served};
use crate::serve::pins::{Pin, Pins};
use crate::serve::rendered::RenderedView;
use crate::serve::snapshot_writer::PublishedSnapshot;
use crate::serve::views::{Placement, Views};

fn published(changes: Vec<Change>) -> Arc<PublishedSnapshot> {
    let first = PublishedSnapshot::empty(Settings::default());
    let (snapshot, delta) = first.snapshot.apply(vec![batch(changes)]);
    Arc::new(first.next(snapshot, Some(delta)))
}

/// The layers that these clients need: of resources, of load assignments, and of route tables. Each client is served what it
/// would get alone.
fn layers(published: &Arc<PublishedSnapshot>, clients: &[Arc<Proxy>]) -> [usize; 3] {
    let views = Views::new(mpsc::channel(1000).0);
    let held: Vec<(Placement, Arc<RenderedView>)> =
        clients.iter().map(|proxy| views.cut(published, proxy, &Pins::new(), None)).collect();
    for (_, cut) in &held {
        [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER].iter().for_each(|kind| _ = cut.set(kind).unwrap());
        cut.set(&TypeUrl::ROUTE).unwrap().get("80").unwrap();
    }
    let found = views.layers().len();
    for (proxy, (_, cut)) in clients.iter().zip(&held) {
        assert!(served(cut) == computed(&published.snapshot, proxy, &Pins::new()), "{}", proxy.id);
    }
    found
}

#[test]
fn different_workloads_share_their_outbound_layers() {
    let published = published((0..2).map(|slot| Change::Applied(object(slot, 0))).collect());
    let sidecar = |n: usize| {
        let namespace = ["shop", "bank"][n % 2];
        let id = format!("sidecar~10.9.0.{n}~w-{n}.{namespace}~{namespace}.svc.cluster.local");
        client(&id, &format!("w{n}"), "z1", &format!("n{n}"))
    };
    let [resources, endpoints, routes] = layers(&published, &(0..20).map(sidecar).collect::<Vec<_>>());
    // Clusters and endpoints are the same for all; outbound listeners and routes differ by namespace. Each workload has
    // its own inbound listeners, because policies select by labels.
    assert_eq!((endpoints, routes), (1, 2));
    assert!(resources <= 20 + 4, "{resources} layers of clusters and listeners");
}

/// Layers of resources that do not depend on the place of a client: clusters of both directions and outbound listeners.
/// Inbound listeners read all labels, as policies select by them, and the name of the machine is a label.
const PLACELESS: usize = 3;

/// Two replicas in each of two zones and two networks, each on a separate machine.
fn placed_clients() -> Vec<Arc<Proxy>> {
    let places = [("z1", "n1"), ("z2", "n1"), ("z1", "n2"), ("z2", "n2")];
    let clients = places.iter().cycle().take(8).enumerate().map(|(n, (zone, network))| {
        client_in(
            &format!("sidecar~10.9.0.{n}~w-{n}.shop~shop.svc.cluster.local"),
            "w",
            zone,
            &format!("n{n}"),
            network,
        )
    });
    clients.collect()
}

/// A service with an endpoint in each zone and network, with a rule.
fn placed_service(rule: &str) -> Vec<Change> {
    let text = format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: cart, namespace: shop}}\nspec: {{hosts: \
         [cart.example.com], ports: [{{number: 80, name: http, protocol: HTTP}}], resolution: STATIC, location: MESH_INTERNAL, \
         endpoints: [{{address: 10.0.0.1, locality: r1/z1, network: n1}}, {{address: 10.0.0.2, locality: r1/z2, network: \
         n2}}]}}\n---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: cart, namespace: \
         shop}}\nspec: {{host: cart.example.com, trafficPolicy: {rule}}}\n"
    );
    let parsed = documents(&text, "mesh.yaml");
    assert!(parsed.problems.is_empty(), "{:?}", parsed.problems);
    parsed.objects.into_iter().map(Change::Applied).collect()
}

#[test]
fn locality_splits_layers_only_where_load_balancing_reads_it() {
    let clients = placed_clients();
    let plain = published(placed_service("{loadBalancer: {simple: RANDOM}}"));
    let [resources, endpoints, routes] = layers(&plain, &clients);
    assert_eq!((resources, endpoints, routes), (PLACELESS + clients.len(), 1, 1), "locality and network split nothing");
    // Only with outlier detection are endpoints ranked by locality.
    let ranked = published(placed_service("{outlierDetection: {consecutive5xxErrors: 3}}"));
    let [resources, endpoints, routes] = layers(&ranked, &clients);
    let expected = (PLACELESS + clients.len(), 2, 1);
    assert_eq!((resources, endpoints, routes), expected, "one layer of load assignments for each zone");
}

#[test]
fn network_splits_layers_only_where_there_are_networks() {
    let networks = "{networks: {n1: {endpoints: [{fromRegistry: one}], gateways: [{address: 1.2.3.4, port: 15443}]}, n2: \
                    {endpoints: [{fromRegistry: two}], gateways: [{address: 1.2.3.5, port: 15443}]}}}";
    let (networks, problems) = parse_networks(networks, "networks");
    assert!(problems.is_empty(), "{problems:?}");
    let mut changes = placed_service("{loadBalancer: {simple: RANDOM}}");
    changes.push(Change::Networks(networks));
    let clients = placed_clients();
    let [resources, endpoints, routes] = layers(&published(changes), &clients);
    let expected = (PLACELESS + clients.len(), 2, 1);
    assert_eq!((resources, endpoints, routes), expected, "one layer of load assignments for each network");
}

/// By OpenTelemetry's conventions the service of a proxy without a workload name has the name of its pod.
#[test]
fn replicas_with_names_of_their_pods_share_no_class() {
    let traced = [(slot("ServiceEntry", "cart"), 0), (slot("Telemetry", "mesh"), 0), (OBJECT_SLOTS, 3)];
    let changes = traced.into_iter().map(|(slot, variant)| change(slot, variant)).collect();
    layers(&published(changes), &clients());
}

/// The version that a pin serves may read what the current one does not: the name of a pod, or an address.
#[test]
fn class_of_a_client_with_pins_follows_the_pinned_objects() {
    let published = published(vec![change(slot("ServiceEntry", "cart"), 0)]);
    let views = Views::new(mpsc::channel(1000).0);
    for (kind, name, variant) in [("EnvoyFilter", "patch", 2), ("Sidecar", "default", 2), ("ServiceEntry", "pay", 1)] {
        let good = object(slot(kind, name), variant);
        let pins: Pins = [(good.key(), Pin { bad: None, good: Some(good) })].into_iter().collect();
        let clients = clients();
        let held: Vec<_> = clients.iter().map(|proxy| views.cut(&published, proxy, &pins, None)).collect();
        for (proxy, (_, cut)) in clients.iter().zip(&held) {
            assert!(served(cut) == computed(&published.snapshot, proxy, &pins), "{} with {kind}", proxy.id);
        }
    }
}
