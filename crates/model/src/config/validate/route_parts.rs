//! Rules that HTTP, TLS and TCP routes of a VirtualService share.

use api::istio::networking::v1alpha3::Destination;

use super::destination_rule;
use super::names::{self, is_dns_label};
use super::report::{Report, Rule, Violation};

/// `namespace/name`, a bare name, or the old full form. As in upstream, checking stops at the first name without a
/// namespace.
pub(super) fn gateway_names(gateways: &[String], report: &mut Report) {
    for gateway in gateways {
        let Some((namespace, name)) = gateway.split_once('/') else {
            let mut parts = gateway.split('.');
            if let (Some(name), Some(namespace)) = (parts.next(), parts.next()) {
                report.warn(format_args!(
                    "using legacy gatewayName format {gateway:?}; prefer the <namespace>/<name> format: \"{namespace}/{name}\""
                ));
            }
            return report.check(names::fqdn(gateway));
        };
        report.error_if(namespace.is_empty() || name.is_empty(), "config namespace and gateway name cannot be empty");
        report.error_if(!is_dns_label(namespace), format_args!("invalid value for namespace: {namespace:?}"));
        report.error_if(!is_dns_label(name), format_args!("invalid value for gateway name: {name:?}"));
    }
}

pub(super) fn match_port(port: u32, report: &mut Report) {
    if port != 0 {
        report.check(names::port(port));
    }
}

pub(super) fn weight(weight: i32) -> Rule {
    if weight < 0 { Err(Violation::from(format!("weight {weight} < 0"))) } else { Ok(()) }
}

/// A single destination needs no weight; several need a positive sum.
pub(super) fn total_weight(weights: impl ExactSizeIterator<Item = i32>, report: &mut Report) {
    let several = weights.len() > 1;
    let total: i64 = weights.map(i64::from).sum();
    report.error_if(several && total == 0, "total destination weight = 0");
}

pub(super) fn destination(report: &mut Report, destination: &Destination) {
    match destination.host.as_str() {
        "*" => report.error("invalid destination host *"),
        host => report.check(names::wildcard_domain(host)),
    }
    if !destination.subset.is_empty() {
        report.check(destination_rule::subset_name(&destination.subset));
    }
    report.given("port", destination.port.as_ref(), |report, port| report.check(names::port(port.number)));
}
