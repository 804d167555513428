//! Locality load balancing: which setting applies to a cluster, and the priorities and weights that it gives to groups
//! of endpoints for a client in some locality.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use api::istio::networking::v1alpha3::locality_load_balancer_setting::{Distribute, Failover};
use api::istio::networking::v1alpha3::{
    LoadBalancerSettings, LocalityLoadBalancerSetting, ZoneAwareLoadBalancerSetting, zone_aware_load_balancer_setting,
};
use model::endpoint::Locality;
use model::labels::Labels;
use model::service::TrafficDistribution;
use model::settings::Mesh;
use scope::client::TrackedLabels;
use scope::reads::Tracked;

use super::{LbEndpoint, LocalityEndpoints};

const NETWORK: &str = "topology.istio.io/network";
const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";
const SUB_ZONE: &str = "topology.istio.io/subzone";
const NODE: &str = "kubernetes.io/hostname";

/// The setting of a cluster: of the DestinationRule, else of the service, else of the mesh.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LocalityLb<'a> {
    Locality(&'a LocalityLoadBalancerSetting),
    ZoneAware(&'a ZoneAwareLoadBalancerSetting),
    /// Traffic distribution of the Kubernetes Service.
    Near(TrafficDistribution),
}

impl<'a> LocalityLb<'a> {
    /// The setting; `None` if there is none or it is disabled.
    pub fn of(
        balancer: Option<&'a LoadBalancerSettings>,
        distribution: TrafficDistribution,
        mesh: &'a Mesh,
    ) -> Option<LocalityLb<'a>> {
        if let Some(zone_aware) = balancer.and_then(|b| b.zone_aware_lb_setting.as_ref()) {
            return Some(LocalityLb::ZoneAware(zone_aware));
        }
        if let Some(locality) = balancer.and_then(|b| b.locality_lb_setting.as_ref()) {
            return enabled(locality);
        }
        if distribution != TrafficDistribution::Any {
            return Some(LocalityLb::Near(distribution));
        }
        if let Some(zone_aware) = &mesh.zone_aware_lb_setting {
            return Some(LocalityLb::ZoneAware(zone_aware));
        }
        enabled(mesh.locality_lb_setting.as_ref()?)
    }

    /// Sets priorities and weights of endpoint groups for this client. Failover needs outlier detection.
    pub fn apply(
        &self,
        groups: Vec<LocalityGroup<'_>>,
        client: ClientLocality<'_>,
        detects_outliers: bool,
    ) -> Vec<LocalityEndpoints> {
        let groups = match self {
            LocalityLb::Locality(setting) if !setting.distribute.is_empty() => {
                distribute(groups, client.locality, &setting.distribute)
            }
            LocalityLb::Locality(setting) if detects_outliers => {
                failover(groups, client, &setting.failover_priority, &setting.failover)
            }
            LocalityLb::Near(distribution) => by_labels(groups, client.labels, near(*distribution)),
            LocalityLb::ZoneAware(setting) if setting.enabled.unwrap_or(true) => {
                let groups = by_labels(groups, client.labels, &setting.failover_priority);
                by_region(groups, client.locality, &setting.failover)
            }
            _ => groups,
        };
        groups.into_iter().map(LocalityGroup::finish).collect()
    }
}

fn enabled(setting: &LocalityLoadBalancerSetting) -> Option<LocalityLb<'_>> {
    setting.enabled.unwrap_or(true).then_some(LocalityLb::Locality(setting))
}

/// Labels that nearby endpoints share with the client, most important first.
fn near(distribution: TrafficDistribution) -> &'static [&'static str] {
    match distribution {
        TrafficDistribution::Any => &[],
        TrafficDistribution::PreferSameZone => &[NETWORK, REGION, ZONE],
        TrafficDistribution::PreferSameNode => &[NETWORK, REGION, ZONE, SUB_ZONE, NODE],
    }
}

