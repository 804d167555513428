//! Instruction counts of one stream: a first response, one changed resource of a thousand, and its acknowledgement.

use std::path::Path;
use std::sync::Arc;

use super::{DeltaDiscoveryRequest, Protocol, ResourceSet, Response, Stream, encoded, kind, resource};
use crate::layer::Layer;

const CLUSTERS: usize = 1000;

fn name(n: usize) -> String {
    format!("outbound|80||s{n}.default.svc.cluster.local")
}

fn serve(stream: &mut Stream, short: &str, layer: Arc<Layer>) {
    let set = ResourceSet::of_layers(kind(short), vec![layer]);
    stream.session.client.sets.insert(kind(short), Arc::new(set));
}

fn request(stream: &mut Stream, short: &str, nonce: &str, subscribe: Vec<String>) {
    let request = DeltaDiscoveryRequest {
        type_url: kind(short).to_string(),
        response_nonce: nonce.to_owned(),
        resource_names_subscribe: subscribe,
        ..Default::default()
    };
    stream.session.delta(encoded(&request)).unwrap();
}

#[inline(never)]
fn step_first_1000_clusters(stream: &mut Stream) -> Response {
    stream.session.next(stream.now).unwrap()
}

#[inline(never)]
fn step_subscribe_to_1000_endpoints(stream: &mut Stream, names: Vec<String>) {
    request(stream, "EDS", "", names);
}

#[inline(never)]
fn step_first_1000_endpoints(stream: &mut Stream) -> Response {
    stream.session.next(stream.now).unwrap()
}

#[inline(never)]
fn step_push_one_endpoint(stream: &mut Stream) -> Response {
    stream.session.world_moved();
    stream.session.next(stream.now).unwrap()
}

#[inline(never)]
fn step_acknowledge_one_endpoint(stream: &mut Stream, nonce: &str) {
    request(stream, "EDS", nonce, Vec::new());
    assert!(stream.session.next(stream.now).is_none());
}

#[test]
#[ignore = "runs under valgrind, called by the test below"]
fn all_steps() {
    let mut stream = Stream::new(Protocol::Delta, "");
    let all = || Arc::new(Layer::new((0..CLUSTERS).map(|n| resource(&name(n), "1"))));
    let endpoints = all();
    serve(&mut stream, "CDS", all());
    serve(&mut stream, "EDS", endpoints.clone());
    request(&mut stream, "CDS", "", Vec::new());
    let clusters = step_first_1000_clusters(&mut stream);
    stream.text(&clusters);
    stream.ack("CDS");
    step_subscribe_to_1000_endpoints(&mut stream, (0..CLUSTERS).map(name).collect());
    let response = step_first_1000_endpoints(&mut stream);
    stream.text(&response);
    stream.ack("EDS");
    let changed = endpoints.with([(name(7).into(), Some(resource(&name(7), "2")))]);
    serve(&mut stream, "EDS", Arc::new(changed));
    let response = step_push_one_endpoint(&mut stream);
    assert!(stream.text(&response).contains("=2"));
    let nonce = stream.nonces[&kind("EDS")].clone();
    step_acknowledge_one_endpoint(&mut stream, &nonce);
}

#[test]
fn steps_take_as_many_instructions_as_recorded() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/instructions.txt");
    testkit::instructions::compare("tests::instructions::all_steps", &recorded);
}
