//! After a rejected response, if the control plane takes out the cause.

use std::sync::Arc;

use super::{NOTHING, Stream, World, kind, resource};
use crate::payload::Protocol;
use crate::set::ResourceSet;

impl Stream {
    /// The client rejects the last response; from then on it is served the resources of `instead`.
    fn refused(&mut self, short: &str, instead: &str) -> Vec<String> {
        self.session.client.instead = Some(Stream::sets(World::of(instead), |_, name| name.starts_with('~')));
        self.events();
        self.nack(short)
    }

    fn offered(&mut self) -> Vec<String> {
        self.events().into_iter().filter(|event| event.contains(" after ")).collect()
    }
}

#[test]
fn delta_rest_of_a_refused_response_is_sent_again_once() {
    let mut stream = Stream::new(Protocol::Delta, "LDS a=1 b=1 c=1");
    stream.change("LDS", "");
    stream.ack("LDS");
    assert_eq!(stream.world("LDS a=2 b=2 d=1"), ["LDS a=2 b=2 d=1 -c"]);
    assert_eq!(stream.refused("LDS", "LDS a=1 b=2 d=1"), ["LDS a=1 b=2 d=1 -c"]);
    assert_eq!(stream.offered(), ["a=2 after a=1", "b=2 after b=1", "d=1 after nothing"]);
    assert_eq!(stream.ack("LDS"), NOTHING);
    assert_eq!(stream.world("LDS a=1 b=3 d=1"), ["LDS b=3"]);
}

#[test]
fn sotw_listing_follows_a_refused_one_with_what_was_good_before() {
    let mut stream = Stream::new(Protocol::Sotw, "LDS a=1 b=1");
    stream.want("LDS", &[]);
    stream.ack("LDS");
    assert_eq!(stream.world("LDS a=2 b=2"), ["LDS a=2 b=2"]);
    assert_eq!(stream.refused("LDS", "LDS a=1 b=2"), ["LDS a=1 b=2"]);
    assert_eq!(stream.offered(), ["a=2 after a=1", "b=2 after b=1"]);
    assert_eq!(stream.ack("LDS"), NOTHING);
    assert_eq!(stream.world("LDS a=3 b=2"), ["LDS a=3 b=2"]);
}

#[test]
fn first_response_refused_leaves_the_rest_to_be_served() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut stream = Stream::new(protocol, "LDS a=1 b=1");
        let first = if protocol == Protocol::Sotw { stream.want("LDS", &[]) } else { stream.change("LDS", "") };
        assert_eq!(first, ["LDS a=1 b=1"]);
        let second = stream.refused("LDS", "LDS b=1");
        assert!(second.len() == 1 && second[0].starts_with("LDS b=1"), "{second:?}");
        assert_eq!(stream.offered(), ["a=1 after nothing", "b=1 after nothing"]);
        assert_eq!(stream.ack("LDS"), NOTHING);
    }
}

#[test]
fn sotw_names_asked_for_by_name_are_sent_again_too() {
    let mut stream = Stream::new(Protocol::Sotw, "RDS a=1 b=1");
    stream.want("RDS", &["a", "b"]);
    stream.ack("RDS");
    assert_eq!(stream.world("RDS a=2 b=2"), ["RDS a=2 b=2"]);
    assert_eq!(stream.refused("RDS", "RDS a=1 b=2"), ["RDS a=1 b=2"]);
    assert_eq!(stream.ack("RDS"), NOTHING);
}

#[test]
fn other_types_follow_what_was_taken_out() {
    let mut stream = Stream::new(Protocol::Delta, "CDS x=1; LDS a=1");
    for short in ["CDS", "LDS"] {
        stream.change(short, "");
        stream.ack(short);
    }
    stream.world("CDS x=1 y=1; LDS a=2");
    assert_eq!(stream.ack("CDS"), ["LDS a=2"]);
    // The cluster is removed once the listener that may have used it is answered.
    assert_eq!(stream.refused("LDS", "CDS x=1; LDS a=1"), ["LDS a=1"]);
    assert_eq!(stream.ack("LDS"), ["CDS -y"]);
}

#[test]
fn refused_cluster_that_is_taken_out_is_not_listed_while_its_users_are_updated() {
    let mut stream = Stream::new(Protocol::Sotw, "CDS x=1; LDS a=1");
    for short in ["CDS", "LDS"] {
        stream.want(short, &[]);
        stream.ack(short);
    }
    assert_eq!(stream.world("CDS x=1 y=1; LDS a=2"), ["CDS x=1 y=1"]);
    assert_eq!(stream.refused("CDS", "CDS x=1; LDS a=1"), ["CDS x=1"]);
    assert_eq!(stream.settle(), NOTHING);
}

#[test]
fn withheld_name_stays_as_the_client_has_it() {
    let mut stream = Stream::new(Protocol::Delta, "LDS a=2 b=1");
    assert_eq!(stream.change("LDS", "a@1"), ["LDS a=2 b=1"]);
    let set = ResourceSet::new(kind("LDS"), [resource("b", "1")]).with_withheld([Arc::from("a")]);
    stream.session.client.instead = Some([(kind("LDS"), Arc::new(set))].into());
    stream.events();
    assert_eq!(stream.nack("LDS"), ["LDS b=1"]);
    assert_eq!(stream.offered(), ["a=2 after something", "b=1 after nothing"]);
    stream.ack("LDS");
    assert_eq!(stream.world("LDS b=1"), ["LDS -a"]);
}
