//! TLS settings of a listener: server certificates and client validation.

use api::istio::networking::v1alpha3::ServerTlsSettings;
use api::istio::networking::v1alpha3::server_tls_settings::TlSmode;

use super::conditions::ConditionFault;
use super::tracked::TrackedSnapshot;
use crate::config::gateway_api::{ClientValidation, Gateway, Listener, ListenerTls, SecretReference};
use crate::config::validate::tls::usable_cipher_suites;
use crate::config::{Kind, Meta};
use crate::names::CredentialKind;

const TERMINATE_MODE: &str = "gateway.istio.io/tls-terminate-mode";
const CIPHER_SUITES: &str = "gateway.istio.io/tls-cipher-suites";
const LISTENER_MODE: &str = "gateway.istio.io/listener-protocol";
/// Upstream sends at most this many server certificates.
const MOST_CERTIFICATES: usize = 2;

pub(super) const INVALID_CERTIFICATE: &str = "InvalidCertificateRef";
pub(super) const INVALID_CA: &str = "InvalidCACertificateRef";
pub(super) const INVALID_CA_KIND: &str = "InvalidCACertificateKind";
pub(super) const NOT_PERMITTED: &str = "RefNotPermitted";

/// The Gateway or ListenerSet of a listener.
#[derive(Clone, Copy)]
pub(super) struct ListenerOwner<'a> {
    pub(super) kind: Kind,
    pub(super) meta: &'a Meta,
}

/// The TLS settings of a listener, and their fault if any.
pub(super) fn settings(
    snapshot: &TrackedSnapshot<'_>,
    owner: ListenerOwner<'_>,
    listener: &Listener,
    validation: Option<&ClientValidation>,
) -> (Option<ServerTlsSettings>, Option<ConditionFault>) {
    let Some(tls) = &listener.tls else { return (None, None) };
    let mut out = ServerTlsSettings::default();
    let result = match tls.mode.as_deref().unwrap_or("Terminate") {
        "Terminate" => terminate(snapshot, owner, tls, validation, &mut out),
        "Passthrough" => {
            let automatic = is_auto_passthrough(owner.meta, listener, tls);
            out.set_mode(if automatic { TlSmode::AutoPassthrough } else { TlSmode::Passthrough });
            Ok(ExtraOptions::Apply)
        }
        _ => Ok(ExtraOptions::Apply),
    };
    match result {
        Ok(ExtraOptions::Apply) => out.cipher_suites = cipher_suites(tls),
        Ok(ExtraOptions::Skip) => {}
        Err(fault) => return (Some(out), Some(fault)),
    }
    (Some(out), None)
}

/// Whether options other than the mode are applied.
enum ExtraOptions {
    Apply,
    Skip,
}

fn terminate(
    snapshot: &TrackedSnapshot<'_>,
    owner: ListenerOwner<'_>,
    tls: &ListenerTls,
    validation: Option<&ClientValidation>,
    out: &mut ServerTlsSettings,
) -> Result<ExtraOptions, ConditionFault> {
    out.set_mode(TlSmode::Simple);
    let mode = tls.options.get(TERMINATE_MODE).map(String::as_str);
    match mode {
        Some("MUTUAL") => out.set_mode(TlSmode::Mutual),
        Some("OPTIONAL_MUTUAL") => out.set_mode(TlSmode::OptionalMutual),
        Some("ISTIO_SIMPLE") => {
            out.credential_name = "builtin://".to_owned();
            return Ok(ExtraOptions::Skip);
        }
        Some("ISTIO_MUTUAL") => {
            out.set_mode(TlSmode::IstioMutual);
            return Ok(ExtraOptions::Skip);
        }
        _ => {}
    }
    if tls.certificate_refs.len() > MOST_CERTIFICATES {
        let message = "TLS mode can only support up to 2 server certificates";
        return Err(ConditionFault::new(INVALID_CERTIFICATE, message));
    }
    let (good, bad): (Vec<_>, Vec<_>) =
        tls.certificate_refs.iter().map(|r| certificate(snapshot, owner, r)).partition(Result::is_ok);
    let mut names: Vec<String> = good.into_iter().filter_map(Result::ok).collect();
    if names.is_empty() {
        let fault = bad.into_iter().fold(None, |all, one| ConditionFault::joined(all, one.err()));
        return fault.map_or(Ok(ExtraOptions::Skip), Err);
    }
    match names.len() {
        1 => out.credential_name = names.remove(0),
        _ => out.credential_names = names,
    }
    if let Some(validation) = validation.filter(|v| !v.ca_certificate_refs.is_empty()) {
        ask_clients(snapshot, owner, validation, mode, out)?;
    }
    Ok(ExtraOptions::Apply)
}

