//! Histories with one planted bug each, and healthy ones that look suspicious.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use testkit::promises::content::{Marker, ResourceContent, ResourceKind, ResponseContent};
use testkit::promises::history::{EnvoyDump, Event, FaultScope, MeshPart, TimedEvent};
use testkit::promises::{Promise, check};

const CART: &str = "outbound|80||cart";
const WINDOW: Duration = Duration::from_secs(5);

/// A history under construction; each event takes a second unless `at` says otherwise.
#[derive(Default)]
struct Story {
    events: Vec<TimedEvent>,
    seconds: u64,
    responses: usize,
}

impl Story {
    /// One proxy that has received the cluster, endpoint 1 and the route, and accepted them.
    fn synced() -> Story {
        let mut story = Story::default();
        story.input(&["1"]);
        story.push(Event::Connected { proxy: "p".into(), replica: 0 });
        story.clusters(&[CART]);
        story.endpoints(&["1"], true);
        story.routes();
        story
    }

    fn push(&mut self, event: Event) -> &mut Story {
        self.events.push(TimedEvent { at: Duration::from_secs(self.seconds), event });
        self.seconds += 1;
        self
    }

    fn at(&mut self, seconds: u64) -> &mut Story {
        self.seconds = seconds;
        self
    }

    fn input(&mut self, endpoints: &[&str]) -> &mut Story {
        let begun = Duration::from_secs(self.seconds);
        let endpoints = set(endpoints);
        self.push(Event::Input { source: "files".into(), service: CART.into(), endpoints, begun })
    }

    fn respond(&mut self, kind: ResourceKind, resources: Vec<ResourceContent>, accepted: bool) -> &mut Story {
        self.responses += 1;
        let nonce = format!("n{}", self.responses);
        let is_complete = kind == ResourceKind::Clusters;
        let response = ResponseContent { kind, nonce: nonce.clone(), is_complete, resources, removed: Vec::new() };
        self.push(Event::Received { proxy: "p".into(), response });
        self.push(Event::Answered { proxy: "p".into(), kind, nonce, accepted })
    }

    fn clusters(&mut self, names: &[&str]) -> &mut Story {
        let cluster = |name: &&str| ResourceContent { name: (*name).to_owned(), hash: 7, ..Default::default() };
        self.respond(ResourceKind::Clusters, names.iter().map(cluster).collect(), true)
    }

    fn endpoints(&mut self, endpoints: &[&str], accepted: bool) -> &mut Story {
        let hash = endpoints.iter().map(|text| text.len() as u64).sum();
        let one = ResourceContent { name: CART.to_owned(), hash, endpoints: set(endpoints), ..Default::default() };
        self.respond(ResourceKind::Endpoints, vec![one], accepted)
    }

    fn routes(&mut self) -> &mut Story {
        let table = ResourceContent { name: "80".to_owned(), targets: set(&[CART]), ..Default::default() };
        self.respond(ResourceKind::Routes, vec![table], true)
    }

    fn fault(&mut self, name: &str, scope: FaultScope) -> &mut Story {
        self.push(Event::FaultBegun { fault: name.into(), scope })
    }

    fn report(&mut self, nonce: &str) -> &mut Story {
        let (proxy, kind) = ("p".into(), ResourceKind::Endpoints);
        self.push(Event::Reported { proxy, kind, sent: nonce.to_owned(), acked: nonce.to_owned() })
    }

    /// The promises that are broken.
    fn broken(&self) -> BTreeSet<Promise> {
        let marker = Marker { bytes: b"key".to_vec(), allowed: ["q".into()].into() };
        let checked = check(&self.events, &[marker], WINDOW);
        checked.violations.into_iter().map(|violation| violation.promise).collect()
    }
}

fn set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn files() -> FaultScope {
    FaultScope::of([MeshPart::Source("files".into())])
}

