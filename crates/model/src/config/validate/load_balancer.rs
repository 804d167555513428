//! Rules of load balancing: hashing, locality, zones and warm-up.

use std::collections::{BTreeMap, BTreeSet};

use api::istio::networking::v1alpha3::load_balancer_settings::consistent_hash_lb::{
    HashAlgorithm, HashKey, HttpCookie,
};
use api::istio::networking::v1alpha3::load_balancer_settings::{ConsistentHashLb, LbPolicy};
use api::istio::networking::v1alpha3::locality_load_balancer_setting::Distribute;
use api::istio::networking::v1alpha3::{
    LoadBalancerSettings, LocalityLoadBalancerSetting, WarmupConfiguration, ZoneAwareLoadBalancerSetting,
};

use super::names;
use super::report::{Report, Rule, Violation};

const TOPOLOGY_LABELS: &[&str] =
    &["topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"];
const NO_OUTLIER_DETECTION: &str = "outlier detection policy must be provided for failover";

/// `outlier` is whether outlier detection is set, which failover needs.
pub(super) fn check(settings: &LoadBalancerSettings, outlier: bool, report: &mut Report) {
    if let Some(LbPolicy::ConsistentHash(hash)) = &settings.lb_policy {
        report.within("consistentHash", |report| consistent_hash(hash, report));
    }
    report.error_if(
        settings.locality_lb_setting.is_some() && settings.zone_aware_lb_setting.is_some(),
        "only one of localityLbSetting and zoneAwareLbSetting can be set",
    );
    report.given("localityLbSetting", settings.locality_lb_setting.as_ref(), |report, setting| {
        locality(setting, outlier, report);
    });
    report.given("zoneAwareLbSetting", settings.zone_aware_lb_setting.as_ref(), |report, setting| {
        zone_aware(setting, outlier, report);
    });
    report.given("warmup", settings.warmup.as_ref(), warmup);
}

fn consistent_hash(hash: &ConsistentHashLb, report: &mut Report) {
    if let Some(HashKey::HttpCookie(cookie)) = &hash.hash_key {
        http_cookie(cookie, report);
    }
    report.warn_if(
        hash.minimum_ring_size != 0,
        "consistent hash MinimumRingSize is deprecated, use ConsistentHashLB's RingHash configuration instead",
    );
    report.error_if(
        hash.minimum_ring_size != 0 && hash.hash_algorithm.is_some(),
        "only one of MinimumRingSize or Maglev/Ringhash can be specified",
    );
    if let Some(HashAlgorithm::Maglev(maglev)) = &hash.hash_algorithm {
        let size = maglev.table_size;
        report.error_if(size == 0, "tableSize must be set for maglev");
        match size >= 5_000_011 {
            true => report.error("tableSize must be less than 5000011 for maglev"),
            false => report.error_if(!is_prime(size), "tableSize must be a prime number for maglev"),
        }
    }
}

fn http_cookie(cookie: &HttpCookie, report: &mut Report) {
    report.error_if(cookie.name.is_empty(), "name required for HttpCookie");
    let mut names = BTreeSet::new();
    for attribute in &cookie.attributes {
        let name = attribute.name.as_str();
        report.error_if(name.is_empty(), "cookie attribute name cannot be empty");
        let unique = names.insert(name);
        report.error_if(!unique && !name.is_empty(), format_args!("duplicate cookie attribute name: {name}"));
    }
}

/// As in Envoy, 1 is prime.
fn is_prime(number: u64) -> bool {
    if (1..4).contains(&number) {
        return true;
    }
    number % 2 == 1
        && (3..).step_by(2).take_while(|factor| factor * factor <= number).all(|factor| !number.is_multiple_of(factor))
}

fn warmup(report: &mut Report, warmup: &WarmupConfiguration) {
    match &warmup.duration {
        Some(duration) => report.check(names::duration(duration)),
        None => report.error("duration is required"),
    }
    report.error_if(
        warmup.minimum_percent.is_some_and(|percent| percent > 100.0),
        "minimumPercent value should be less than or equal to 100",
    );
    report.error_if(warmup.aggression.is_some_and(|a| a <= 0.0), "aggression should be greater than 0");
}

pub(super) fn locality(setting: &LocalityLoadBalancerSetting, outlier: bool, report: &mut Report) {
    if !setting.distribute.is_empty() && !setting.failover.is_empty() {
        return report.error("can not simultaneously specify 'distribute' and 'failover'");
    }
    let topology = setting.failover_priority.iter().find(|label| TOPOLOGY_LABELS.contains(&label.as_str()));
    if let Some(label) = topology.filter(|_| !setting.failover.is_empty()) {
        return report.error(format_args!(
            "can not simultaneously set 'failover' and topology label '{label}' in 'failover_priority'"
        ));
    }
    if let Err(message) = setting.distribute.iter().try_for_each(weights) {
        return report.error(message);
    }
    for distribute in &setting.distribute {
        report.check(localities(distribute.to.keys().map(String::as_str)));
    }
    report.check(localities(setting.distribute.iter().map(|distribute| distribute.from.as_str())));
    let fails_over = !setting.failover.is_empty() || !setting.failover_priority.is_empty();
    report.warn_if(fails_over && !outlier, NO_OUTLIER_DETECTION);
    for failover in &setting.failover {
        regions(&failover.from, &failover.to, "locality lb", "only specify region", report);
    }
}

