//! `/v1/registration`: every service inside the mesh with its endpoints, in the shape of Pilot 0.8's REST
//! interface. Upstream dropped it in 1.5; scripts of that time still read it.

use std::sync::{Arc, Weak};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use model::endpoint::Endpoint;
use model::service::Service;
use model::snapshot::Snapshot;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{Answer, Full, Outgoing, Pages, answered, too_many_readers};

/// Lists that are made, but not read yet: one for each epoch in which somebody asked.
const BYTES: usize = 64 << 20;

/// The list as it was last made, as long as somebody reads it. Anybody may ask for it, and all readers share it.
pub(super) struct Registration {
    last: Mutex<(u64, Weak<Bytes>)>,
    outgoing: Outgoing,
}

impl Default for Registration {
    fn default() -> Registration {
        Registration { last: Mutex::default(), outgoing: Outgoing::new(BYTES) }
    }
}

/// One reader's hold on the list.
struct Reader(Arc<Bytes>);

impl AsRef<[u8]> for Reader {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

pub(super) async fn page(State(pages): State<Pages>) -> Response {
    let epoch = pages.pilot().world().now();
    let registration = &pages.0.registration;
    // Made by one request, while others wait for it.
    let mut last = registration.last.lock().await;
    let shared = last.1.upgrade().filter(|_| last.0 == epoch.number);
    let list = match shared {
        Some(list) => list,
        None => {
            let number = epoch.number;
            let made = tokio::task::spawn_blocking(move || registration_of(&epoch.snapshot).to_string()).await;
            let Ok(text) = made else { return Answer::failed("could not make this page").into_response() };
            let list = match registration.outgoing.try_hold(text.into()) {
                Ok(list) => Arc::new(list),
                Err(Full) => return too_many_readers(),
            };
            *last = (number, Arc::downgrade(&list));
            list
        }
    };
    answered(StatusCode::OK, "application/json", Bytes::from_owner(Reader(list)))
}

fn registration_of(world: &Snapshot) -> Value {
    let inside = world.services.iter().filter(|service| !service.mesh_external);
    let mut found: Vec<(String, Value)> = inside.flat_map(|service| ports(world, service)).collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    // Two addresses of one host are two services here and were one there.
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
