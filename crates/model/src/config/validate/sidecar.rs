//! Rules of Sidecar.

use std::collections::{BTreeMap, BTreeSet};

use api::istio::networking::v1alpha3::outbound_traffic_policy::Mode;
use api::istio::networking::v1alpha3::server_tls_settings::TlSmode;
use api::istio::networking::v1alpha3::{
    CaptureMode, IstioEgressListener, IstioIngressListener, OutboundTrafficPolicy, ServerTlsSettings, Sidecar,
    SidecarPort,
};

use super::names::{self, HostOf, UNIX};
use super::report::{Report, Rule, Violation};
use super::route_parts::destination;
use super::service_entry::known_protocol;
use super::{connection_pool, selector, tls};
use crate::config::Meta;
use crate::port::Protocol;

/// MeshConfig's ALLOW_ANY_DYNAMIC_DNS, which is not valid in a Sidecar.
const DYNAMIC_DNS: i32 = 3;
const PORTS_NOT_UNIQUE: &str = "sidecar: ports on IP bound listeners must be unique";

pub(super) fn check(meta: &Meta, sidecar: &Sidecar, report: &mut Report) {
    selector::networking(sidecar.workload_selector.as_ref().map(|selector| &selector.labels), "sidecar", report);
    let empty = sidecar.egress.is_empty()
        && sidecar.ingress.is_empty()
        && sidecar.outbound_traffic_policy.is_none()
        && sidecar.inbound_connection_pool.is_none();
    report.error_if(empty, "sidecar: empty configuration provided");
    let mut ports = BTreeSet::new();
    report.each("ingress", &sidecar.ingress, |report, listener| match &listener.port {
        None => report.error("sidecar: port is required for ingress listeners"),
        Some(port) => {
            report.error_if(!ports.insert(port.number), PORTS_NOT_UNIQUE);
            ingress(listener, port, report);
        }
    });
    report.given("inboundConnectionPool", sidecar.inbound_connection_pool.as_ref(), connection_pool::check);
    let (mut ports, mut sockets) = (BTreeSet::new(), BTreeSet::new());
    let last = sidecar.egress.len().saturating_sub(1);
    for (index, listener) in sidecar.egress.iter().enumerate() {
        report.within(format_args!("egress[{index}]"), |report| {
            match &listener.port {
                None => report.error_if(
                    index != last,
                    "sidecar: the egress listener with empty port should be the last listener in the list",
                ),
                Some(port) => {
                    egress_port(listener, port, report);
                    if port.number == 0 {
                        let unique = sockets.insert(listener.bind.as_str());
                        report.error_if(!unique, "sidecar: unix domain socket values for listeners must be unique");
                    } else {
                        report.error_if(!ports.insert(port.number), PORTS_NOT_UNIQUE);
                    }
                }
            }
            egress_hosts(&meta.namespace, &listener.hosts, report);
        });
    }
    report.given("outboundTrafficPolicy", sidecar.outbound_traffic_policy.as_ref(), outbound_policy);
}

fn ingress(listener: &IstioIngressListener, port: &SidecarPort, report: &mut Report) {
    ports_in_general(port, report);
    report.check(names::port(port.number));
    if !listener.bind.is_empty() {
        report.check(names::ip(&listener.bind));
    }
    if !listener.default_endpoint.is_empty() {
        report.within("defaultEndpoint", |report| report.check(default_endpoint(&listener.default_endpoint)));
    }
    let protocol = Protocol::parse(&port.protocol);
    report.given("tls", listener.tls.as_ref(), |report, settings| {
        ingress_tls(settings, report);
        report.error_if(!protocol.is_tls(), "server cannot have TLS settings for non HTTPS/TLS ports");
        tls::server(report, settings);
    });
    report.given("connectionPool", listener.connection_pool.as_ref(), connection_pool::check);
    let http_settings = listener.connection_pool.as_ref().is_some_and(|pool| pool.http.is_some());
    report.warn_if(
        http_settings && !protocol.is_http(),
        format_args!(
            "sidecar: HTTP connection pool settings are configured for port {} ({:?}) but its protocol is not HTTP ({}); only TCP settings will apply",
            port.number, port.name, port.protocol
        ),
    );
}

fn ports_in_general(port: &SidecarPort, report: &mut Report) {
    report.error_if(port.target_port > 0, "targetPort has no impact on Sidecars");
    if !port.name.is_empty() {
        report.check(names::port_name(&port.name));
    }
    report.check(known_protocol(&port.protocol));
}

