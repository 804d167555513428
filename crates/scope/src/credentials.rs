//! Secrets by the names under which Envoy asks for them, and which of them a client may have. The rules are upstream's
//! with one difference: upstream checks that an account may list Secrets; we send keys only to gateways.

use std::collections::BTreeSet;

use api::istio::networking::v1alpha3::server_tls_settings::TlSmode;
use api::istio::networking::v1alpha3::{Gateway, ServerTlsSettings};
use model::change::{CaCertificates, Credential, KeyPair};
use model::config::{Config, Key, Kind};
use model::credential_refs::{BACKEND_CERTIFICATE_NOTE, CA_SUFFIX, CredentialRef, CredentialScheme, resource_name};
use model::names::{CredentialKey, CredentialKind, Str};
use model::proxy::{Proxy, ProxyKind};
use model::snapshot::Snapshot;
use model::snapshot::workloads::Credentials;

use crate::client::ReadProxy;

const ACCOUNT: &str = "internal.istio.io/service-account-name";

/// The secret that a client gets for a resource name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Secret {
    KeyPair(KeyPair),
    Ca(CaCertificates),
}

/// The secret of this resource name, if it exists and the client may have it. `named` are the names that its
/// gateways may use.
pub(crate) fn granted(
    credentials: &Credentials,
    proxy: &ReadProxy,
    named: Option<&BTreeSet<Str>>,
    resource: &str,
) -> Option<Secret> {
    let reference = CredentialRef::parse(resource)?;
    let own: &str = proxy.namespace.as_str();
    let namespace = reference.namespace.unwrap_or(own);
    let is_near = namespace == own;
    let is_granted = match reference.scheme {
        CredentialScheme::GatewaySecret => named.is_some_and(|named| named.contains(resource)),
        // CA certificates are public; they belong to the server that the client calls.
        CredentialScheme::ConfigMap => true,
        CredentialScheme::Secret => is_near && (reference.is_ca() || proxy.kind == ProxyKind::Router),
    };
    if is_granted { found(credentials, &reference, namespace) } else { None }
}

fn found(credentials: &Credentials, reference: &CredentialRef<'_>, namespace: &str) -> Option<Secret> {
    let get = |kind, name: &str| -> Option<&Credential> {
        let key = CredentialKey { kind, namespace: namespace.into(), name: name.into() };
        credentials.get(&key).map(|credential| &**credential)
    };
    let bare = reference.bare_name();
    if reference.scheme == CredentialScheme::ConfigMap {
        return get(CredentialKind::ConfigMap, bare)?.ca.clone().map(Secret::Ca);
    }
    if reference.is_ca() {
        // A CA certificate has a separate Secret, or is in the same Secret as the certificate.
        let credential = get(CredentialKind::Secret, reference.name).or_else(|| get(CredentialKind::Secret, bare))?;
        return credential.ca.clone().map(Secret::Ca);
    }
    get(CredentialKind::Secret, reference.name)?.key_pair.clone().map(Secret::KeyPair)
}

/// Resource names of secrets that a gateway refers to and that this client, which it selects, may therefore have.
/// `owner` is the namespace whose clients the gateway is for.
pub(crate) fn named_by(world: &Snapshot, proxy: &Proxy, gateway: &Config<Gateway>, owner: &str) -> BTreeSet<Str> {
    let account = gateway.meta.annotations.get(ACCOUNT).filter(|account| !account.is_empty());
    let is_its = account.is_none_or(|account| proxy.meta("SERVICE_ACCOUNT") == Some(&**account));
    if proxy.namespace != owner || !is_its {
        return BTreeSet::new();
    }
    // The conversion of Gateway API objects drops references without a grant.
    let is_checked = is_converted(world, gateway);
    let is_free = |resource: &str| {
        let near = |r: CredentialRef<'_>| {
            r.namespace.is_none_or(|namespace| proxy.namespace == namespace)
                && gateway.meta.namespace == proxy.namespace
        };
        is_checked || CredentialRef::parse(resource).is_some_and(near)
    };
    let settings = gateway.spec.servers.iter().filter_map(|server| server.tls.as_ref());
    let backend = gateway.meta.annotations.get(BACKEND_CERTIFICATE_NOTE).filter(|_| is_checked);
    let named = settings.flat_map(resources).filter(|name| is_free(name)).map(Str::from);
    named.chain(backend.map(|name| Str::from(&**name))).collect()
}

fn is_converted(world: &Snapshot, gateway: &Config<Gateway>) -> bool {
    let (namespace, name) = (gateway.meta.namespace.clone(), gateway.meta.name.clone());
    let key = Key { kind: Kind::Gateway, namespace, name };
    world.objects.get(&key).is_none() && world.converted.objects.get(&key).is_some()
}

/// Resource names for the TLS settings of a server.
fn resources(settings: &ServerTlsSettings) -> Vec<String> {
    let one = std::slice::from_ref(&settings.credential_name);
    let names = if settings.credential_names.is_empty() { one } else { &settings.credential_names[..] };
    let mut found = Vec::new();
    for resource in names.iter().filter_map(|name| resource_name(name)) {
        if matches!(settings.mode(), TlSmode::Mutual | TlSmode::OptionalMutual) {
            found.push(format!("{resource}{CA_SUFFIX}"));
        }
        found.push(resource);
    }
    found.extend(resource_name(&settings.ca_cert_credential_name));
    found
}

#[cfg(test)]
mod tests;
