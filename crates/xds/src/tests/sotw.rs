//! Rules of the state-of-the-world protocol, one test each.

use api::TypeUrl;
use api::envoy::service::discovery::v3::DiscoveryRequest;
use tonic::Code;

use super::{NOTHING, Stream, World, owned};
use crate::limits::Limits;
use crate::payload::Protocol;

fn stream(world: &str) -> Stream {
    Stream::new(Protocol::Sotw, world)
}

#[test]
fn first_request_without_names_gets_every_cluster() {
    let mut stream = stream("CDS a=1 b=1");
    assert_eq!(stream.want("CDS", &[]), ["CDS a=1 b=1"]);
    assert_eq!(stream.ack("CDS"), NOTHING);
    assert_eq!(stream.events(), ["CDS wants 0 names, all: true", "CDS sent 2-0", "CDS acked"]);
}

#[test]
fn empty_world_is_an_answer_too() {
    assert_eq!(stream("CDS; LDS").want("LDS", &[]), ["LDS"]);
}

#[test]
fn type_that_is_not_served_gets_no_answer() {
    let mut stream = stream("CDS a=1");
    assert_eq!(stream.want("type.googleapis.com/unknown", &[]), NOTHING);
    assert_eq!(stream.want("CDS", &[]), ["CDS a=1"]);
}

#[test]
fn empty_nonce_asks_for_everything_again() {
    let mut stream = stream("CDS a=1");
    stream.want("CDS", &[]);
    stream.ack("CDS");
    assert_eq!(stream.request("CDS", "", None), ["CDS a=1"]);
}

#[test]
fn repeated_first_request_waits_for_the_answer_on_its_way() {
    let mut stream = stream("EDS a=1 b=1");
    assert_eq!(stream.want("EDS", &["a"]), ["EDS a=1"]);
    stream.names.insert(TypeUrl::ENDPOINT, owned(&["a", "b"]));
    assert_eq!(stream.request("EDS", "", None), NOTHING);
    assert_eq!(stream.ack("EDS"), ["EDS b=1"]);
}

#[test]
fn nonce_of_another_server_begins_a_subscription() {
    assert_eq!(stream("CDS a=1").request("CDS", "0000000000000001-9", None), ["CDS a=1"]);
}

#[test]
fn wildcard_left_out_for_a_moment_is_sent_again() {
    let mut stream = stream("EDS c=1");
    assert_eq!(stream.want("EDS", &["*"]), ["EDS c=1"]);
    stream.ack("EDS");
    let before = stream.nonces[&TypeUrl::ENDPOINT].clone();
    assert_eq!(stream.world("EDS a=1 c=1"), ["EDS a=1"]);
    // Sent before the client read that response: it unsubscribed, dropped everything, and subscribes to all again.
    for names in [&[][..], &["*"]] {
        stream.names.insert(TypeUrl::ENDPOINT, owned(names));
        assert_eq!(stream.request("EDS", &before, None), NOTHING);
    }
    assert_eq!(stream.ack("EDS"), ["EDS a=1 c=1"]);
}

#[test]
fn stale_nonce_is_counted_and_otherwise_ignored() {
    let mut stream = stream("RDS a=1 b=1");
    stream.want("RDS", &["a"]);
    let stale = stream.nonces[&TypeUrl::ROUTE].clone();
    stream.ack("RDS");
    assert_eq!(stream.world("RDS a=2 b=1"), ["RDS a=2"]);
    stream.events();
    stream.names.insert(TypeUrl::ROUTE, owned(&["a", "b"]));
    assert_eq!(stream.request("RDS", &stale, None), NOTHING);
    assert_eq!(stream.events(), ["RDS stale"]);
    assert_eq!(stream.ack("RDS"), ["RDS b=1"]);
}

#[test]
fn rejected_set_is_not_sent_again_but_a_newer_one_is() {
    let mut stream = stream("CDS a=1");
    stream.want("CDS", &[]);
    stream.events();
    assert_eq!(stream.nack("CDS"), NOTHING);
    assert_eq!(stream.events(), ["CDS nacked: bad"]);
    assert_eq!(stream.world("CDS a=1"), NOTHING);
    assert_eq!(stream.world("CDS a=2"), ["CDS a=2"]);
}

#[test]
fn added_names_get_their_resources_only() {
    let mut stream = stream("EDS a=1 b=1 c=1");
    stream.want("EDS", &["a"]);
    stream.ack("EDS");
    assert_eq!(stream.want("EDS", &["a", "c"]), ["EDS c=1"]);
}

#[test]
fn removed_names_get_silence() {
    let mut stream = stream("EDS a=1 b=1");
    stream.want("EDS", &["a", "b"]);
    stream.ack("EDS");
    assert_eq!(stream.want("EDS", &["a"]), NOTHING);
    assert_eq!(stream.world("EDS a=1 b=2"), NOTHING);
}

#[test]
fn name_that_comes_back_is_sent_again() {
    let mut stream = stream("EDS a=1 b=1");
    stream.want("EDS", &["a", "b"]);
    stream.want("EDS", &["a"]);
    assert_eq!(stream.want("EDS", &["a", "b"]), ["EDS b=1"]);
}

#[test]
fn empty_names_end_a_named_subscription() {
    for short in ["EDS", "RDS", "SDS", "ECDS"] {
        let mut stream = stream(&format!("{short} a=1"));
        stream.want(short, &["a"]);
        stream.events();
        assert_eq!(stream.want(short, &[]), NOTHING);
        assert_eq!(stream.events(), [format!("{short} acked"), format!("{short} wants nothing")]);
        assert_eq!(stream.world(&format!("{short} a=2")), NOTHING);
    }
}