/// Requires client certificates of one CA.
fn ask_clients(
    snapshot: &TrackedSnapshot<'_>,
    owner: ListenerOwner<'_>,
    validation: &ClientValidation,
    mode: Option<&str>,
    out: &mut ServerTlsSettings,
) -> Result<(), ConditionFault> {
    let [reference] = validation.ca_certificate_refs.as_slice() else {
        return Err(ConditionFault::new(INVALID_CA, "only one caCertificateRef is supported"));
    };
    out.ca_cert_credential_name = authority(snapshot, owner, reference)?;
    let lenient = validation.mode == "AllowInsecureFallback";
    let (mode, unverified) = match mode {
        Some("MUTUAL") => (TlSmode::Mutual, false),
        Some("OPTIONAL_MUTUAL") => (TlSmode::OptionalMutual, false),
        _ if lenient => (TlSmode::OptionalMutual, true),
        _ => (TlSmode::Mutual, false),
    };
    out.set_mode(mode);
    out.insecure_skip_verify = Some(unverified);
    Ok(())
}

/// The SDS name of a server certificate.
fn certificate(
    snapshot: &TrackedSnapshot<'_>,
    owner: ListenerOwner<'_>,
    reference: &SecretReference,
) -> Result<String, ConditionFault> {
    let fault = |what: String| ConditionFault::new(INVALID_CERTIFICATE, what);
    usable_certificate(snapshot, owner, reference).map_err(|why| match why {
        CertificateError::Kind => {
            fault(format!("invalid certificate reference {}, only secret is allowed", shown(reference)))
        }
        CertificateError::Secret(why) => fault(format!("invalid certificate reference {}, {why}", shown(reference))),
        CertificateError::NotGranted => {
            ConditionFault::new(NOT_PERMITTED, not_granted("certificateRef", owner, reference))
        }
    })?;
    Ok(format!("kubernetes-gateway://{}/{}", namespace(owner, reference), reference.name))
}

/// Why a certificate reference cannot be used.
enum CertificateError {
    Kind,
    Secret(String),
    NotGranted,
}

fn usable_certificate(
    snapshot: &TrackedSnapshot<'_>,
    owner: ListenerOwner<'_>,
    reference: &SecretReference,
) -> Result<(), CertificateError> {
    if !reference.group.is_empty() || reference.kind != "Secret" {
        return Err(CertificateError::Kind);
    }
    let namespace = namespace(owner, reference);
    let Some(secret) = snapshot.credential(CredentialKind::Secret, namespace, &reference.name) else {
        return Err(CertificateError::Secret(format!("secret {namespace}/{} not found", reference.name)));
    };
    if let Some(why) = &secret.key_pair_error {
        return Err(CertificateError::Secret(why.to_string()));
    }
    if !granted(snapshot, owner, reference) {
        return Err(CertificateError::NotGranted);
    }
    Ok(())
}