/// The address of the application: `127.0.0.1:port`, `[::1]:port`, `:port` or a Unix socket.
fn default_endpoint(endpoint: &str) -> Rule {
    if let Some(path) = endpoint.strip_prefix(UNIX) {
        return names::unix_path(path);
    }
    let (host, port) =
        names::host_and_port(endpoint).ok_or_else(|| format!("address {endpoint}: missing port in address"))?;
    if !matches!(host, "" | "127.0.0.1" | "0.0.0.0" | "::1" | "::") {
        return Err(Violation::from("sidecar: defaultEndpoint must be of form 127.0.0.1:<port>,0.0.0.0:<port>,[::1]:port,[::]:port,unix://filepath or unset".to_owned()));
    }
    match port.parse::<i64>() {
        Ok(number) => names::port(number),
        Err(error) => Err(Violation::from(format!("sidecar: defaultEndpoint port ({port}) is not a number: {error}"))),
    }
}

fn ingress_tls(settings: &ServerTlsSettings, report: &mut Report) {
    let refused = [
        (!settings.subject_alt_names.is_empty(), "subjectAltNames is not supported in ingress tls"),
        (settings.https_redirect, "httpsRedirect is not supported"),
        (!settings.credential_name.is_empty(), "credentialName is not currently supported"),
        (!settings.credential_names.is_empty(), "credentialNames is not currently supported"),
        (!settings.tls_certificates.is_empty(), "tls_certificates is not currently supported"),
    ];
    for (given, message) in refused {
        report.error_if(given, format_args!("sidecar: {message}"));
    }
    let mode = settings.mode();
    report.error_if(
        matches!(mode, TlSmode::IstioMutual | TlSmode::AutoPassthrough),
        format_args!("configuration is invalid: cannot set mode to {} in sidecar ingress tls", mode.as_str_name()),
    );
}

fn egress_port(listener: &IstioEgressListener, port: &SidecarPort, report: &mut Report) {
    ports_in_general(port, report);
    if port.number != 0 {
        report.check(names::port(port.number));
        if !listener.bind.is_empty() {
            report.check(names::ip(&listener.bind));
        }
        return;
    }
    match listener.bind.strip_prefix(UNIX) {
        Some(path) => report.check(names::unix_path(path)),
        None => report.error("sidecar: ports with 0 value must have a unix domain socket bind address"),
    }
    report.error_if(
        listener.capture_mode() == CaptureMode::Iptables,
        "sidecar: captureMode must be DEFAULT/NONE for unix domain socket listeners",
    );
}

/// Hosts as `namespace/host`; warns if another entry covers one.
fn egress_hosts(namespace: &str, hosts: &[String], report: &mut Report) {
    report.error_if(hosts.is_empty(), "sidecar: egress listener must contain at least one host");
    let mut seen: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for entry in hosts {
        names::namespaced_host(entry, HostOf::Sidecar, report);
        let Some((of, host)) = entry.split_once('/').filter(|(of, _)| !of.starts_with('~')) else { continue };
        let known = seen.entry(if of == "." { namespace } else { of }).or_default();
        let covered = match host {
            "*" => !known.is_empty(),
            host => known.contains(host) || known.contains("*"),
        };
        report.warn_if(covered, format_args!("duplicated egress host: {entry}"));
        known.insert(host);
    }
    let everything = seen.get("*").is_some_and(|hosts| hosts.contains("*"));
    report.warn_if(everything && seen.len() != 1, "`*/*` host select all resources, no other hosts can be added");
}

fn outbound_policy(report: &mut Report, policy: &OutboundTrafficPolicy) {
    if policy.mode == DYNAMIC_DNS {
        return report
            .error("sidecar: ALLOW_ANY_DYNAMIC_DNS mode is only supported in MeshConfig, not in Sidecar resource");
    }
    let Some(proxy) = &policy.egress_proxy else { return };
    if policy.mode() != Mode::AllowAny {
        return report.error("sidecar: egress_proxy must be set only with ALLOW_ANY outbound_traffic_policy mode");
    }
    report.check(names::fqdn(&proxy.host));
    match proxy.port {
        None => report.error("sidecar: egress_proxy port must be non-nil"),
        Some(_) => destination(report, proxy),
    }
}
