//! Rules of ServiceEntry.

use std::collections::BTreeSet;

use api::istio::networking::v1alpha3::ServiceEntry;
use api::istio::networking::v1alpha3::service_entry::{Location, Resolution};

use super::report::{Report, Rule, Violation};
use super::selector::{self, ExportOf};
use super::{names, workload};
use crate::config::Meta;
use crate::host::is_wildcard;
use crate::port::Protocol;

pub(super) fn check(meta: &Meta, entry: &ServiceEntry, report: &mut Report) {
    selector::networking(entry.workload_selector.as_ref().map(|selector| &selector.labels), "service entry", report);
    report.error_if(
        entry.workload_selector.is_some() && !entry.endpoints.is_empty(),
        "only one of WorkloadSelector or Endpoints is allowed in Service Entry",
    );
    hosts(entry, report);
    addresses(entry, report);
    ports(meta, entry, report);
    match Resolution::try_from(entry.resolution) {
        Ok(Resolution::None) => resolution_none(entry, report),
        Ok(Resolution::Static) => {
            let ports = port_names(entry);
            report.each("endpoints", &entry.endpoints, |report, endpoint| {
                workload::static_endpoint(endpoint, &ports, report);
            });
        }
        Ok(resolution @ (Resolution::Dns | Resolution::DnsRoundRobin)) => resolution_dns(entry, resolution, report),
        Ok(Resolution::DynamicDns) => resolution_dynamic(meta, entry, report),
        Err(_) => report.error(format_args!("unsupported resolution type {}", entry.resolution)),
    }
    // Plain TCP cannot distinguish hosts; without resolution they do not matter.
    let several = entry.resolution() != Resolution::None && entry.hosts.len() > 1;
    let blind = |protocol: Protocol| !protocol.is_http() && !protocol.is_tls();
    report.error_if(several && protocols(entry).any(blind), "multiple hosts provided with non-HTTP, non-TLS ports");
    selector::export_to(&meta.namespace, &entry.export_to, ExportOf::ServiceEntry, report);
}

fn protocols(entry: &ServiceEntry) -> impl Iterator<Item = Protocol> {
    entry.ports.iter().map(|port| Protocol::parse(&port.protocol))
}

fn port_names(entry: &ServiceEntry) -> BTreeSet<&str> {
    entry.ports.iter().map(|port| port.name.as_str()).collect()
}

fn hosts(entry: &ServiceEntry, report: &mut Report) {
    report.error_if(entry.hosts.is_empty(), "service entry must have at least one host");
    for host in &entry.hosts {
        if host == "*" {
            report.error("invalid host *");
            continue;
        }
        report.check(names::wildcard_domain(host));
        if let Err(message) = names::no_partial_wildcard(host)
            && entry.resolution() != Resolution::DynamicDns
        {
            report.warn(message);
        }
    }
}

fn addresses(entry: &ServiceEntry, report: &mut Report) {
    for address in &entry.addresses {
        report.check(names::subnet(address));
    }
    let resolved = !matches!(entry.resolution(), Resolution::None | Resolution::Static);
    report.error_if(
        resolved && entry.addresses.iter().any(|address| address.contains('/')),
        "CIDR addresses are allowed only for NONE/STATIC resolution types",
    );
}

fn ports(meta: &Meta, entry: &ServiceEntry, report: &mut Report) {
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    let unreachable = entry.addresses.is_empty() && !allocates_address(meta, entry);
    report.each("ports", &entry.ports, |report, port| {
        let (new_name, new_number) = (names.insert(port.name.clone()), numbers.insert(port.number));
        report.error_if(!new_name, format_args!("service entry port name {:?} already defined", port.name));
        report.error_if(!new_number, format_args!("service entry port {} already defined", port.number));
        if port.target_port != 0 {
            report.check(names::port(port.target_port));
        }
        report.warn_if(
            unreachable && matches!(port.protocol.as_str(), "" | "TCP"),
            "addresses are required for ports serving TCP (or unset) protocol when IP Autoallocation is not enabled",
        );
        report.check(names::port_name(&port.name));
        report.check(known_protocol(&port.protocol));
        report.check(names::port(port.number));
    });
}

/// Whether the service gets an automatic address.
fn allocates_address(meta: &Meta, entry: &ServiceEntry) -> bool {
    let refused = meta
        .labels
        .get("networking.istio.io/enable-autoallocate-ip")
        .is_some_and(|value| value.eq_ignore_ascii_case("false"));
    entry.resolution() != Resolution::None && !refused
}

/// An empty protocol is valid: the proxy detects it.
pub(super) fn known_protocol(protocol: &str) -> Rule {
    match protocol.is_empty() || !Protocol::parse(protocol).is_unknown() {
        true => Ok(()),
        false => Err(Violation::from(format!("unsupported protocol: {protocol}"))),
    }
}

fn resolution_none(entry: &ServiceEntry, report: &mut Report) {
    report.error_if(!entry.endpoints.is_empty(), "no endpoints should be provided for resolution type none");
    report
        .warn_if(entry.workload_selector.is_some(), "workloadSelector should not be set when resolution mode is NONE");
}

fn resolution_dns(entry: &ServiceEntry, resolution: Resolution, report: &mut Report) {
    let mode = resolution.as_str_name();
    if entry.endpoints.is_empty()
        && let Err(message) = entry.hosts.iter().try_for_each(|host| names::fqdn(host))
    {
        report.error(format_args!(
            "hosts must be FQDN or contain only prefix wildcards if no endpoints are provided for resolution mode {mode}, {message}"
        ));
    }
    report.error_if(
        resolution == Resolution::DnsRoundRobin && entry.endpoints.len() > 1,
        format_args!("there must only be 0 or 1 endpoint for resolution mode {mode}"),
    );
    let ports = port_names(entry);
    report.each("endpoints", &entry.endpoints, |report, endpoint| {
        let address = endpoint.address.as_str();
        let fits = names::is_ip(address) || names::fqdn(address).is_ok();
        report.error_if(!fits, workload::not_an_address(address));
        names::labels(&endpoint.labels, report);
        workload::ports(endpoint, Some(&ports), report);
    });
    report.warn_if(
        !entry.addresses.is_empty() && entry.hosts.len() > 1 && protocols(entry).any(Protocol::is_tcp),
        "service entry can not have more than one host specified simultaneously with address and tcp port",
    );
}

fn resolution_dynamic(meta: &Meta, entry: &ServiceEntry, report: &mut Report) {
    let mode = Resolution::DynamicDns.as_str_name();
    report.error_if(
        entry.hosts.iter().any(|host| !is_wildcard(host)),
        format_args!("host must be wildcarded for resolution mode {mode}"),
    );
    report.error_if(!entry.addresses.is_empty(), format_args!("addresses cannot be set for resolution type {mode}"));
    report.error_if(!entry.endpoints.is_empty(), format_args!("endpoints cannot be set for resolution type {mode}"));
    let fits = |protocol| matches!(protocol, Protocol::Http | Protocol::Tls | Protocol::Grpc | Protocol::Http2);
    report.error_if(
        !protocols(entry).all(fits),
        format_args!("only HTTP, TLS, GRPC, and HTTP2 protocols are supported for resolution type {mode}"),
    );
    let waypoint = meta.labels.get("istio.io/use-waypoint");
    let uses_waypoint = waypoint.is_some_and(|name| !name.is_empty() && !name.eq_ignore_ascii_case("none"));
    report.error_if(
        entry.location() == Location::MeshInternal && uses_waypoint,
        format_args!("location MESH_INTERNAL with resolution type {mode} is not supported when using waypoints"),
    );
}