#[test]
fn healthy_histories_break_nothing() {
    let mut story = Story::synced();
    story.input(&["2"]).endpoints(&["2"], true).report("n4");
    // A rejection, a change that is skipped, and a deletion.
    story.input(&["3"]).endpoints(&["3"], false).input(&["4"]).input(&["5"]).endpoints(&["5"], true);
    story.input(&[]).clusters(&[]);
    story.at(100).push(Event::FaultEnded { fault: "none".into() });
    assert_eq!(story.broken(), BTreeSet::new());
}

#[test]
fn a_change_that_is_undone_at_once_need_not_arrive() {
    let mut story = Story::synced();
    story.input(&[]).clusters(&[]).input(&["2"]).input(&[]).at(100).report("n2");
    assert_eq!(story.broken(), BTreeSet::new());
}

#[test]
fn a_change_that_never_arrives_breaks_convergence() {
    let mut story = Story::synced();
    story.input(&["2"]).at(100).report("n2");
    assert_eq!(story.broken(), BTreeSet::from([Promise::Convergence]));
}

#[test]
fn content_other_than_that_of_a_fresh_server_breaks_convergence() {
    let mut story = Story::synced();
    let hashes = |hash: u64| BTreeMap::from([(ResourceKind::Endpoints, BTreeMap::from([(CART.to_owned(), hash)]))]);
    let both = |hash: u64| {
        let mut held = hashes(hash);
        held.insert(ResourceKind::Clusters, BTreeMap::from([(CART.to_owned(), 7)]));
        held.insert(ResourceKind::Routes, BTreeMap::from([("80".to_owned(), 0)]));
        Event::Expected { proxy: "p".into(), held }
    };
    story.push(both(1));
    assert_eq!(story.broken(), BTreeSet::new());
    story.push(both(2));
    assert_eq!(story.broken(), BTreeSet::from([Promise::Convergence]));
}

#[test]
fn endpoints_older_than_acknowledged_ones_break_no_regress() {
    let mut story = Story::synced();
    story.input(&["2"]).endpoints(&["2"], true).endpoints(&["1"], true).endpoints(&["2"], true);
    assert_eq!(story.broken(), BTreeSet::from([Promise::NoRegress]));
    // A rejected response is not acknowledged, what was rejected may be rolled back, and another replica may be behind.
    let mut story = Story::synced();
    story.input(&["2"]).endpoints(&["2"], false).endpoints(&["1"], true).endpoints(&["2"], true);
    story.push(Event::Connected { proxy: "p".into(), replica: 1 }).endpoints(&["2"], true);
    assert_eq!(story.broken(), BTreeSet::new());
}

#[test]
fn endpoints_that_no_source_had_break_no_invention() {
    let mut story = Story::synced();
    story.endpoints(&["1", "9"], true).endpoints(&["1"], true);
    assert_eq!(story.broken(), BTreeSet::from([Promise::NoInvention]));
}

#[test]
fn endpoints_that_are_gone_for_long_break_no_invention_unless_a_fault_explains_them() {
    let late = |fault: Option<FaultScope>| {
        let mut story = Story::synced();
        story.input(&["2"]);
        if let Some(scope) = fault {
            story.fault("a fault", scope);
        }
        story.at(100).push(Event::FaultEnded { fault: "a fault".into() });
        story.endpoints(&["1"], false).endpoints(&["2"], true);
        story.broken()
    };
    assert_eq!(late(Some(files())), BTreeSet::new());
    assert!(late(None).contains(&Promise::NoInvention));
    assert!(late(Some(FaultScope::of([MeshPart::Source("consul".into())]))).contains(&Promise::NoInvention));
}

#[test]
fn endpoints_lost_without_a_deletion_break_no_wipe() {
    let mut story = Story::synced();
    story.fault("files are gone", files()).endpoints(&[], true).endpoints(&["1"], true);
    assert_eq!(story.broken(), BTreeSet::from([Promise::NoWipe]));
    let mut story = Story::synced();
    story.fault("files are gone", files()).clusters(&[]).clusters(&[CART]).endpoints(&["1"], true);
    assert_eq!(story.broken(), BTreeSet::from([Promise::NoWipe]));
}