/// The SDS name of a CA certificate.
fn authority(
    snapshot: &TrackedSnapshot<'_>,
    owner: ListenerOwner<'_>,
    reference: &SecretReference,
) -> Result<String, ConditionFault> {
    let namespace = namespace(owner, reference);
    let (kind, scheme) = match (reference.group.as_str(), reference.kind.as_str()) {
        ("", "ConfigMap") => (CredentialKind::ConfigMap, "configmap"),
        ("", "Secret") => (CredentialKind::Secret, "kubernetes-gateway"),
        _ => {
            let message =
                format!("invalid CA certificate reference {}, only secret and configmap are allowed", shown(reference));
            return Err(ConditionFault::new(INVALID_CA_KIND, message));
        }
    };
    let fault = |why: &str| {
        Err(ConditionFault::new(INVALID_CA, format!("invalid CA certificate reference {}, {why}", shown(reference))))
    };
    let Some(found) = snapshot.credential(kind, namespace, &reference.name) else {
        return fault(&format!("{} {namespace}/{} not found", reference.kind.to_lowercase(), reference.name));
    };
    if let Some(why) = found.ca_error.as_ref().or(found.ca_bundle_error.as_ref()) {
        return fault(why);
    }
    if !granted(snapshot, owner, reference) {
        // Upstream swaps namespace and name here.
        let message = format!(
            "caCertificateRef {namespace}/{} not accessible to a Gateway in namespace {:?} (missing a ReferenceGrant?)",
            reference.name,
            owner.meta.namespace.as_str()
        );
        return Err(ConditionFault::new(NOT_PERMITTED, message));
    }
    Ok(format!("{scheme}://{namespace}/{}-cacert", reference.name))
}

/// The SDS name of the certificate that a gateway presents to backends, if it has one, or what is wrong with it.
pub(super) fn client_certificate(
    snapshot: &TrackedSnapshot<'_>,
    meta: &Meta,
    gateway: &Gateway,
) -> Option<Result<String, ConditionFault>> {
    const INVALID: &str = "InvalidClientCertificateRef";
    let reference = gateway.tls.backend.client_certificate_ref.as_ref()?;
    let owner = ListenerOwner { kind: Kind::KubernetesGateway, meta };
    let Err(error) = usable_certificate(snapshot, owner, reference) else {
        return Some(Ok(format!("kubernetes-gateway://{}/{}", namespace(owner, reference), reference.name)));
    };
    let fault = match error {
        CertificateError::Kind => ConditionFault::new(
            INVALID,
            format!("invalid clientCertificateRef {}, only secret is allowed", shown(reference)),
        ),
        CertificateError::Secret(why) => {
            ConditionFault::new(INVALID, format!("invalid clientCertificateRef {}, {why}", shown(reference)))
        }
        CertificateError::NotGranted => {
            ConditionFault::new(NOT_PERMITTED, not_granted("clientCertificateRef", owner, reference))
        }
    };
    Some(Err(fault))
}

fn granted(snapshot: &TrackedSnapshot<'_>, owner: ListenerOwner<'_>, reference: &SecretReference) -> bool {
    let namespace = namespace(owner, reference);
    let from = (owner.kind, owner.meta.namespace.as_str());
    owner.meta.namespace == namespace || snapshot.grants.admit(from, (&reference.kind, namespace), &reference.name)
}

fn not_granted(field: &str, owner: ListenerOwner<'_>, reference: &SecretReference) -> String {
    format!(
        "{field} {}/{} not accessible to a Gateway in namespace {:?} (missing a ReferenceGrant?)",
        reference.name,
        namespace(owner, reference),
        owner.meta.namespace.as_str()
    )
}

fn namespace<'a>(owner: ListenerOwner<'a>, reference: &'a SecretReference) -> &'a str {
    reference.namespace.as_deref().unwrap_or(owner.meta.namespace.as_str())
}

fn shown(reference: &SecretReference) -> String {
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    format!("{}/{}/{}.{namespace}", reference.group, reference.kind, reference.name)
}

/// Whether the listener passes TLS through to any service by SNI: by an option, or by the port of a network gateway.
fn is_auto_passthrough(meta: &Meta, listener: &Listener, tls: &ListenerTls) -> bool {
    if tls.options.get(LISTENER_MODE).is_some_and(|mode| mode == "auto-passthrough") {
        return true;
    }
    if meta.labels.get("topology.istio.io/network").is_none() {
        return false;
    }
    let port = meta.labels.get("networking.istio.io/gatewayPort").map_or("15443", |port| port);
    listener.port.to_string() == port
}

fn cipher_suites(tls: &ListenerTls) -> Vec<String> {
    let written = tls.options.get(CIPHER_SUITES).map(String::as_str).unwrap_or_default();
    let suites: Vec<String> =
        written.split(',').map(|suite| suite.trim().to_owned()).filter(|s| !s.is_empty()).collect();
    usable_cipher_suites(&suites).into_iter().map(str::to_owned).collect()
}
