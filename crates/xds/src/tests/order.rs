//! Order between types: clusters first, removals last, endpoints for every cluster that Envoy warms again.

use super::{NOTHING, Stream};
use crate::limits::Limits;
use crate::payload::Protocol;

/// A stream whose client watches the four types of an Envoy and has accepted this world.
fn envoy(protocol: Protocol, world: &str) -> Stream {
    let mut stream = Stream::new(protocol, world);
    match protocol {
        Protocol::Sotw => {
            stream.want("CDS", &[]);
            stream.want("EDS", &["a", "b"]);
            stream.want("LDS", &[]);
            stream.want("RDS", &["r"]);
        }
        Protocol::Delta => {
            stream.change("CDS", "");
            stream.change("EDS", "a b");
            stream.change("LDS", "");
            stream.change("RDS", "r");
        }
    }
    for short in ["CDS", "EDS", "LDS", "RDS"] {
        assert_eq!(stream.ack(short), NOTHING);
    }
    stream
}

#[test]
fn one_world_goes_out_in_push_order() {
    let before = "CDS a=1 b=1; EDS a=1 b=1; LDS l=1; RDS r=1";
    let after = "RDS r=2; LDS l=2; EDS a=2 b=1; CDS a=1 b=2";
    let mut sotw = envoy(Protocol::Sotw, before);
    assert_eq!(sotw.world(after), ["CDS a=1 b=2", "EDS a=2 b=1", "LDS l=2", "RDS r=2"]);
    let mut delta = envoy(Protocol::Delta, before);
    assert_eq!(delta.world(after), ["CDS b=2", "EDS a=2 b=1", "LDS l=2", "RDS r=2"]);
}

#[test]
fn routes_to_a_new_cluster_wait_until_the_client_took_it() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut stream = envoy(protocol, "CDS a=1; EDS a=1 b=1; LDS l=1; RDS r=a");
        let sent = stream.world("CDS a=1 c=1; EDS a=2 b=1; LDS l=1; RDS r=c");
        assert_eq!((sent.len(), sent[1].as_str()), (2, "EDS a=2"));
        assert_eq!(stream.ack("CDS"), ["RDS r=c"]);
    }
}

#[test]
fn changed_cluster_is_followed_by_its_unchanged_endpoints() {
    let before = "CDS a=1 b=1; EDS a=1 b=1; LDS l=1; RDS r=1";
    let after = "CDS a=2 b=1; EDS a=1 b=1; LDS l=1; RDS r=1";
    assert_eq!(envoy(Protocol::Sotw, before).world(after), ["CDS a=2 b=1", "EDS a=1"]);
    assert_eq!(envoy(Protocol::Delta, before).world(after), ["CDS a=2", "EDS a=1"]);
}

#[test]
fn endpoints_forced_while_others_are_on_their_way_follow_later() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut stream = envoy(protocol, "CDS a=1 b=1; EDS a=1 b=1; LDS; RDS r=1");
        assert_eq!(stream.world("CDS a=1 b=1; EDS a=1 b=2; LDS; RDS r=1"), ["EDS b=2"]);
        assert_eq!(stream.world("CDS a=2 b=1; EDS a=1 b=2; LDS; RDS r=1").len(), 1);
        assert_eq!(stream.ack("EDS"), ["EDS a=1"]);
    }
}

#[test]
fn clusters_asked_for_again_are_followed_by_all_endpoints() {
    let mut stream = envoy(Protocol::Sotw, "CDS a=1 b=1; EDS a=1 b=1; LDS l=1; RDS r=1");
    assert_eq!(stream.request("CDS", "", None), ["CDS a=1 b=1", "EDS a=1 b=1"]);
}

#[test]
fn delta_removes_a_cluster_after_the_routes_to_it() {
    let mut stream = envoy(Protocol::Delta, "CDS a=1 b=1; EDS a=1 b=1; LDS l=1; RDS r=1");
    assert_eq!(stream.world("CDS a=1 c=1; EDS a=1; LDS l=2; RDS r=2"), ["CDS c=1"]);
    assert_eq!(stream.ack("CDS"), ["LDS l=2", "RDS r=2"]);
    assert_eq!(stream.ack("LDS"), NOTHING);
    assert_eq!(stream.ack("RDS"), ["CDS -b", "EDS -b"]);
    assert_eq!(stream.settle(), NOTHING);
}

#[test]
fn sotw_lists_a_removed_cluster_until_the_routes_to_it_are_gone() {
    let mut stream = envoy(Protocol::Sotw, "CDS a=1 b=1; EDS a=1 b=1; LDS l=1; RDS r=1");
    assert_eq!(stream.world("CDS a=1 c=1; EDS a=1; LDS l=1; RDS r=2"), ["CDS a=1 c=1 b=1"]);
    let lingering = stream.session.watches[0].version;
    assert_eq!(stream.ack("CDS"), ["RDS r=2"]);
    assert_eq!(stream.ack("RDS"), ["CDS a=1 c=1"]);
    assert_ne!(stream.session.watches[0].version, lingering, "two contents, two versions");
    assert_eq!(stream.ack("CDS"), NOTHING);
}

