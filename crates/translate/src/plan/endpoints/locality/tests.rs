//! Priorities and weights of endpoint groups for a client in `r1/z1/s1`.

use std::borrow::Cow;

use api::istio::networking::v1alpha3::locality_load_balancer_setting::{Distribute, Failover};
use api::istio::networking::v1alpha3::{LocalityLoadBalancerSetting, ZoneAwareLoadBalancerSetting};
use model::endpoint::{Health, Locality};
use model::service::TrafficDistribution;
use scope::client::TrackedLabels;
use scope::reads::Tracked;

use super::{ClientLocality, LabelledEndpoint, LocalityGroup, LocalityLb};
use crate::plan::endpoints::{LbEndpoint, LocalityEndpoints};

/// A group with one member per weight; the first member's address is the locality itself.
fn group<'a>(locality: &str, weights: &[u32]) -> LocalityGroup<'a> {
    let member = |weight: &u32| member(locality, &[], *weight);
    let members = weights.iter().map(member).collect();
    LocalityGroup { locality: Locality::parse(locality), priority: 0, weight: None, members }.weighed()
}

fn member<'a>(address: &str, labels: &[(&str, &str)], weight: u32) -> LabelledEndpoint<'a> {
    let endpoint = LbEndpoint {
        address: address.into(),
        more_addresses: Vec::new(),
        port: 80,
        weight,
        health: Health::Unknown,
        mutual_tls: false,
        workload: None,
    };
    LabelledEndpoint { labels: Cow::Owned(labels.iter().copied().collect()), endpoint }
}

fn apply(
    setting: LocalityLb<'_>,
    groups: Vec<LocalityGroup<'_>>,
    labels: &[(&str, &str)],
    detects: bool,
) -> Vec<LocalityEndpoints> {
    let labels = TrackedLabels::unrecorded(labels.iter().copied().collect());
    let locality = Tracked::unrecorded(Locality::parse("r1/z1/s1"));
    setting.apply(groups, ClientLocality { locality: &locality, labels: &labels }, detects)
}

/// Locality and priority of each group.
fn priorities(groups: &[LocalityEndpoints]) -> Vec<(String, u32)> {
    groups.iter().map(|g| (g.locality.to_string(), g.priority)).collect()
}

fn check(setting: &LocalityLoadBalancerSetting, localities: &[&str], expected: &[u32]) {
    let groups = localities.iter().map(|l| group(l, &[1])).collect();
    let found = apply(LocalityLb::Locality(setting), groups, &[], true);
    let expected: Vec<(String, u32)> =
        localities.iter().map(|l| (*l).to_owned()).zip(expected.iter().copied()).collect();
    assert_eq!(priorities(&found), expected);
}

#[test]
fn nearer_places_come_first_without_gaps() {
    let default = LocalityLoadBalancerSetting::default();
    check(&default, &["r1/z1/s1", "r1/z1/s2", "r1/z2/s1", "r2/z1/s1"], &[0, 1, 2, 3]);
    check(&default, &["r2/z1/s1", "r1/z2/s1"], &[1, 0]);
    check(&default, &["r2/z1/s1", "r3"], &[0, 0]);
}

#[test]
fn named_region_comes_before_the_other_regions() {
    let failover = vec![Failover { from: "r1".to_owned(), to: "r3".to_owned() }];
    let setting = LocalityLoadBalancerSetting { failover, ..LocalityLoadBalancerSetting::default() };
    check(&setting, &["r1/z1/s1", "r2/z1", "r3/z1"], &[0, 2, 1]);
}

#[test]
fn without_outlier_detection_nothing_fails_over() {
    let setting = LocalityLoadBalancerSetting::default();
    let groups = vec![group("r1/z1/s1", &[1]), group("r2", &[1])];
    let found = apply(LocalityLb::Locality(&setting), groups, &[], false);
    assert_eq!(priorities(&found), [("r1/z1/s1".to_owned(), 0), ("r2".to_owned(), 0)]);
}

