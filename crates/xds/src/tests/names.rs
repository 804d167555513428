//! Charges for names: existing names are free, others are charged, and beyond the limits the stream ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use api::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use api::{Resource, TypeUrl};
use tonic::{Code, Status};

use super::encoded;
use crate::budget::{Allowance, Budget};
use crate::control::{Client, Event};
use crate::limits::Limits;
use crate::payload::Protocol;
use crate::session::{Session, Terms};
use crate::set::ResourceSet;

struct Known(BTreeMap<TypeUrl, Arc<ResourceSet>>);

impl Client for Known {
    async fn changed(&mut self) {
        std::future::pending().await
    }

    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        self.0.get(kind).cloned()
    }

    fn observe(&mut self, _: &Event<'_>) {}
}

fn session(budget: &Budget, limits: Limits) -> Session<Known> {
    let known = (0..10_000).map(|i| Resource::encoded(format!("known-{i}"), Vec::new()));
    let set = Arc::new(ResourceSet::new(TypeUrl::ENDPOINT, known));
    let terms = Terms {
        protocol: Protocol::Delta,
        only: None,
        limits: Arc::new(limits),
        identifier: "test".into(),
        stream: 7,
        share: budget.share(None),
    };
    Session::new(Known([(TypeUrl::ENDPOINT, set)].into()), terms, Instant::now())
}

fn ask(session: &mut Session<Known>, kind: &TypeUrl, names: Vec<String>, leave: Vec<String>) -> Result<(), Status> {
    session.delta(encoded(&DeltaDiscoveryRequest {
        type_url: kind.to_string(),
        resource_names_subscribe: names,
        resource_names_unsubscribe: leave,
        ..Default::default()
    }))
}

fn list(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{name}-{i}")).collect()
}

#[test]
fn names_that_exist_are_free_and_others_are_charged_until_given_up() {
    let budget = Budget::default();
    let mut session = session(&budget, Limits::default());
    ask(&mut session, &TypeUrl::ENDPOINT, list("known", 10_000), vec![]).unwrap();
    assert_eq!(budget.used(), 0);
    ask(&mut session, &TypeUrl::ENDPOINT, list("unknown", 10_000), vec![]).unwrap();
    assert!(budget.used() > 10_000 * 170, "{}", budget.used());
    ask(&mut session, &TypeUrl::ENDPOINT, vec![], list("unknown", 10_000)).unwrap();
    assert_eq!(budget.used(), 0);
    assert!(session.is_heavy());
}

#[test]
fn hole_05_names_are_bounded_over_all_types_of_a_stream() {
    let check = |limits: Limits, names: &dyn Fn(usize) -> String| {
        let budget = Budget::default();
        let mut session = session(&budget, limits);
        let outcome = (0..64).try_for_each(|kind| {
            let kind = TypeUrl::from(format!("type-{kind}"));
            ask(&mut session, &kind, (0..1_000).map(names).collect(), vec![])
        });
        assert_eq!(outcome.unwrap_err().code(), Code::ResourceExhausted);
        assert!(budget.used() < 16 << 20, "{} bytes are charged", budget.used());
    };
    check(Limits { stream_names: 10_000, ..Limits::default() }, &|i| format!("name-{i}"));
    check(Limits::default(), &|i| format!("{i}-{}", "x".repeat(4_000)));
}

#[test]
fn hole_05_names_of_all_streams_are_bounded_by_the_budget() {
    let budget = Budget::new(Allowance { total_bytes: 20 << 20, ..Allowance::default() });
    let mut sessions = Vec::new();
    let refused = (0..100).find_map(|_| {
        let mut session = session(&budget, Limits::default());
        let outcome = ask(&mut session, &TypeUrl::ROUTE, list("unknown", 20_000), vec![]);
        sessions.push(session);
        outcome.err()
    });
    assert_eq!(refused.unwrap().code(), Code::ResourceExhausted);
    assert!(budget.used() <= 20 << 20 && sessions.len() > 3, "{} streams", sessions.len());
    drop(sessions);
    assert_eq!(budget.used(), 0);
}
