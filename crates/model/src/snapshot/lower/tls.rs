//! TLS of a listener: its certificates, and what is asked of clients.

use api::istio::networking::v1alpha3::ServerTlsSettings;
use api::istio::networking::v1alpha3::server_tls_settings::TlSmode;

use super::conditions::Fault;
use super::world::World;
use crate::config::gateway_api::{Gateway, Listener, ListenerTls, SecretReference, Validation};
use crate::config::validate::tls::usable_cipher_suites;
use crate::config::{Kind, Meta};
use crate::names::Holder;

const TERMINATE_MODE: &str = "gateway.istio.io/tls-terminate-mode";
const CIPHER_SUITES: &str = "gateway.istio.io/tls-cipher-suites";
const LISTENER_MODE: &str = "gateway.istio.io/listener-protocol";
/// Upstream sends at most this many server certificates.
const MOST_CERTIFICATES: usize = 2;

pub(super) const INVALID_CERTIFICATE: &str = "InvalidCertificateRef";
pub(super) const INVALID_CA: &str = "InvalidCACertificateRef";
pub(super) const INVALID_CA_KIND: &str = "InvalidCACertificateKind";
pub(super) const NOT_PERMITTED: &str = "RefNotPermitted";

/// Who owns a listener.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) kind: Kind,
    pub(super) meta: &'a Meta,
}

/// The settings of a listener, if it has any, and what is wrong with them.
pub(super) fn settings(
    world: &World<'_>,
    owner: Owner<'_>,
    listener: &Listener,
    validation: Option<&Validation>,
) -> (Option<ServerTlsSettings>, Option<Fault>) {
    let Some(tls) = &listener.tls else { return (None, None) };
    let mut out = ServerTlsSettings::default();
    let result = match tls.mode.as_deref().unwrap_or("Terminate") {
        "Terminate" => terminate(world, owner, tls, validation, &mut out),
        "Passthrough" => {
            let automatic = is_auto_passthrough(owner.meta, listener, tls);
            out.set_mode(if automatic { TlSmode::AutoPassthrough } else { TlSmode::Passthrough });
            Ok(Further::Yes)
        }
        _ => Ok(Further::Yes),
    };
    match result {
        Ok(Further::Yes) => out.cipher_suites = cipher_suites(tls),
        Ok(Further::No) => {}
        Err(fault) => return (Some(out), Some(fault)),
    }
    (Some(out), None)
}

/// Whether options beyond the mode count.
enum Further {
    Yes,
    No,
}

fn terminate(
    world: &World<'_>,
    owner: Owner<'_>,
    tls: &ListenerTls,
    validation: Option<&Validation>,
    out: &mut ServerTlsSettings,
) -> Result<Further, Fault> {
    out.set_mode(TlSmode::Simple);
    let mode = tls.options.get(TERMINATE_MODE).map(String::as_str);
    match mode {
        Some("MUTUAL") => out.set_mode(TlSmode::Mutual),
        Some("OPTIONAL_MUTUAL") => out.set_mode(TlSmode::OptionalMutual),
        Some("ISTIO_SIMPLE") => {
            out.credential_name = "builtin://".to_owned();
            return Ok(Further::No);
        }
        Some("ISTIO_MUTUAL") => {
            out.set_mode(TlSmode::IstioMutual);
            return Ok(Further::No);
        }
        _ => {}
    }
    if tls.certificate_refs.len() > MOST_CERTIFICATES {
        let message = "TLS mode can only support up to 2 server certificates";
        return Err(Fault::new(INVALID_CERTIFICATE, message));
    }
    let (good, bad): (Vec<_>, Vec<_>) =
        tls.certificate_refs.iter().map(|r| certificate(world, owner, r)).partition(Result::is_ok);
    let mut names: Vec<String> = good.into_iter().filter_map(Result::ok).collect();
    if names.is_empty() {
        let fault = bad.into_iter().fold(None, |all, one| Fault::joined(all, one.err()));
        return fault.map_or(Ok(Further::No), Err);
    }
    match names.len() {
        1 => out.credential_name = names.remove(0),
        _ => out.credential_names = names,
    }
    if let Some(validation) = validation.filter(|v| !v.ca_certificate_refs.is_empty()) {
        ask_clients(world, owner, validation, mode, out)?;
    }
    Ok(Further::Yes)
}

