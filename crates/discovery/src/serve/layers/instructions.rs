//! Instruction counts of the steps from a changed object to what clients are served. A change must cost what it
//! changes: these steps run on a mesh of 100 services and 20 different workloads.

use std::path::Path;
use std::sync::Arc;

use api::TypeUrl;
use model::change::{Batch, Change, SourceId};
use model::config::Object;
use model::config::parse::documents;
use model::proxy::Proxy;
use model::settings::Settings;
use tokio::sync::mpsc;

use super::tests::mesh::client;
use crate::serve::pins::Pins;
use crate::serve::rendered::RenderedView;
use crate::serve::snapshot_writer::PublishedSnapshot;
use crate::serve::views::{Placement, Views};

const SERVICES: usize = 100;
const ENDPOINTS: usize = 10;
const WORKLOADS: usize = 20;
const NAMESPACES: usize = 4;

/// A service with its endpoints; one address depends on the edit.
fn service(n: usize, edit: usize) -> String {
    let endpoints: Vec<String> = (0..ENDPOINTS).map(|e| format!("{{address: 10.{n}.{edit}.{e}}}")).collect();
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{n}, namespace: ns{}}}\nspec: {{hosts: \
         [s{n}.example.com], ports: [{{number: 80, name: http, protocol: HTTP}}], resolution: STATIC, location: \
         MESH_INTERNAL, endpoints: [{}]}}\n---\n",
        n % NAMESPACES,
        endpoints.join(", ")
    )
}

fn route(n: usize, seconds: usize) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: s{n}, namespace: ns{}}}\nspec: {{hosts: \
         [s{n}.example.com], http: [{{timeout: {seconds}s, route: [{{destination: {{host: s{n}.example.com}}}}]}}]}}\n---\n",
        n % NAMESPACES
    )
}

fn batch(objects: Vec<Object>) -> Vec<Batch> {
    let changes = objects.into_iter().map(Change::Applied).collect();
    vec![Batch { source: SourceId("files".into()), changes }]
}

/// One connected client.
struct Follower {
    proxy: Arc<Proxy>,
    placement: Option<Placement>,
    view: Option<Arc<RenderedView>>,
}

impl Follower {
    fn new(n: usize) -> Follower {
        let namespace = n % NAMESPACES;
        let id = format!("sidecar~10.250.0.{n}~w{n}.ns{namespace}~ns{namespace}.svc.cluster.local");
        let proxy = client(&id, &format!("w{n}"), "z1", &format!("n{n}"));
        Follower { proxy, placement: None, view: None }
    }

    /// Adopts a snapshot and computes everything that a sidecar subscribes to.
    fn follow(&mut self, views: &Views, published: &Arc<PublishedSnapshot>) {
        let (placement, view) = views.cut(published, &self.proxy, &Pins::new(), self.placement.as_ref());
        for kind in [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER] {
            view.set(&kind).unwrap();
        }
        view.set(&TypeUrl::ROUTE).unwrap().get("80").unwrap();
        (self.placement, self.view) = (Some(placement), Some(view));
    }
}

/// Not inside the steps: the name of a closure contains the name of its function, and would count as a step.
fn follow_all(clients: &mut [Follower], views: &Views, published: &Arc<PublishedSnapshot>) {
    for client in clients {
        client.follow(views, published);
    }
}

#[inline(never)]
fn step_parse_200_objects(text: &str) -> Vec<Object> {
    documents(text, "mesh.yaml").objects
}

fn apply(published: &PublishedSnapshot, objects: Vec<Object>) -> Arc<PublishedSnapshot> {
    let (snapshot, delta) = published.snapshot.apply(batch(objects));
    Arc::new(published.next(snapshot, Some(delta)))
}

#[inline(never)]
fn step_apply_200_objects(published: &PublishedSnapshot, objects: Vec<Object>) -> Arc<PublishedSnapshot> {
    apply(published, objects)
}

#[inline(never)]
fn step_first_client(client: &mut Follower, views: &Views, published: &Arc<PublishedSnapshot>) {
    client.follow(views, published);
}

#[inline(never)]
fn step_19_more_clients(clients: &mut [Follower], views: &Views, published: &Arc<PublishedSnapshot>) {
    follow_all(clients, views, published);
}

#[inline(never)]
fn step_apply_one_endpoint(published: &PublishedSnapshot, objects: Vec<Object>) -> Arc<PublishedSnapshot> {
    apply(published, objects)
}

#[inline(never)]
fn step_20_clients_follow_one_endpoint(clients: &mut [Follower], views: &Views, published: &Arc<PublishedSnapshot>) {
    follow_all(clients, views, published);
}

#[inline(never)]
fn step_apply_one_route(published: &PublishedSnapshot, objects: Vec<Object>) -> Arc<PublishedSnapshot> {
    apply(published, objects)
}

#[inline(never)]
fn step_20_clients_follow_one_route(clients: &mut [Follower], views: &Views, published: &Arc<PublishedSnapshot>) {
    follow_all(clients, views, published);
}

#[test]
#[ignore = "runs under valgrind, called by the test below"]
fn all_steps() {
    let views = Views::new(mpsc::channel(1000).0);
    let text: String = (0..SERVICES).map(|n| service(n, 0) + &route(n, 1)).collect();
    // The first document of a process also reads the descriptors of all kinds.
    documents(&service(0, 0), "mesh.yaml");
    let objects = step_parse_200_objects(&text);
    assert_eq!(objects.len(), 2 * SERVICES);
    let published = step_apply_200_objects(&PublishedSnapshot::empty(Settings::default()), objects);
    let mut clients: Vec<Follower> = (0..WORKLOADS).map(Follower::new).collect();
    step_first_client(&mut clients[0], &views, &published);
    step_19_more_clients(&mut clients[1..], &views, &published);
    let published = step_apply_one_endpoint(&published, documents(&service(7, 1), "mesh.yaml").objects);
    step_20_clients_follow_one_endpoint(&mut clients, &views, &published);
    let published = step_apply_one_route(&published, documents(&route(7, 2), "mesh.yaml").objects);
    step_20_clients_follow_one_route(&mut clients, &views, &published);
}

#[test]
fn steps_take_as_many_instructions_as_recorded() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/serve/layers/instructions.txt");
    testkit::instructions::compare("serve::layers::instructions::all_steps", &recorded);
}