/// The client's locality and labels.
#[derive(Clone, Copy, Debug)]
pub struct ClientLocality<'a> {
    pub locality: &'a Tracked<Locality>,
    pub labels: &'a TrackedLabels,
}

/// Endpoints of one locality, with the labels that priorities depend on.
#[derive(Clone, Debug)]
pub struct LocalityGroup<'a> {
    pub locality: Locality,
    pub priority: u32,
    pub weight: Option<u32>,
    pub members: Vec<LabelledEndpoint<'a>>,
}

/// An endpoint and its workload's labels.
#[derive(Clone, Debug)]
pub struct LabelledEndpoint<'a> {
    pub labels: Cow<'a, Labels>,
    pub endpoint: LbEndpoint,
}

impl LocalityGroup<'_> {
    /// The group with its weight set to the sum of its members' weights; `None` if empty.
    #[must_use]
    pub fn weighed(mut self) -> Self {
        let sum = self.members.iter().fold(0u32, |sum, m| sum.saturating_add(m.endpoint.weight));
        self.weight = (!self.members.is_empty()).then_some(sum);
        self
    }

    pub fn finish(self) -> LocalityEndpoints {
        LocalityEndpoints {
            locality: self.locality,
            priority: self.priority,
            weight: self.weight,
            endpoints: self.members.into_iter().map(|m| m.endpoint).collect(),
        }
    }
}

/// Distributes traffic by percentages per locality. Groups that match no percentage lose their endpoints.
fn distribute<'a>(
    mut groups: Vec<LocalityGroup<'a>>,
    client: &Locality,
    shares: &[Distribute],
) -> Vec<LocalityGroup<'a>> {
    let Some(share) = shares.iter().find(|d| matches(client, &d.from)) else { return groups };
    let mut unnamed: BTreeSet<usize> = (0..groups.len()).collect();
    for (pattern, percent) in &share.to {
        let named: Vec<usize> = unnamed.iter().copied().filter(|i| matches(&groups[*i].locality, pattern)).collect();
        let total: u64 = named.iter().map(|i| u64::from(groups[*i].weight.unwrap_or(1))).sum();
        for index in named {
            unnamed.remove(&index);
            let part = u64::from(groups[index].weight.unwrap_or(1)) * u64::from(*percent);
            if part > 0 && total > 0 {
                groups[index].weight = Some(u32::try_from(part.div_ceil(total)).unwrap_or(u32::MAX));
            }
        }
    }
    for index in unnamed {
        groups[index].members.clear();
    }
    groups
}

/// Whether a locality matches `region/zone/subzone`, where `*` and missing parts match anything.
fn matches(locality: &Locality, pattern: &str) -> bool {
    let mut parts = pattern.split('/');
    let region = parts.next().unwrap_or_default();
    let fits = |part: Option<&str>, own: &str| part.is_none_or(|p| p == "*" || p.is_empty() || p == own);
    (region == "*" || region == locality.region())
        && fits(parts.next(), locality.zone())
        && fits(parts.next(), locality.sub_zone())
}

/// Priorities by shared labels, by locality, or by labels and then locality if both are configured.
fn failover<'a>(
    groups: Vec<LocalityGroup<'a>>,
    client: ClientLocality<'_>,
    labels: &[String],
    pairs: &[Failover],
) -> Vec<LocalityGroup<'a>> {
    if labels.is_empty() {
        return by_place(groups, client.locality, pairs);
    }
    let groups = by_labels(groups, client.labels, labels);
    if pairs.is_empty() { groups } else { by_place(groups, client.locality, pairs) }
}

/// Order: same subzone, same zone, same region, failover region, others.
fn by_place<'a>(groups: Vec<LocalityGroup<'a>>, client: &Locality, pairs: &[Failover]) -> Vec<LocalityGroup<'a>> {
    let fallback = pairs.iter().find(|pair| pair.from == client.region()).map(|pair| pair.to.as_str());
    let rank = |locality: &Locality| match distance(client, locality) {
        3 if fallback.is_some_and(|to| to != locality.region()) => 4,
        distance => distance,
    };
    ranked(groups, 5, rank)
}