/// Asks clients for certificates of one authority.
fn ask_clients(
    world: &World<'_>,
    owner: Owner<'_>,
    validation: &Validation,
    mode: Option<&str>,
    out: &mut ServerTlsSettings,
) -> Result<(), Fault> {
    let [reference] = validation.ca_certificate_refs.as_slice() else {
        return Err(Fault::new(INVALID_CA, "only one caCertificateRef is supported"));
    };
    out.ca_cert_credential_name = authority(world, owner, reference)?;
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

/// The name under which a server certificate is asked for.
fn certificate(world: &World<'_>, owner: Owner<'_>, reference: &SecretReference) -> Result<String, Fault> {
    let fault = |what: String| Fault::new(INVALID_CERTIFICATE, what);
    usable_certificate(world, owner, reference).map_err(|why| match why {
        Unusable::Kind => fault(format!("invalid certificate reference {}, only secret is allowed", shown(reference))),
        Unusable::Secret(why) => fault(format!("invalid certificate reference {}, {why}", shown(reference))),
        Unusable::NotGranted => Fault::new(NOT_PERMITTED, not_granted("certificateRef", owner, reference)),
    })?;
    Ok(format!("kubernetes-gateway://{}/{}", namespace(owner, reference), reference.name))
}

/// Why a Secret cannot be used by its referrer.
enum Unusable {
    Kind,
    Secret(String),
    NotGranted,
}

fn usable_certificate(world: &World<'_>, owner: Owner<'_>, reference: &SecretReference) -> Result<(), Unusable> {
    if !reference.group.is_empty() || reference.kind != "Secret" {
        return Err(Unusable::Kind);
    }
    let namespace = namespace(owner, reference);
    let Some(secret) = world.credential(Holder::Secret, namespace, &reference.name) else {
        return Err(Unusable::Secret(format!("secret {namespace}/{} not found", reference.name)));
    };
    if let Some(why) = &secret.fault {
        return Err(Unusable::Secret(why.to_string()));
    }
    if !granted(world, owner, reference) {
        return Err(Unusable::NotGranted);
    }
    Ok(())
}

/// The name under which the certificate of an authority is asked for.
fn authority(world: &World<'_>, owner: Owner<'_>, reference: &SecretReference) -> Result<String, Fault> {
    let namespace = namespace(owner, reference);
    let (holder, scheme) = match (reference.group.as_str(), reference.kind.as_str()) {
        ("", "ConfigMap") => (Holder::ConfigMap, "configmap"),
        ("", "Secret") => (Holder::Secret, "kubernetes-gateway"),
        _ => {
            let message =
                format!("invalid CA certificate reference {}, only secret and configmap are allowed", shown(reference));
            return Err(Fault::new(INVALID_CA_KIND, message));
        }
    };
    let fault = |why: &str| {
        Err(Fault::new(INVALID_CA, format!("invalid CA certificate reference {}, {why}", shown(reference))))
    };
    let Some(found) = world.credential(holder, namespace, &reference.name) else {
        return fault(&format!("{} {namespace}/{} not found", reference.kind.to_lowercase(), reference.name));
    };
    if let Some(why) = found.authority_fault.as_ref().or(found.bundle_fault.as_ref()) {
        return fault(why);
    }
    if !granted(world, owner, reference) {
        // Upstream spells this reference the other way round.
        let message = format!(
            "caCertificateRef {namespace}/{} not accessible to a Gateway in namespace {:?} (missing a ReferenceGrant?)",
            reference.name,
            owner.meta.namespace.as_str()
        );
        return Err(Fault::new(NOT_PERMITTED, message));
    }
    Ok(format!("{scheme}://{namespace}/{}-cacert", reference.name))
}

/// What is wrong with the certificate that a gateway is to show to backends.
pub(super) fn client_certificate(world: &World<'_>, meta: &Meta, gateway: &Gateway) -> Option<Fault> {
    const INVALID: &str = "InvalidClientCertificateRef";
    let reference = gateway.tls.backend.client_certificate_ref.as_ref()?;
    let owner = Owner { kind: Kind::KubernetesGateway, meta };
    let fault = match usable_certificate(world, owner, reference).err()? {
        Unusable::Kind => {
            Fault::new(INVALID, format!("invalid clientCertificateRef {}, only secret is allowed", shown(reference)))
        }
        Unusable::Secret(why) => {
            Fault::new(INVALID, format!("invalid clientCertificateRef {}, {why}", shown(reference)))
        }
        Unusable::NotGranted => Fault::new(NOT_PERMITTED, not_granted("clientCertificateRef", owner, reference)),
    };
    Some(fault)
}

fn granted(world: &World<'_>, owner: Owner<'_>, reference: &SecretReference) -> bool {
    let namespace = namespace(owner, reference);
    let from = (owner.kind, owner.meta.namespace.as_str());
    owner.meta.namespace == namespace || world.grants.admit(from, (&reference.kind, namespace), &reference.name)
}

fn not_granted(field: &str, owner: Owner<'_>, reference: &SecretReference) -> String {
    format!(
        "{field} {}/{} not accessible to a Gateway in namespace {:?} (missing a ReferenceGrant?)",
        reference.name,
        namespace(owner, reference),
        owner.meta.namespace.as_str()
    )
}

fn namespace<'a>(owner: Owner<'a>, reference: &'a SecretReference) -> &'a str {
    reference.namespace.as_deref().unwrap_or(owner.meta.namespace.as_str())
}

fn shown(reference: &SecretReference) -> String {
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    format!("{}/{}/{}.{namespace}", reference.group, reference.kind, reference.name)
}

/// Whether every service is reachable by its server name: by an option, or by the port of a network's gateway.
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
