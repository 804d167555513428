//! References to Secrets and ConfigMaps: the SDS resource names, and the set of all references in the mesh. Sources keep
//! the content of referenced Secrets only.

use std::collections::BTreeSet;

use api::istio::networking::v1alpha3::{DestinationRule, EnvoyFilter, Gateway, TrafficPolicy};
use api::{Struct, Value, value};

use crate::config::{Object, Spec};
use crate::names::{CredentialKey, CredentialKind, Str};

/// Suffix of the SDS name of a CA certificate. It is in the Secret of the full name, or in that of the bare name.
pub const CA_SUFFIX: &str = "-cacert";
/// Annotation of converted Gateways: the SDS name of the certificate that their proxies present to backends.
pub const BACKEND_CERTIFICATE_NOTE: &str = "internal.istio.io/backend-client-certificate";
const SECRET: &str = "kubernetes://";
const GATEWAY_SECRET: &str = "kubernetes-gateway://";
const CONFIG_MAP: &str = "configmap://";
/// Schemes without a Secret: workload certificates, and invalid references from the Gateway API conversion.
const ELSEWHERE: [&str; 2] = ["builtin://", "invalid://"];

/// A parsed SDS resource name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CredentialRef<'a> {
    pub scheme: CredentialScheme,
    /// `None` means the namespace of the client.
    pub namespace: Option<&'a str>,
    /// Including `CA_SUFFIX`.
    pub name: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialScheme {
    Secret,
    /// From the Gateway API, checked against ReferenceGrants.
    GatewaySecret,
    ConfigMap,
}

impl<'a> CredentialRef<'a> {
    /// Only `kubernetes://name` may omit the namespace.
    pub fn parse(resource: &'a str) -> Option<CredentialRef<'a>> {
        let (scheme, rest) = [
            (CredentialScheme::Secret, SECRET),
            (CredentialScheme::GatewaySecret, GATEWAY_SECRET),
            (CredentialScheme::ConfigMap, CONFIG_MAP),
        ]
        .into_iter()
        .find_map(|(scheme, prefix)| Some((scheme, resource.strip_prefix(prefix)?)))?;
        let (namespace, name) = match rest.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None if scheme == CredentialScheme::Secret => (None, rest),
            None => return None,
        };
        let is_whole = namespace != Some("") && !name.is_empty() && !name.contains('/');
        is_whole.then_some(CredentialRef { scheme, namespace, name })
    }

    pub fn is_ca(&self) -> bool {
        self.scheme == CredentialScheme::ConfigMap || self.name.ends_with(CA_SUFFIX)
    }

    /// The name without `CA_SUFFIX`.
    pub fn bare_name(&self) -> &'a str {
        self.name.strip_suffix(CA_SUFFIX).unwrap_or(self.name)
    }

    fn kind(&self) -> CredentialKind {
        match self.scheme {
            CredentialScheme::Secret | CredentialScheme::GatewaySecret => CredentialKind::Secret,
            CredentialScheme::ConfigMap => CredentialKind::ConfigMap,
        }
    }
}

/// The SDS resource name of a `credentialName`; `None` if it refers to no Secret.
pub fn resource_name(credential: &str) -> Option<String> {
    if credential.is_empty() || ELSEWHERE.iter().any(|scheme| credential.starts_with(scheme)) {
        return None;
    }
    let is_whole = [SECRET, GATEWAY_SECRET, CONFIG_MAP].iter().any(|scheme| credential.starts_with(scheme));
    Some(if is_whole { credential.to_owned() } else { format!("{SECRET}{credential}") })
}

/// All Secrets and ConfigMaps that config objects refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialRefs {
    keys: BTreeSet<CredentialKey>,
    /// Names of Secrets without a namespace: they are read from the namespace of the client.
    any_namespace: BTreeSet<Str>,
}

