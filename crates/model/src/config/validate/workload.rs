//! Rules of WorkloadEntry and WorkloadGroup.

use std::collections::BTreeSet;

use api::istio::networking::v1alpha3::readiness_probe::HealthCheckMethod;
use api::istio::networking::v1alpha3::{ReadinessProbe, WorkloadEntry, WorkloadGroup};

use super::headers;
use super::names::{self, UNIX};
use super::report::Report;

/// A WorkloadEntry object: its address may be a host name, and its service ports are not known here.
pub(super) fn entry(entry: &WorkloadEntry, report: &mut Report) {
    check(entry, None, report);
}

/// An endpoint of a ServiceEntry with resolution STATIC.
pub(super) fn static_endpoint(entry: &WorkloadEntry, service_ports: &BTreeSet<&str>, report: &mut Report) {
    check(entry, Some(service_ports), report);
}

fn check(entry: &WorkloadEntry, service_ports: Option<&BTreeSet<&str>>, report: &mut Report) {
    let address = entry.address.as_str();
    if address.is_empty() {
        if entry.network.is_empty() {
            return report.error("address is required");
        }
        report.warn(format_args!("address is unset with network {:?}", entry.network));
    } else if let Some(path) = address.strip_prefix(UNIX) {
        report.check(names::unix_path(path));
        report.error_if(!entry.ports.is_empty(), format_args!("unix endpoint {address} must not include ports"));
        let single = service_ports.is_none_or(|ports| ports.len() == 1);
        report.error_if(!single, "exactly 1 service port required for unix endpoints");
    } else if !names::is_ip(address) {
        match service_ports {
            Some(_) => report.error(format_args!("endpoint address {address:?} is not a valid IP address")),
            None => report.error_if(names::fqdn(address).is_err(), not_an_address(address)),
        }
    }
    ports(entry, service_ports, report);
    names::labels(&entry.labels, report);
}

pub(super) fn not_an_address(address: &str) -> String {
    format!("endpoint address {address:?} is not a valid FQDN or an IP address")
}

/// Ports of an endpoint; must be ports of the service, if it is known.
pub(super) fn ports(entry: &WorkloadEntry, service_ports: Option<&BTreeSet<&str>>, report: &mut Report) {
    for (name, port) in &entry.ports {
        let known = service_ports.is_none_or(|ports| ports.contains(name.as_str()));
        report.error_if(!known, format_args!("endpoint port {port} is not defined by the service entry"));
        report.check(names::port_name(name));
        report.check(names::port(*port));
    }
}

pub(super) fn group(group: &WorkloadGroup, report: &mut Report) {
    // Address and other fields of the template are set when a workload registers.
    report.error_if(group.template.is_none(), "template is required");
    report.given("metadata", group.metadata.as_ref(), |report, meta| names::labels(&meta.labels, report));
    report.given("probe", group.probe.as_ref(), probe);
}

fn probe(report: &mut Report, probe: &ReadinessProbe) {
    let numbers = [
        (probe.period_seconds, "periodSeconds"),
        (probe.initial_delay_seconds, "initialDelaySeconds"),
        (probe.timeout_seconds, "timeoutSeconds"),
        (probe.success_threshold, "successThreshold"),
        (probe.failure_threshold, "failureThreshold"),
    ];
    for (number, name) in numbers {
        report.error_if(number < 0, format_args!("{name} must be non-negative"));
    }
    match &probe.health_check_method {
        Some(HealthCheckMethod::HttpGet(http)) => {
            report.check(names::port(http.port));
            let known = matches!(http.scheme.as_str(), "" | "HTTP" | "HTTPS");
            report.error_if(!known, "httpGet.scheme must be one of \"HTTPS\", \"HTTP\"");
            for header in &http.http_headers {
                report.check(headers::probe_name(&header.name));
            }
        }
        Some(HealthCheckMethod::TcpSocket(tcp)) => report.check(names::port(tcp.port)),
        Some(HealthCheckMethod::Exec(exec)) => report.error_if(exec.command.is_empty(), "exec.command is required"),
        // Upstream does not check this method, although its agent supports it.
        Some(HealthCheckMethod::Grpc(grpc)) => report.check(names::port(grpc.port)),
        None => report.error("unknown health check method"),
    }
}
