//! Rules of DestinationRule.

use std::collections::BTreeSet;

use api::istio::networking::v1alpha3::traffic_policy::{PortTrafficPolicy, TunnelSettings};
use api::istio::networking::v1alpha3::{DestinationRule, TrafficPolicy};

use super::names::{self, is_dns_label};
use super::report::{Report, Rule, Violation};
use super::selector::{self, ExportOf};
use super::{connection_pool, load_balancer, tls};
use crate::config::Meta;

pub(super) fn check(meta: &Meta, rule: &DestinationRule, report: &mut Report) {
    report.check(names::wildcard_domain(&rule.host));
    report.given("trafficPolicy", rule.traffic_policy.as_ref(), |report, policy| {
        traffic_policy(&meta.namespace, policy, report);
    });
    let mut subsets = BTreeSet::new();
    report.each("subsets", &rule.subsets, |report, subset| {
        let unique = subsets.insert(subset.name.clone());
        report.error_if(!unique, format_args!("duplicate subset names: {}", subset.name));
        report.check(subset_name(&subset.name));
        names::labels(&subset.labels, report);
        report.given("trafficPolicy", subset.traffic_policy.as_ref(), |report, policy| {
            traffic_policy(&meta.namespace, policy, report);
        });
    });
    let of = match rule.workload_selector {
        Some(_) => ExportOf::SelectingDestinationRule,
        None => ExportOf::Rules,
    };
    selector::export_to(&meta.namespace, &rule.export_to, of, report);
    selector::workload(rule.workload_selector.as_ref(), report);
}

pub(super) fn subset_name(name: &str) -> Rule {
    match name {
        "" => Err(Violation::from("subset name cannot be empty".to_owned())),
        name if is_dns_label(name) => Ok(()),
        name => Err(Violation::from(format!("subset name is invalid: {name}"))),
    }
}

fn traffic_policy(namespace: &str, policy: &TrafficPolicy, report: &mut Report) {
    let given = [
        policy.outlier_detection.is_some(),
        policy.connection_pool.is_some(),
        policy.load_balancer.is_some(),
        policy.tls.is_some(),
        !policy.port_level_settings.is_empty(),
        policy.tunnel.is_some(),
        policy.proxy_protocol.is_some(),
        policy.retry_budget.is_some(),
    ];
    if !given.contains(&true) {
        return report.error("traffic policy must have at least one field");
    }
    if policy.tunnel.is_some() && policy.proxy_protocol.is_some() {
        return report.error("tunnel and proxyProtocol must not be set together");
    }
    report.given("outlierDetection", policy.outlier_detection.as_ref(), connection_pool::outlier_detection);
    report.given("connectionPool", policy.connection_pool.as_ref(), connection_pool::check);
    let outlier = policy.outlier_detection.is_some();
    report.given("loadBalancer", policy.load_balancer.as_ref(), |report, settings| {
        load_balancer::check(settings, outlier, report);
    });
    report.given("tls", policy.tls.as_ref(), |report, settings| tls::client(namespace, settings, report));
    report.each("portLevelSettings", &policy.port_level_settings, |report, settings| {
        port_policy(namespace, settings, report);
    });
    report.given("tunnel", policy.tunnel.as_ref(), tunnel);
    report.given("proxyProtocol", policy.proxy_protocol.as_ref(), |report, protocol| {
        let known = matches!(protocol.version, 0 | 1);
        report.error_if(!known, format_args!("proxy protocol version is invalid: {}", protocol.version));
    });
}

fn port_policy(namespace: &str, policy: &PortTrafficPolicy, report: &mut Report) {
    report.error_if(policy.port.is_none(), "portTrafficPolicy must have valid port");
    let empty = policy.outlier_detection.is_none()
        && policy.connection_pool.is_none()
        && policy.load_balancer.is_none()
        && policy.tls.is_none();
    report.error_if(empty, "port traffic policy must have at least one field");
    report.given("outlierDetection", policy.outlier_detection.as_ref(), connection_pool::outlier_detection);
    report.given("connectionPool", policy.connection_pool.as_ref(), connection_pool::check);
    let outlier = policy.outlier_detection.is_some();
    report.given("loadBalancer", policy.load_balancer.as_ref(), |report, settings| {
        load_balancer::check(settings, outlier, report);
    });
    report.given("tls", policy.tls.as_ref(), |report, settings| tls::client(namespace, settings, report));
}

fn tunnel(report: &mut Report, tunnel: &TunnelSettings) {
    let known = matches!(tunnel.protocol.as_str(), "" | "CONNECT" | "POST");
    report.error_if(!known, "tunnel protocol must be \"CONNECT\" or \"POST\"");
    if let (Err(name), Err(address)) = (names::fqdn(&tunnel.target_host), names::ip(&tunnel.target_host)) {
        report.error(format_args!("tunnel target host must be valid FQDN or IP address: {name}; {address}"));
    }
    if let Err(message) = names::port(tunnel.target_port) {
        report.error(format_args!("tunnel target port is invalid: {message}"));
    }
}
