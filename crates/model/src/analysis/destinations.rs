//! DestinationRules for missing hosts, and TLS without certificate verification.

use api::istio::networking::v1alpha3::client_tls_settings::TlSmode;
use api::istio::networking::v1alpha3::{ClientTlsSettings, DestinationRule};

use super::findings::Findings;
use super::{Finding, similar_host};
use crate::config::problem::ProblemCode;
use crate::config::{Kind, Object, Spec};
use crate::host::resolve_short_name;
use crate::names::Hostname;
use crate::service::Service;
use crate::snapshot::Snapshot;

fn rules(snapshot: &Snapshot) -> impl Iterator<Item = (&Object, &DestinationRule)> {
    snapshot.objects.of(Kind::DestinationRule).filter_map(|object| match &object.spec {
        Spec::DestinationRule(spec) => Some((object, &**spec)),
        _ => None,
    })
}

/// Hosts of DestinationRules must exist.
pub(super) fn hosts(snapshot: &Snapshot, found: &mut Findings) {
    let wildcards: Vec<&Service> =
        snapshot.services.iter().map(|service| &**service).filter(|service| service.hostname.is_wildcard()).collect();
    for (object, rule) in rules(snapshot) {
        let host = resolve_short_name(&rule.host, &object.meta.namespace, &snapshot.settings.domain);
        let compared = if host.is_wildcard() { snapshot.services.len() } else { wildcards.len() };
        if found.is_full(ProblemCode::RuleWithoutService) || !found.may_compare(compared) {
            return;
        }
        if !has_service(snapshot, &wildcards, &host) {
            if !found.may_compare(snapshot.services.len()) {
                return;
            }
            let message = format!(
                "The host {} defined in the DestinationRule does not match any services in the mesh.{}",
                rule.host,
                similar_host(snapshot, &rule.host, &host)
            );
            found.push(Finding::warning(ProblemCode::RuleWithoutService, object, message).at("spec.host"));
        }
    }
}

/// Whether a service has this host. Most hosts are found by name; only wildcards are compared with all services.
fn has_service(snapshot: &Snapshot, wildcards: &[&Service], host: &Hostname) -> bool {
    match host.is_wildcard() {
        true => snapshot.services.iter().any(|service| service.hostname.overlaps(host)),
        false => snapshot.services.owners(host).next().is_some() || wildcards.iter().any(|s| s.hostname.overlaps(host)),
    }
}

/// TLS settings should name the trusted CA certificates.
pub(super) fn certificates(snapshot: &Snapshot, found: &mut Findings) {
    for (object, rule) in rules(snapshot) {
        let Some(policy) = &rule.traffic_policy else { continue };
        let about = |mode: &str| {
            let (name, namespace) = (&object.meta.name, &object.meta.namespace);
            format!(
                "DestinationRule {name} in namespace {namespace} has TLS mode set to {mode} but no caCertificates are \
                 set to validate server identity for host: {}",
                rule.host
            )
        };
        if let Some(mode) = policy.tls.as_ref().and_then(|tls| unchecked(tls, rule)) {
            found.push(
                Finding::warning(ProblemCode::UnverifiedServer, object, about(mode)).at("spec.trafficPolicy.tls"),
            );
        }
        for (index, port) in policy.port_level_settings.iter().enumerate() {
            if let Some(mode) = port.tls.as_ref().and_then(|tls| unchecked(tls, rule)) {
                let number = port.port.as_ref().map_or(0, |port| port.number);
                let message = format!("{} at port number:{number}", about(mode));
                let finding = Finding::warning(ProblemCode::UnverifiedServerPort, object, message);
                found.push(finding.at(format!("spec.trafficPolicy.portLevelSettings[{index}].tls")));
            }
        }
    }
}

/// The TLS mode, if it accepts any certificate.
fn unchecked(tls: &ClientTlsSettings, rule: &DestinationRule) -> Option<&'static str> {
    let mode = match tls.mode() {
        TlSmode::Simple => "SIMPLE",
        TlSmode::Mutual => "MUTUAL",
        TlSmode::Disable | TlSmode::IstioMutual => return None,
    };
    let has_secret = !tls.credential_name.is_empty() && rule.workload_selector.is_some();
    (tls.ca_certificates.is_empty() && !has_secret).then_some(mode)
}
