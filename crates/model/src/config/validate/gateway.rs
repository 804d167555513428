//! Rules of Gateway.

use std::collections::BTreeSet;

use api::istio::networking::v1alpha3::server_tls_settings::TlSmode;
use api::istio::networking::v1alpha3::{Gateway, Port, Server};

use super::names::{self, HostOf, UNIX, is_dns_label};
use super::report::Report;
use super::tls;
use crate::config::Meta;
use crate::port::Protocol;

pub(super) fn check(meta: &Meta, gateway: &Gateway, report: &mut Report) {
    report.error_if(!is_dns_label(&meta.name), format_args!("invalid gateway name: {:?}", meta.name));
    report.error_if(gateway.servers.is_empty(), "gateway must have at least one server");
    report.each("servers", &gateway.servers, server);
    let mut names = BTreeSet::new();
    for (server, port) in gateway.servers.iter().filter_map(|server| Some((server, server.port.as_ref()?))) {
        let unique = names.insert(port.name.as_str());
        report.error_if(!unique, format_args!("port names in servers must be unique: duplicate name {}", port.name));
        let redirects = server.tls.as_ref().is_some_and(|tls| tls.https_redirect);
        report.warn_if(
            redirects && !Protocol::parse(&port.protocol).is_http(),
            "tls.httpsRedirect should only be used with http servers",
        );
    }
}

fn server(report: &mut Report, server: &Server) {
    report.error_if(server.hosts.is_empty(), "server config must contain at least one host");
    for host in &server.hosts {
        names::namespaced_host(host, HostOf::Gateway, report);
    }
    bind(server, report);
    report.given("tls", server.tls.as_ref(), tls::server);
    match &server.port {
        None => report.error("port is required"),
        Some(port) => {
            report.within("port", |report| check_port(port, &server.bind, report));
            tls_of_protocol(server, port, report);
        }
    }
}

fn check_port(port: &Port, bind: &str, report: &mut Report) {
    report.error_if(
        Protocol::parse(&port.protocol).is_unknown(),
        format_args!(
            "invalid protocol {:?}, supported protocols are HTTP, HTTP2, GRPC, GRPC-WEB, MONGO, REDIS, MYSQL, TCP",
            port.protocol
        ),
    );
    if port.number > 0 || !bind.starts_with(UNIX) {
        report.check(names::port(port.number));
    }
    report.error_if(port.target_port > 0, "targetPort has no impact on Gateways");
    report.error_if(port.name.is_empty(), format_args!("port name must be set: {} {}", port.number, port.protocol));
}

fn bind(server: &Server, report: &mut Report) {
    if let Some(path) = server.bind.strip_prefix(UNIX) {
        report.check(names::unix_path(path));
        let number = server.port.as_ref().map_or(0, |port| port.number);
        report.error_if(number != 0, format_args!("port number must be 0 for unix domain socket: {number}"));
    } else if !server.bind.is_empty() {
        report.check(names::ip(&server.bind));
    }
}

/// TLS settings belong to TLS ports; a plain HTTP port may only redirect.
fn tls_of_protocol(server: &Server, port: &Port, report: &mut Report) {
    let protocol = Protocol::parse(&port.protocol);
    let Some(tls) = &server.tls else {
        return report.error_if(protocol.is_tls(), "server must have TLS settings for HTTPS/TLS protocols");
    };
    if protocol.is_tls() || protocol.is_unknown() {
        return;
    }
    if !protocol.is_http() {
        return report.error("server cannot have TLS settings for non HTTPS/TLS ports");
    }
    let passes = matches!(tls.mode(), TlSmode::Passthrough | TlSmode::AutoPassthrough);
    let files = [&tls.ca_certificates, &tls.private_key, &tls.server_certificate];
    report.error_if(
        !passes || files.iter().any(|file| !file.is_empty()),
        "server cannot have TLS settings for plain text HTTP ports",
    );
}
