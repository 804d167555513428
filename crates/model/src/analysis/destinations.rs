//! DestinationRules for missing hosts, and TLS without certificate verification.

use api::istio::networking::v1alpha3::client_tls_settings::TlSmode;
use api::istio::networking::v1alpha3::{ClientTlsSettings, DestinationRule};

use super::Finding;
use crate::config::{Kind, Object, Spec};
use crate::host::resolve_short_name;
use crate::snapshot::Snapshot;

fn rules(snapshot: &Snapshot) -> impl Iterator<Item = (&Object, &DestinationRule)> {
    snapshot.objects.of(Kind::DestinationRule).filter_map(|object| match &object.spec {
        Spec::DestinationRule(spec) => Some((object, &**spec)),
        _ => None,
    })
}

/// Hosts of DestinationRules must exist.
pub(super) fn hosts(snapshot: &Snapshot, found: &mut Vec<Finding>) {
    for (object, rule) in rules(snapshot) {
        let host = resolve_short_name(&rule.host, &object.meta.namespace, &snapshot.settings.domain);
        if !snapshot.services.iter().any(|service| service.hostname.overlaps(&host)) {
            let message = format!(
                "The host {} defined in the DestinationRule does not match any services in the mesh.",
                rule.host
            );
            found.push(Finding::warning("IST0174", object, message));
        }
    }
}

/// TLS settings should name the trusted CA certificates.
pub(super) fn certificates(snapshot: &Snapshot, found: &mut Vec<Finding>) {
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
            found.push(Finding::warning("IST0128", object, about(mode)));
        }
        for port in &policy.port_level_settings {
            if let Some(mode) = port.tls.as_ref().and_then(|tls| unchecked(tls, rule)) {
                let number = port.port.as_ref().map_or(0, |port| port.number);
                found.push(Finding::warning("IST0129", object, format!("{} at port number:{number}", about(mode))));
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