#[test]
fn bytes_of_others_break_isolation() {
    let secret = |markers| ResourceContent { name: "key".to_owned(), markers, ..Default::default() };
    let mut story = Story::synced();
    story.respond(ResourceKind::Secrets, vec![secret(Vec::new())], true);
    assert_eq!(story.broken(), BTreeSet::new());
    story.respond(ResourceKind::Secrets, vec![secret(vec![0])], true);
    assert_eq!(story.broken(), BTreeSet::from([Promise::Isolation]));
}

#[test]
fn a_change_delayed_by_the_fault_of_another_source_breaks_fault_isolation() {
    let delayed = |scope: FaultScope| {
        let mut story = Story::synced();
        story.fault("a registry is away", scope).input(&["2"]);
        story.at(100).push(Event::FaultEnded { fault: "a registry is away".into() }).endpoints(&["2"], true);
        story.broken()
    };
    let another = FaultScope::of([MeshPart::Source("consul".into())]);
    assert_eq!(delayed(another), BTreeSet::from([Promise::FaultIsolation]));
    assert_eq!(delayed(FaultScope::Nothing), BTreeSet::from([Promise::FaultIsolation]));
    assert_eq!(delayed(files()), BTreeSet::new());
}

#[test]
fn a_cluster_that_changes_without_an_input_breaks_fault_isolation() {
    let mut story = Story::synced();
    let other = ResourceContent { name: CART.to_owned(), hash: 8, ..Default::default() };
    story.respond(ResourceKind::Clusters, vec![other], true);
    assert_eq!(story.broken(), BTreeSet::from([Promise::FaultIsolation]));
}

#[test]
fn a_route_before_its_cluster_breaks_order() {
    let mut story = Story::default();
    story.input(&["1"]).push(Event::Connected { proxy: "p".into(), replica: 0 });
    story.routes().clusters(&[CART]).endpoints(&["1"], true);
    assert_eq!(story.broken(), BTreeSet::from([Promise::Order]));
    let mut story = Story::synced();
    let dump = EnvoyDump { targets: set(&[CART]), ..dump(&["1"]) };
    story.push(Event::Dumped { proxy: "p".into(), dump: EnvoyDump { clusters: BTreeSet::new(), ..dump } });
    assert_eq!(story.broken(), BTreeSet::from([Promise::Order]));
}

#[test]
fn a_report_without_acknowledgement_breaks_honesty() {
    let mut story = Story::synced();
    story.input(&["2"]).endpoints(&["2"], false).report("n4").endpoints(&["2"], true);
    assert_eq!(story.broken(), BTreeSet::from([Promise::Honesty]));
    let mut story = Story::synced();
    story.report("n2").push(Event::Reported {
        proxy: "p".into(),
        kind: ResourceKind::Endpoints,
        sent: "n9".to_owned(),
        acked: "n2".to_owned(),
    });
    assert_eq!(story.broken(), BTreeSet::new(), "a proxy that is reported as stale");
}

fn dump(endpoints: &[&str]) -> EnvoyDump {
    let endpoints = BTreeMap::from([(CART.to_owned(), set(endpoints))]);
    EnvoyDump { clusters: set(&[CART]), endpoints, targets: BTreeSet::new() }
}

#[test]
fn dumps_of_real_envoys_are_checked_too() {
    let broken = |dumps: &[EnvoyDump]| {
        let mut story = Story::synced();
        story.input(&["2"]);
        for dump in dumps {
            story.push(Event::Dumped { proxy: "p".into(), dump: dump.clone() });
        }
        story.broken()
    };
    assert_eq!(broken(&[dump(&["1"]), dump(&["2"])]), BTreeSet::new());
    assert_eq!(broken(&[dump(&["2"]), dump(&["1"])]), BTreeSet::from([Promise::NoRegress]));
    assert_eq!(broken(&[dump(&["3"]), dump(&["2"])]), BTreeSet::from([Promise::NoInvention]));
    assert_eq!(broken(&[dump(&[]), dump(&["2"])]), BTreeSet::from([Promise::NoWipe]));
}
