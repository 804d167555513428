//! Rules of the delta protocol, one test each.

use std::sync::Arc;
use std::time::Duration;

use api::TypeUrl;
use api::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use tonic::Code;

use super::{NOTHING, Stream, encoded, owned};
use crate::limits::Limits;
use crate::payload::Protocol;

fn stream(world: &str) -> Stream {
    Stream::new(Protocol::Delta, world)
}

#[test]
fn no_names_or_a_star_get_everything_and_then_changes_only() {
    for words in ["", "*"] {
        let mut stream = stream("CDS a=1 b=1");
        assert_eq!(stream.change("CDS", words), ["CDS a=1 b=1"]);
        stream.ack("CDS");
        assert_eq!(stream.world("CDS a=1 b=2 c=1"), ["CDS b=2 c=1"]);
        stream.ack("CDS");
        assert_eq!(stream.world("CDS b=2 c=1"), ["CDS -a"]);
        assert_eq!(stream.ack("CDS"), NOTHING);
    }
}

#[test]
fn empty_world_is_an_answer_too() {
    assert_eq!(stream("LDS").change("LDS", ""), ["LDS"]);
}

#[test]
fn star_subscribed_and_left_at_once_is_nothing() {
    let mut stream = stream("CDS a=1");
    assert_eq!(stream.change("CDS", "* -*"), NOTHING);
    assert_eq!(stream.world("CDS a=2"), NOTHING);
    assert_eq!(stream.change("CDS", "a"), ["CDS a=2"]);
}

#[test]
fn subscribed_names_are_answered_and_missing_ones_named() {
    let mut stream = stream("EDS a=1");
    assert_eq!(stream.change("EDS", "a z"), ["EDS a=1 -z"]);
    stream.ack("EDS");
    assert_eq!(stream.world("EDS a=1 z=1"), ["EDS z=1"]);
}

#[test]
fn missing_and_removed_extensions_are_not_named() {
    let mut stream = stream("ECDS a=1");
    assert_eq!(stream.change("ECDS", "a z"), ["ECDS a=1"]);
    stream.ack("ECDS");
    assert_eq!(stream.world("ECDS"), NOTHING);
    assert_eq!(stream.world("ECDS a=1"), ["ECDS a=1"]);
}

#[test]
fn name_asked_for_again_is_sent_again() {
    let mut stream = stream("RDS a=1 b=1");
    stream.change("RDS", "a b");
    stream.ack("RDS");
    assert_eq!(stream.change("RDS", "a"), ["RDS a=1"]);
    stream.ack("RDS");
    assert_eq!(stream.change("RDS", "-a"), NOTHING);
    assert_eq!(stream.change("RDS", "a"), ["RDS a=1"]);
}

#[test]
fn left_names_get_silence() {
    let mut stream = stream("EDS a=1 b=1");
    stream.change("EDS", "a b");
    stream.ack("EDS");
    assert_eq!(stream.change("EDS", "-b"), NOTHING);
    assert_eq!(stream.world("EDS a=1 b=2"), NOTHING);
    assert_eq!(stream.world("EDS a=1"), NOTHING);
}

#[test]
fn name_left_but_still_part_of_everything_is_confirmed() {
    let mut stream = stream("CDS a=1 b=1");
    stream.change("CDS", "* a ~x");
    stream.ack("CDS");
    assert_eq!(stream.change("CDS", "-a"), ["CDS a=1"]);
    stream.ack("CDS");
    assert_eq!(stream.change("CDS", "-~x"), ["CDS -~x"]);
}

#[test]
fn reconnecting_client_gets_only_what_it_lacks() {
    let mut stream = stream("CDS a=1 b=2 c=1; LDS; RDS r=1");
    assert_eq!(stream.change("CDS", "a@1 b@1 gone@1"), ["CDS b=2 c=1"]);
    assert_eq!(stream.ack("CDS"), NOTHING);
    assert_eq!(stream.change("LDS", "l@1"), ["LDS -l"]);
    assert_eq!(stream.ack("LDS"), NOTHING);
    assert_eq!(stream.change("RDS", "r r@1"), ["CDS -gone"]);
}

#[test]
fn reconnecting_client_that_lacks_nothing_gets_no_resource() {
    let mut stream = stream("CDS a=1; EDS a=1; RDS r=1");
    assert_eq!(stream.change("CDS", "a@1"), ["CDS"]);
    stream.ack("CDS");
    assert_eq!(stream.change("EDS", "a a@1"), NOTHING);
    assert_eq!(stream.change("RDS", "r r@1"), NOTHING);
    assert_eq!(stream.world("CDS a=1; EDS a=2; RDS r=1"), ["EDS a=2"]);
}