#[test]
fn rejected_routes_free_removals_as_well() {
    let mut stream = envoy(Protocol::Delta, "CDS a=1 b=1; EDS a=1 b=1; LDS l=1; RDS r=1");
    assert_eq!(stream.world("CDS a=1; EDS a=1 b=1; LDS l=1; RDS r=2"), ["RDS r=2"]);
    assert_eq!(stream.nack("RDS"), ["CDS -b"]);
}

#[test]
fn removal_does_not_wait_for_what_did_not_change_or_is_not_watched() {
    let mut all = envoy(Protocol::Delta, "CDS a=1 b=1; EDS a=1 b=1; LDS l=1; RDS r=1");
    assert_eq!(all.world("CDS a=1; EDS a=1 b=1; LDS l=1; RDS r=1"), ["CDS -b"]);

    let mut clusters = Stream::new(Protocol::Sotw, "CDS a=1 b=1");
    clusters.want("CDS", &[]);
    clusters.ack("CDS");
    assert_eq!(clusters.world("CDS a=1"), ["CDS a=1"]);
}

#[test]
fn cluster_that_returns_while_it_lingers_is_not_removed() {
    let mut stream = envoy(Protocol::Delta, "CDS a=1 b=1; EDS a=1 b=1; LDS l=1; RDS r=1");
    assert_eq!(stream.world("CDS a=1; EDS a=1 b=1; LDS l=1; RDS r=2"), ["RDS r=2"]);
    assert_eq!(stream.world("CDS a=1 b=1; EDS a=1 b=1; LDS l=1; RDS r=2"), NOTHING);
    assert_eq!(stream.ack("RDS"), NOTHING);
}

#[test]
fn removals_are_not_held_up_by_later_worlds() {
    let mut stream = envoy(Protocol::Delta, "CDS a=1 b=1; EDS a=1 b=1; LDS l=1; RDS r=1");
    assert_eq!(stream.world("CDS a=1; EDS a=1 b=1; LDS l=1; RDS r=2"), ["RDS r=2"]);
    assert_eq!(stream.world("CDS a=1; EDS a=1 b=1; LDS l=1; RDS r=3"), NOTHING);
    assert_eq!(stream.ack("RDS"), ["CDS -b", "RDS r=3"]);
}

#[test]
fn routes_wait_for_clusters_that_could_not_be_sent_yet() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut stream = envoy(protocol, "CDS a=1 b=1; EDS a=1 b=1; LDS l=1; RDS r=1");
        assert_eq!(stream.world("CDS a=1 b=1 c=1; EDS a=1 b=1; LDS l=1; RDS r=1").len(), 1);
        assert_eq!(stream.world("CDS a=1 b=1 c=1 d=1; EDS a=2 b=1; LDS l=1; RDS r=d"), ["EDS a=2"]);
        let after = stream.ack("CDS");
        assert!(after.len() == 1 && after[0].starts_with("CDS") && after[0].ends_with("d=1"), "{after:?}");
        assert_eq!(stream.ack("CDS"), ["RDS r=d"]);
    }
}

#[test]
fn client_that_never_answers_is_not_cut_off_for_good() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut stream = envoy(protocol, "CDS a=1 b=1; EDS a=1 b=1; LDS l=1; RDS r=1");
        assert_eq!(stream.world("CDS a=1 b=1; EDS a=1 b=1; LDS l=2; RDS r=1"), ["LDS l=2"]);
        assert_eq!(stream.world("CDS a=1 b=1; EDS a=1 b=1; LDS l=3; RDS r=1"), NOTHING);
        assert_eq!(stream.session.wakes_at(), Some(stream.now + Limits::default().patience));
        stream.now += Limits::default().patience;
        assert_eq!(stream.responses(), ["LDS l=3"]);
    }
}

#[test]
fn returning_client_that_is_warming_gets_routes_after_clusters() {
    let mut stream = Stream::new(Protocol::Delta, "CDS a=1; EDS a=1; LDS l=1; RDS r=2");
    assert_eq!(stream.change("EDS", "a a@1"), ["EDS a=1"]);
    assert_eq!(stream.change("RDS", "r r@1"), NOTHING);
    assert_eq!(stream.change("CDS", "a@1"), ["CDS", "RDS r=2"]);
}

#[test]
fn returning_client_without_interest_in_clusters_gets_routes_in_the_end() {
    let mut stream = Stream::new(Protocol::Delta, "CDS a=1; EDS a=1; LDS l=1; RDS r=2");
    stream.change("EDS", "a a@1");
    assert_eq!(stream.change("RDS", "r r@1"), NOTHING);
    stream.now += Limits::default().patience;
    assert_eq!(stream.responses(), ["RDS r=2"]);
}