impl CredentialRefs {
    /// References of Gateways, DestinationRules, and EnvoyFilters whose patches contain SDS resource names.
    pub fn of<'a>(objects: impl IntoIterator<Item = &'a Object>) -> CredentialRefs {
        let mut named = CredentialRefs::default();
        for object in objects {
            match &object.spec {
                Spec::Gateway(gateway) => {
                    named.add_gateway(gateway);
                    object.meta.annotations.get(BACKEND_CERTIFICATE_NOTE).into_iter().for_each(|name| named.add(name));
                }
                Spec::DestinationRule(rule) => named.add_rule(rule),
                Spec::EnvoyFilter(filter) => named.add_filter(filter),
                Spec::VirtualService(_)
                | Spec::ServiceEntry(_)
                | Spec::WorkloadEntry(_)
                | Spec::WorkloadGroup(_)
                | Spec::Sidecar(_)
                | Spec::ProxyConfig(_)
                | Spec::PeerAuthentication(_)
                | Spec::RequestAuthentication(_)
                | Spec::AuthorizationPolicy(_)
                | Spec::Telemetry(_)
                | Spec::WasmPlugin(_)
                | Spec::TrafficExtension(_) => {}
                // Their references are those of the objects that they are converted to.
                Spec::GatewayClass(_)
                | Spec::KubernetesGateway(_)
                | Spec::ListenerSet(_)
                | Spec::HttpRoute(_)
                | Spec::GrpcRoute(_)
                | Spec::TcpRoute(_)
                | Spec::TlsRoute(_)
                | Spec::ReferenceGrant(_)
                | Spec::BackendTlsPolicy(_)
                | Spec::BackendTrafficPolicy(_)
                | Spec::Ingress(_)
                | Spec::IngressClass(_)
                | Spec::ServiceRole(_)
                | Spec::ServiceRoleBinding(_)
                | Spec::RbacConfig(_)
                | Spec::ClusterRbacConfig(_)
                | Spec::RouteRule(_)
                | Spec::EgressRule(_)
                | Spec::DestinationPolicy(_)
                | Spec::IngressRule(_)
                | Spec::AuthenticationPolicy(_)
                | Spec::AuthenticationMeshPolicy(_)
                | Spec::HttpApiSpec(_)
                | Spec::HttpApiSpecBinding(_)
                | Spec::QuotaSpec(_)
                | Spec::QuotaSpecBinding(_)
                | Spec::MixerRule(_)
                | Spec::MixerHandler(_)
                | Spec::MixerInstance(_)
                | Spec::MixerAdapter(_)
                | Spec::MixerTemplate(_)
                | Spec::AttributeManifest(_) => {}
            }
        }
        named
    }

    pub fn contains(&self, key: &CredentialKey) -> bool {
        self.keys.contains(key) || key.kind == CredentialKind::Secret && self.any_namespace.contains(&key.name)
    }

    fn add_gateway(&mut self, gateway: &Gateway) {
        for settings in gateway.servers.iter().filter_map(|server| server.tls.as_ref()) {
            let all = [&settings.credential_name, &settings.ca_cert_credential_name];
            all.into_iter().chain(&settings.credential_names).for_each(|name| self.add_credential(name));
        }
    }

    fn add_rule(&mut self, rule: &DestinationRule) {
        let of_subsets = rule.subsets.iter().filter_map(|subset| subset.traffic_policy.as_ref());
        rule.traffic_policy.iter().chain(of_subsets).for_each(|policy| self.add_policy(policy));
    }

    fn add_policy(&mut self, policy: &TrafficPolicy) {
        let of_ports = policy.port_level_settings.iter().filter_map(|port| port.tls.as_ref());
        policy.tls.iter().chain(of_ports).for_each(|tls| self.add_credential(&tls.credential_name));
    }

    fn add_filter(&mut self, filter: &EnvoyFilter) {
        let patches = filter.config_patches.iter().filter_map(|patch| patch.patch.as_ref()?.value.as_ref());
        patches.for_each(|patch| self.add_texts(patch));
    }

    fn add_texts(&mut self, value: &Struct) {
        value.fields.values().for_each(|value| self.add_text(value));
    }

    fn add_text(&mut self, value: &Value) {
        match &value.kind {
            Some(value::Kind::StringValue(text)) => self.add(text),
            Some(value::Kind::StructValue(inner)) => self.add_texts(inner),
            Some(value::Kind::ListValue(list)) => list.values.iter().for_each(|value| self.add_text(value)),
            _ => {}
        }
    }

    fn add_credential(&mut self, name: &str) {
        resource_name(name).iter().for_each(|resource| self.add(resource));
    }

    /// Adds both names: the CA of a certificate may be in its own Secret, and vice versa.
    fn add(&mut self, resource: &str) {
        let Some(reference) = CredentialRef::parse(resource) else { return };
        let bare = reference.bare_name();
        for name in [bare.into(), format!("{bare}{CA_SUFFIX}")] {
            let name = Str::from(name);
            match reference.namespace {
                Some(namespace) => {
                    let (kind, namespace) = (reference.kind(), namespace.into());
                    self.keys.insert(CredentialKey { kind, namespace, name });
                }
                None => _ = self.any_namespace.insert(name),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CredentialRefs;
    use crate::config::parse::documents;
    use crate::names::{CredentialKey, CredentialKind};

    fn named(text: &str) -> CredentialRefs {
        let parsed = documents(text, "test.yaml");
        assert!(parsed.problems.is_empty(), "{:?}", parsed.problems);
        CredentialRefs::of(&parsed.objects)
    }

    fn holds(named: &CredentialRefs, kind: CredentialKind, namespace: &str, name: &str) -> bool {
        named.contains(&CredentialKey { kind, namespace: namespace.into(), name: name.into() })
    }

    #[test]
    fn gateway_refers_to_secrets_of_the_client_or_of_one_namespace() {
        let named = named(
            "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: 443, name: a, protocol: HTTPS}, hosts: [a], tls: {mode: MUTUAL, credentialName: cert}}
  - {port: {number: 444, name: b, protocol: HTTPS}, hosts: [b], tls: {mode: SIMPLE, credentialName: 'kubernetes-gateway://bank/safe'}}
",
        );
        for (namespace, name, expected) in [
            ("edge", "cert", true),
            ("other", "cert-cacert", true),
            ("bank", "safe", true),
            ("edge", "safe", false),
            ("edge", "password", false),
        ] {
            assert_eq!(holds(&named, CredentialKind::Secret, namespace, name), expected, "{namespace}/{name}");
        }
        assert!(!holds(&named, CredentialKind::ConfigMap, "edge", "cert"));
    }

    #[test]
    fn destination_rules_refer_to_secrets_on_every_level() {
        let named = named(
            "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: a, namespace: shop}
spec:
  host: a.example
  trafficPolicy:
    tls: {mode: SIMPLE, credentialName: 'configmap://shop/roots'}
    portLevelSettings: [{port: {number: 443}, tls: {mode: MUTUAL, credentialName: of-port}}]
  subsets: [{name: v1, trafficPolicy: {tls: {mode: MUTUAL, credentialName: of-subset}}}]
",
        );
        assert!(
            holds(&named, CredentialKind::ConfigMap, "shop", "roots")
                && !holds(&named, CredentialKind::ConfigMap, "x", "roots")
        );
        assert!(
            holds(&named, CredentialKind::Secret, "shop", "of-port")
                && holds(&named, CredentialKind::Secret, "shop", "of-subset")
        );
    }

    #[test]
    fn patch_refers_to_the_names_it_contains() {
        let named = named(
            "
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: a, namespace: shop}
spec:
  configPatches:
  - applyTo: CLUSTER
    patch: {operation: MERGE, value: {name: a, transport_socket: {x: [{sds: {name: 'kubernetes://patched'}}]}}}
",
        );
        assert!(
            holds(&named, CredentialKind::Secret, "shop", "patched")
                && !holds(&named, CredentialKind::Secret, "shop", "a")
        );
    }
}