#[test]
fn asking_again_for_nothing_gets_nothing() {
    let mut stream = stream("LDS a=1");
    stream.want("LDS", &["a"]);
    assert_eq!(stream.want("LDS", &[]), NOTHING);
    assert_eq!(stream.request("LDS", "", None), NOTHING);
}

#[test]
fn endpoint_change_carries_the_changed_cluster_only() {
    let mut stream = stream("EDS a=1 b=1");
    stream.want("EDS", &["a", "b"]);
    stream.ack("EDS");
    assert_eq!(stream.world("EDS a=1 b=2"), ["EDS b=2"]);
}

#[test]
fn named_listeners_are_listed_whole_and_a_missing_one_by_its_absence() {
    let mut stream = stream("LDS a=1 b=1 c=1");
    assert_eq!(stream.want("LDS", &["a", "z"]), ["LDS a=1"]);
    assert_eq!(stream.want("LDS", &["a", "b", "z"]), ["LDS a=1 b=1"]);
    stream.ack("LDS");
    assert_eq!(stream.world("LDS a=1 b=2 c=2"), ["LDS a=1 b=2"]);
}

#[test]
fn fallback_answers_for_unlisted_names_and_is_not_repeated() {
    let mut stream = stream("RDS a=1");
    assert_eq!(stream.want("RDS", &["a", "~80", "z"]), ["RDS a=1 ~80=fallback"]);
    stream.ack("RDS");
    assert_eq!(stream.world("RDS a=2"), ["RDS a=2"]);
    stream.ack("RDS");
    assert_eq!(stream.world("RDS a=2 ~80=real"), ["RDS ~80=real"]);
    stream.ack("RDS");
    assert_eq!(stream.world("RDS a=2"), ["RDS ~80=fallback"]);
}

#[test]
fn unlisted_name_is_sent_when_it_comes_and_when_it_comes_back() {
    let mut stream = stream("SDS");
    let move_to = |stream: &mut Stream, answers: fn(&TypeUrl, &str) -> bool| {
        stream.adopt_with(World::of("SDS"), answers);
        stream.session.world_moved();
        let decoded = stream.responses();
        stream.ack("SDS");
        decoded
    };
    assert_eq!(stream.want("SDS", &["key"]), NOTHING);
    assert_eq!(move_to(&mut stream, |_, _| false), NOTHING);
    assert_eq!(move_to(&mut stream, |_, name| name == "key"), ["SDS key=fallback"]);
    move_to(&mut stream, |_, _| false);
    assert_eq!(move_to(&mut stream, |_, name| name == "key"), ["SDS key=fallback"]);
}

#[test]
fn slow_client_skips_to_the_newest_world() {
    let mut stream = stream("CDS a=1");
    stream.want("CDS", &[]);
    assert_eq!(stream.world("CDS a=2"), NOTHING);
    assert_eq!(stream.world("CDS a=3"), NOTHING);
    assert_eq!(stream.ack("CDS"), ["CDS a=3"]);
}

#[test]
fn change_undone_before_the_answer_is_not_sent() {
    let mut stream = stream("CDS a=1");
    stream.want("CDS", &[]);
    stream.world("CDS a=2");
    stream.world("CDS a=1");
    assert_eq!(stream.ack("CDS"), NOTHING);
}

#[test]
fn debug_page_answers_each_request_and_is_no_subscription() {
    let mut stream = stream("istio.io/debug ~syncz=x; CDS");
    assert_eq!(stream.want("istio.io/debug", &["~syncz"]), ["istio.io/debug ~syncz=x"]);
    assert_eq!(stream.ack("istio.io/debug"), NOTHING);
    assert_eq!(stream.world("istio.io/debug ~syncz=y; CDS"), NOTHING);
    assert_eq!(stream.request("istio.io/debug", "", None), ["istio.io/debug ~syncz=y"]);
}

#[test]
fn health_report_reaches_the_control_plane_and_gets_no_answer() {
    let mut stream = stream("CDS");
    let health = TypeUrl::HEALTH.to_string();
    assert_eq!(stream.request(&health, "", None), NOTHING);
    assert_eq!(stream.request(&health, "", Some("connection refused")), NOTHING);
    assert_eq!(stream.events(), ["health: None", "health: Some(\"connection refused\")"]);
}

#[test]
fn requests_beyond_the_limits_are_typed_errors() {
    let limits = Limits { names: 2, name_bytes: 3, types: 1, ..Limits::default() };
    let mut stream = Stream::with(Protocol::Sotw, None, limits, "CDS");
    let mut code = |kind: &str, names: &[&str]| {
        let request = DiscoveryRequest { type_url: kind.into(), resource_names: owned(names), ..Default::default() };
        stream.session.sotw(request).map_err(|status| status.code())
    };
    assert_eq!(code("x", &["a", "b", "c"]), Err(Code::ResourceExhausted));
    assert_eq!(code("x", &["long"]), Err(Code::InvalidArgument));
    assert_eq!(code("", &[]), Err(Code::InvalidArgument));
    assert_eq!(code("x", &["a"]), Ok(()));
    assert_eq!(code("y", &[]), Err(Code::ResourceExhausted));
}

#[test]
fn single_type_service_implies_its_type_and_refuses_others() {
    let mut stream = Stream::with(Protocol::Sotw, Some(TypeUrl::CLUSTER), Limits::default(), "CDS a=1");
    stream.session.sotw(DiscoveryRequest::default()).unwrap();
    assert_eq!(stream.responses(), ["CDS a=1"]);
    let other = DiscoveryRequest { type_url: TypeUrl::ROUTE.to_string(), ..Default::default() };
    assert_eq!(stream.session.sotw(other).unwrap_err().code(), Code::InvalidArgument);
}