#[test]
fn streams_that_want_all_of_a_layer_share_its_names() {
    let mut first = stream("EDS a=1 b=1 c=1");
    assert_eq!(first.change("EDS", "c b a"), ["EDS a=1 b=1 c=1"]);
    let mut second = stream("");
    second.session.client.sets = first.session.client.sets.clone();
    assert_eq!(second.change("EDS", "a"), ["EDS a=1"]);
    let names = |stream: &mut Stream| stream.session.watch(&TypeUrl::ENDPOINT).unwrap().subscription.names.clone();
    assert!(!Arc::ptr_eq(&names(&mut first), &names(&mut second)));
    second.ack("EDS");
    assert_eq!(second.change("EDS", "b c"), ["EDS b=1 c=1"]);
    assert!(Arc::ptr_eq(&names(&mut first), &names(&mut second)));
    second.change("EDS", "-c");
    assert_eq!(names(&mut second).len(), 2);
    assert_eq!(names(&mut first).len(), 3, "the others keep theirs");
}

#[test]
fn version_of_another_server_is_replaced() {
    let mut stream = stream("CDS a=1");
    let mut request = DeltaDiscoveryRequest { type_url: TypeUrl::CLUSTER.to_string(), ..Default::default() };
    request.initial_resource_versions.insert("a".into(), "2026-11-15T00:00:00Z/3".into());
    request.initial_resource_versions.insert("old".into(), "".into());
    stream.session.delta(encoded(&request)).unwrap();
    assert_eq!(stream.responses(), ["CDS a=1"]);
    stream.ack("CDS");
    stream.now += Duration::from_secs(2);
    assert_eq!(stream.responses(), ["CDS -old"], "the client shows no interest in listeners and routes");
}

#[test]
fn cluster_resent_on_a_new_stream_gets_its_endpoints_although_they_are_held() {
    let mut stream = stream("CDS a=1 b=2; EDS a=1 b=1");
    assert_eq!(stream.change("CDS", "a@1 b@1"), ["CDS b=2"]);
    assert_eq!(stream.change("EDS", "a b a@1 b@1"), ["EDS b=1"]);
}

#[test]
fn endpoints_asked_for_before_clusters_are_all_sent() {
    let mut stream = stream("CDS a=1; EDS a=1");
    assert_eq!(stream.change("EDS", "a a@1"), ["EDS a=1"]);
}

#[test]
fn endpoint_service_without_clusters_trusts_what_the_client_holds() {
    let mut stream = Stream::with(Protocol::Delta, Some(TypeUrl::ENDPOINT), Limits::default(), "EDS a=1");
    assert_eq!(stream.change("EDS", "a a@1"), NOTHING);
}

#[test]
fn stale_nonce_acknowledges_nothing_but_its_names_count() {
    let mut stream = stream("RDS a=1 b=1");
    stream.change("RDS", "a");
    stream.events();
    let request = DeltaDiscoveryRequest {
        type_url: TypeUrl::ROUTE.to_string(),
        response_nonce: "stale".into(),
        resource_names_subscribe: owned(&["b"]),
        ..Default::default()
    };
    stream.session.delta(encoded(&request)).unwrap();
    assert_eq!(stream.responses(), NOTHING);
    assert_eq!(stream.events(), ["RDS stale", "RDS wants 2 names, all: false"]);
    assert_eq!(stream.ack("RDS"), ["RDS b=1"]);
}

#[test]
fn rejected_resource_is_not_sent_again_but_a_newer_one_is() {
    let mut stream = stream("LDS a=1 b=1");
    stream.change("LDS", "");
    stream.ack("LDS");
    assert_eq!(stream.world("LDS a=2 b=1"), ["LDS a=2"]);
    assert_eq!(stream.nack("LDS"), NOTHING);
    assert_eq!(stream.world("LDS a=2 b=2"), ["LDS b=2"]);
    stream.ack("LDS");
    assert_eq!(stream.world("LDS a=3 b=2"), ["LDS a=3"]);
}

#[test]
fn slow_client_skips_to_the_newest_world() {
    let mut stream = stream("LDS a=1");
    stream.change("LDS", "");
    assert_eq!(stream.world("LDS a=2 b=1"), NOTHING);
    assert_eq!(stream.world("LDS a=3"), NOTHING);
    assert_eq!(stream.ack("LDS"), ["LDS a=3"]);
}

#[test]
fn fallback_answers_for_unlisted_names() {
    let mut stream = stream("EDS a=1");
    assert_eq!(stream.change("EDS", "a ~x"), ["EDS a=1 ~x=fallback"]);
    stream.ack("EDS");
    assert_eq!(stream.world("EDS a=2"), ["EDS a=2"]);
    stream.ack("EDS");
    assert_eq!(stream.world("EDS a=2 ~x=1"), ["EDS ~x=1"]);
}

#[test]
fn names_over_the_limit_are_refused_also_in_small_portions() {
    let limits = Limits { names: 2, ..Limits::default() };
    let mut stream = Stream::with(Protocol::Delta, None, limits, "RDS");
    stream.change("RDS", "a b");
    let more = DeltaDiscoveryRequest {
        type_url: TypeUrl::ROUTE.to_string(),
        resource_names_subscribe: owned(&["c"]),
        ..Default::default()
    };
    assert_eq!(stream.session.delta(encoded(&more)).unwrap_err().code(), Code::ResourceExhausted);
}