pub(super) fn zone_aware(setting: &ZoneAwareLoadBalancerSetting, outlier: bool, report: &mut Report) {
    for label in setting.failover_priority.iter().filter(|label| TOPOLOGY_LABELS.contains(&label.as_str())) {
        report.error(format_args!(
            "'failover_priority' for zone aware lb must not use topology label '{label}'; region- and zone-level routing are handled automatically"
        ));
    }
    let fails_over = !setting.failover.is_empty() || !setting.failover_priority.is_empty();
    report.warn_if(fails_over && !outlier, NO_OUTLIER_DETECTION);
    for failover in &setting.failover {
        let only = "only specifies region; zone and subzone failover are handled automatically";
        regions(&failover.from, &failover.to, "zone aware lb", only, report);
    }
}

fn regions(from: &str, to: &str, kind: &str, only: &str, report: &mut Report) {
    report.error_if(from == to, format_args!("{kind} failover settings must specify different regions"));
    report.error_if(from.contains('/') || to.contains('/'), format_args!("{kind} failover {only}"));
    let wildcard = from.contains('*') || to.contains('*');
    report.error_if(wildcard, format_args!("{kind} failover region should not contain '*' wildcard"));
}

fn weights(distribute: &Distribute) -> Rule {
    if distribute.to.values().any(|weight| !(1..=100).contains(weight)) {
        return Err(Violation::from("locality weight must be in range [1, 100]".to_owned()));
    }
    let total: u64 = distribute.to.values().map(|weight| u64::from(*weight)).sum();
    if total == 100 { Ok(()) } else { Err(Violation::from(format!("total locality weight {total} != 100"))) }
}

/// Localities must not overlap.
fn localities<'a>(localities: impl Iterator<Item = &'a str>) -> Rule {
    let mut seen = CoveredLocalities::default();
    for locality in localities {
        let stars = locality.matches('*').count();
        if stars > 1 || (stars == 1 && !locality.ends_with('*')) {
            return Err(Violation::from(format!(
                "locality {locality} wildcard '*' number can not exceed 1 and must be in the end"
            )));
        }
        let parts: Vec<&str> = locality.splitn(3, '/').collect();
        let everything = seen.regions.contains_key("*");
        if !everything && parts.iter().any(|part| part.is_empty()) {
            return Err(Violation::from(format!(
                "locality {locality} must not contain empty region/zone/subzone info"
            )));
        }
        if everything || !seen.add(&parts) {
            return Err(Violation::from(format!("locality {locality} overlap with previous specified ones")));
        }
    }
    Ok(())
}

/// Regions, zones and subzones seen so far; `*` means all below.
#[derive(Default)]
struct CoveredLocalities<'a> {
    regions: BTreeMap<&'a str, BTreeMap<&'a str, BTreeSet<&'a str>>>,
}

impl<'a> CoveredLocalities<'a> {
    /// Whether the locality is new and not covered by an earlier one.
    fn add(&mut self, parts: &[&'a str]) -> bool {
        let (region, zone, subzone) = (parts[0], parts.get(1).copied(), parts.get(2).copied());
        let known = self.regions.contains_key(region);
        let zones = self.regions.entry(region).or_default();
        let Some(zone) = zone else {
            zones.entry("*").or_default().insert("*");
            return !known;
        };
        if zones.contains_key("*") {
            return false;
        }
        let known = zones.contains_key(zone);
        let subzones = zones.entry(zone).or_default();
        match subzone {
            None => {
                subzones.insert("*");
                !known
            }
            Some(subzone) => !subzones.contains("*") && subzones.insert(subzone),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{is_prime, localities};

    #[test]
    fn localities_must_not_overlap() {
        let check = |list: &[&str]| localities(list.iter().copied());
        assert_eq!(check(&["eu/a/1", "eu/a/2", "eu/b", "us/*", "ap"]), Ok(()));
        for bad in [
            &["eu", "eu"][..],
            &["eu", "eu/a"],
            &["eu/*", "eu/a"],
            &["eu/a", "eu/a/1"],
            &["eu/a/1", "eu/a"],
            &["eu/a/*", "eu/a/1"],
            &["*", "eu"],
            &["eu//1"],
            &["*/a"],
            &["*/*"],
        ] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn primes_are_those_of_envoy() {
        let primes: Vec<u64> = (0..30).filter(|n| is_prime(*n)).collect();
        assert_eq!(primes, [1, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29]);
        assert!(is_prime(5_000_011) && !is_prime(u64::from(u32::MAX)));
    }
}