/// Order: same region, failover region, others.
fn by_region<'a>(
    groups: Vec<LocalityGroup<'a>>,
    client: &Locality,
    pairs: &[zone_aware_load_balancer_setting::Failover],
) -> Vec<LocalityGroup<'a>> {
    let fallback = pairs.iter().find(|pair| pair.from == client.region()).map(|pair| pair.to.as_str());
    ranked(groups, 3, |locality| match locality.region() {
        region if region == client.region() => 0,
        region if fallback == Some(region) => 1,
        _ => 2,
    })
}

fn distance(a: &Locality, b: &Locality) -> u32 {
    if a.region() != b.region() {
        3
    } else if a.zone() != b.zone() {
        2
    } else if a.sub_zone() != b.sub_zone() {
        1
    } else {
        0
    }
}

/// Orders groups by rank within the priority they already have; `ranks` is the number of ranks.
fn ranked<'a>(
    mut groups: Vec<LocalityGroup<'a>>,
    ranks: u32,
    rank: impl Fn(&Locality) -> u32,
) -> Vec<LocalityGroup<'a>> {
    for group in &mut groups {
        group.priority = group.priority * ranks + rank(&group.locality);
    }
    without_gaps(groups)
}

/// Envoy requires priorities without gaps, starting at 0.
fn without_gaps(mut groups: Vec<LocalityGroup<'_>>) -> Vec<LocalityGroup<'_>> {
    let used: BTreeSet<u32> = groups.iter().map(|g| g.priority).collect();
    for group in &mut groups {
        group.priority = used.range(..group.priority).count() as u32;
    }
    groups
}

/// Splits each group by the number of leading labels that its endpoints share with the client.
/// `key=value` compares with this value instead of the client's.
fn by_labels<'a, S: AsRef<str>>(
    groups: Vec<LocalityGroup<'a>>,
    client: &TrackedLabels,
    wanted: &[S],
) -> Vec<LocalityGroup<'a>> {
    if client.is_empty() || wanted.is_empty() {
        return groups;
    }
    let network_first = wanted[0].as_ref() == NETWORK;
    let wanted: Vec<(&str, Cow<'_, str>)> = wanted.iter().map(|w| wanted_label(w.as_ref(), client)).collect();
    let split = groups.into_iter().flat_map(|group| {
        let mut by_priority: BTreeMap<u32, Vec<LabelledEndpoint<'a>>> = BTreeMap::new();
        let LocalityGroup { locality, members, .. } = group;
        for member in members {
            by_priority.entry(label_rank(&member.labels, &wanted, network_first)).or_default().push(member);
        }
        by_priority.into_iter().map(move |(priority, members)| {
            LocalityGroup { locality: locality.clone(), priority, weight: None, members }.weighed()
        })
    });
    without_gaps(split.collect())
}

fn wanted_label<'a>(text: &'a str, client: &'a Labels) -> (&'a str, Cow<'a, str>) {
    let mut parts = text.split('=');
    let key = parts.next().unwrap_or_default();
    match (parts.next(), parts.next()) {
        (Some(value), None) => (key, value.into()),
        _ => (key, client.get(key).map_or("", |v| v).into()),
    }
}

/// 0 if all labels are equal; higher the earlier one differs. Endpoints in another network rank after all in the same
/// network, and by their other labels among themselves.
fn label_rank(labels: &Labels, wanted: &[(&str, Cow<'_, str>)], network_first: bool) -> u32 {
    let count = wanted.len() as u32;
    let differs = |(key, value): &(&str, Cow<'_, str>)| labels.get(key).map_or("", |v| v) != &**value;
    let abroad = network_first && wanted.first().is_some_and(differs);
    let skipped = usize::from(abroad);
    let first_difference = wanted.iter().skip(skipped).position(differs).map(|i| (i + skipped) as u32);
    first_difference.map_or(0, |index| count - index) + if abroad { count } else { 0 }
}

#[cfg(test)]
mod tests;