#[test]
fn shares_are_split_by_weight_and_the_rest_gets_nothing() {
    let to = [("r1/z1/*", 70), ("r2/*", 30)].map(|(place, percent)| (place.to_owned(), percent));
    let distribute = vec![Distribute { from: "r1/*".to_owned(), to: to.into_iter().collect() }];
    let setting = LocalityLoadBalancerSetting { distribute, ..LocalityLoadBalancerSetting::default() };
    let groups = vec![group("r1/z1/s1", &[1, 1]), group("r2/z1", &[1]), group("r2/z2", &[2]), group("r3/z1", &[5])];
    let found = apply(LocalityLb::Locality(&setting), groups, &[], false);
    let weights: Vec<_> = found.iter().map(|g| (g.weight, g.endpoints.len())).collect();
    assert_eq!(weights, [(Some(70), 2), (Some(10), 1), (Some(20), 1), (Some(5), 0)]);
}

#[test]
fn groups_are_split_by_the_labels_they_share_with_the_client() {
    let wanted = ["tier", "color=blue"].map(str::to_owned).to_vec();
    let setting = LocalityLoadBalancerSetting { failover_priority: wanted, ..Default::default() };
    let members = vec![
        member("both", &[("tier", "gold"), ("color", "blue")], 1),
        member("tier only", &[("tier", "gold"), ("color", "red")], 2),
        member("neither", &[("color", "blue")], 4),
    ];
    let mixed = LocalityGroup { locality: Locality::parse("r1"), priority: 0, weight: Some(7), members };
    let found = apply(LocalityLb::Locality(&setting), vec![mixed], &[("tier", "gold"), ("color", "red")], true);
    let found: Vec<_> = found.iter().map(|g| (&*g.endpoints[0].address, g.priority, g.weight)).collect();
    assert_eq!(found, [("both", 0, Some(1)), ("tier only", 1, Some(2)), ("neither", 2, Some(4))]);
}

#[test]
fn other_networks_come_last_but_are_ranked_among_themselves() {
    let here = [
        ("topology.istio.io/network", "n1"),
        ("topology.kubernetes.io/region", "r1"),
        ("topology.kubernetes.io/zone", "z1"),
    ];
    let place = |network, region, zone| {
        [
            ("topology.istio.io/network", network),
            ("topology.kubernetes.io/region", region),
            ("topology.kubernetes.io/zone", zone),
        ]
    };
    let members = vec![
        member("far zone abroad", &place("n2", "r1", "z2"), 1),
        member("same zone abroad", &place("n2", "r1", "z1"), 1),
        member("far region", &place("n1", "r2", "z1"), 1),
        member("near", &here, 1),
    ];
    let group = LocalityGroup { locality: Locality::parse("r1"), priority: 0, weight: None, members };
    let found = apply(LocalityLb::Near(TrafficDistribution::PreferSameZone), vec![group], &here, false);
    let found: Vec<_> = found.iter().map(|g| &*g.endpoints[0].address).collect();
    assert_eq!(found, ["near", "far region", "same zone abroad", "far zone abroad"]);
}

#[test]
fn zone_aware_balancing_keeps_the_region_together() {
    let setting = ZoneAwareLoadBalancerSetting::default();
    let groups = vec![group("r1/z1", &[1]), group("r1/z2", &[1]), group("r2/z1", &[1])];
    let found = apply(LocalityLb::ZoneAware(&setting), groups, &[], false);
    assert_eq!(found.iter().map(|g| g.priority).collect::<Vec<_>>(), [0, 0, 1]);
    let off = ZoneAwareLoadBalancerSetting { enabled: Some(false), ..setting };
    let found = apply(LocalityLb::ZoneAware(&off), vec![group("r2/z1", &[1]), group("r1/z1", &[1])], &[], true);
    assert_eq!(found.iter().map(|g| g.priority).collect::<Vec<_>>(), [0, 0]);
}
