//! `/v1/registration`: every service inside the mesh with its endpoints, in the format of Pilot 0.8's REST interface.
//! Upstream removed it in 1.5; old scripts still read it.

use axum::extract::State;
use axum::response::Response;
use model::endpoint::Endpoint;
use model::service::Service;
use model::snapshot::Snapshot;
use serde_json::{Value, json};

use super::Pages;

pub(super) async fn page(State(pages): State<Pages>) -> Response {
    let published = pages.pilot().world().now();
    let number = published.number;
    pages.0.registration.read(number, move || Some(registration_of(&published.snapshot).to_string())).await
}

fn registration_of(world: &Snapshot) -> Value {
    let inside = world.services.iter().filter(|service| !service.mesh_external);
    let mut found: Vec<(String, Value)> = inside.flat_map(|service| ports(world, service)).collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    // A host with two addresses is two services here and was one in Pilot 0.8.
    found.dedup_by(|(one, _), (other, _)| one == other);
    found.into_iter().map(|(key, hosts)| json!({"service-key": key, "hosts": hosts})).collect()
}

fn ports<'a>(world: &'a Snapshot, service: &'a Service) -> impl Iterator<Item = (String, Value)> + 'a {
    service.ports.iter().map(|port| {
        let of_port = |endpoint: &&Endpoint| *endpoint.service_port == *port.name;
        let hosts =
            world.endpoints.of(&service.key()).filter(of_port).filter_map(|endpoint| {
                Some(json!({"ip_address": &**endpoint.addresses.first()?, "port": endpoint.port}))
            });
        (format!("{}|{}", service.hostname, port.name), hosts.collect())
    })
}
