//! Only differences are sent, two names of one host do not alternate, and a sudden loss is held back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::change::{Change, SourceId};
use model::names::{Namespace, Str};
use model::service::{Registry, Service};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{MassLossGuard, RegistryDiff, ServiceListing};
use crate::registry::normalize;
use crate::source::ChangeSender;

fn listing(host: &str, addresses: &[&str]) -> ServiceListing {
    let namespace = Namespace::from("default");
    let service = Service::new(Registry::External, host.into(), namespace.clone(), host, Vec::new());
    let endpoints = addresses.iter().map(|a| normalize::endpoint(a, &namespace, &"".into())).collect();
    ServiceListing { service: Arc::new(service), endpoints }
}

/// The sent changes in short form.
async fn sent(diff: &mut RegistryDiff) -> Vec<String> {
    let (batches, mut received) = mpsc::channel(4);
    let sender = ChangeSender::new(SourceId("mock".into()), batches, CancellationToken::new());
    diff.send(&sender, Vec::new()).await.unwrap();
    let changes = received.try_recv().map(|batch| batch.changes).unwrap_or_default();
    let word = |change: &Change| match change {
        Change::ServiceApplied(service) => format!("+{}", service.hostname),
        Change::ServiceDeleted(key) => format!("-{}", key.hostname),
        Change::Endpoints(key, list) => format!("{}={}", key.hostname, list.len()),
        Change::Problems(list) => format!("problems={}", list.len()),
        other => format!("{other:?}"),
    };
    changes.iter().map(word).collect()
}

#[tokio::test]
async fn only_differences_are_sent() {
    let mut diff = RegistryDiff::new(MassLossGuard::default());
    diff.put(&"a".into(), Some(listing("a", &["10.0.0.1"])));
    assert_eq!(sent(&mut diff).await, ["+a", "a=1"]);
    diff.put(&"a".into(), Some(listing("a", &["10.0.0.1"])));
    assert!(sent(&mut diff).await.is_empty());
    diff.put(&"a".into(), Some(listing("a", &[])));
    assert_eq!(sent(&mut diff).await, ["a=0"]);
    assert!(diff.retain(&BTreeSet::new(), Instant::now()));
    assert_eq!(sent(&mut diff).await, ["a=0", "-a"]);
}

#[tokio::test]
async fn two_names_of_one_host_are_published_once_and_reported() {
    let mut diff = RegistryDiff::new(MassLossGuard::default());
    diff.put(&"a_b".into(), Some(listing("a-b", &["10.0.0.2"])));
    diff.put(&"a-b".into(), Some(listing("a-b", &["10.0.0.1", "10.0.0.3"])));
    assert_eq!(sent(&mut diff).await, ["+a-b", "a-b=1", "a-b=2", "problems=1"]);
    diff.put(&"a-b".into(), None);
    assert_eq!(sent(&mut diff).await, ["a-b=1", "problems=0"]);
}

#[tokio::test]
async fn a_sudden_loss_is_held_back_until_it_lasts() {
    let guard = MassLossGuard { lost_percent: 50, at_least: 4, hold_for: Duration::from_secs(60) };
    let mut diff = RegistryDiff::new(guard);
    let started = Instant::now();
    let services = |names: &[&str]| -> BTreeMap<Str, ServiceListing> {
        names.iter().map(|n| ((*n).into(), listing(n, &["10.0.0.1", "10.0.0.2"]))).collect()
    };
    assert!(diff.replace(services(&["a", "b", "c"]), started));
    sent(&mut diff).await;
    assert!(!diff.replace(services(&["a"]), started));
    assert_eq!(sent(&mut diff).await, ["problems=1"]);
    assert_eq!(diff.held_until(), Some(started + guard.hold_for));
    // Endpoints that come back in time are never removed.
    assert!(diff.replace(services(&["a", "b"]), started + Duration::from_secs(30)));
    assert_eq!(sent(&mut diff).await, ["c=0", "-c", "problems=0"]);
    let names = BTreeSet::new();
    assert!(!diff.retain(&names, started + Duration::from_secs(40)));
    assert!(!diff.retain(&names, started + Duration::from_secs(90)));
    assert!(diff.retain(&names, started + Duration::from_secs(100)));
    assert_eq!(sent(&mut diff).await, ["a=0", "-a", "b=0", "-b"]);
}

#[tokio::test]
async fn a_small_registry_may_lose_all_endpoints() {
    let mut diff = RegistryDiff::new(MassLossGuard::default());
    diff.put(&"a".into(), Some(listing("a", &["10.0.0.1"])));
    assert!(diff.retain(&BTreeSet::new(), Instant::now()));
}

#[tokio::test]
async fn hole_11_services_beyond_the_limit_are_left_out_and_reported() {
    let mut diff = RegistryDiff { limit: 6, ..RegistryDiff::new(MassLossGuard::default()) };
    diff.put(&"a".into(), Some(listing("a", &["1.1.1.1"])));
    diff.put(&"b".into(), Some(listing("b", &["1.1.1.1", "1.1.1.2"])));
    diff.put(&"c".into(), Some(listing("c", &["1.1.1.1"])));
    assert_eq!(sent(&mut diff).await, ["+a", "a=1", "+b", "b=2", "problems=1"]);
    diff.put(&"a".into(), Some(listing("a", &["1.1.1.1", "1.1.1.2", "1.1.1.3"])));
    assert_eq!(sent(&mut diff).await, ["problems=1"], "the last state is kept");
    diff.put(&"b".into(), None);
    diff.put(&"c".into(), Some(listing("c", &["1.1.1.1"])));
    diff.put(&"a".into(), Some(listing("a", &["1.1.1.1", "1.1.1.2", "1.1.1.3"])));
    assert_eq!(sent(&mut diff).await, ["b=0", "-b", "+c", "c=1", "a=3", "problems=0"]);
}
