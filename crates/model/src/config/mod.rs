//! The table of config kinds, and objects of any kind. A new kind is one row here; exhaustive matches on `Kind` and
//! `Spec` then fail to compile wherever it must be handled. See "Adding a config kind" in ARCHITECTURE.md.

pub mod check;
pub mod codes;
pub mod definition;
pub mod encode;
pub mod envelope;
pub mod gateway_api;
pub mod legacy;
pub mod lines;
pub mod mesh;
pub mod message;
mod meta;
pub mod parse;
pub mod patches;
mod pattern;
pub mod print;
pub mod problem;
pub mod rbac;
mod text;
pub mod timestamp;
pub mod traits;
pub mod validate;

pub use text::read_yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use api::istio;

use crate::hashed::Hashed;
use crate::labels::Labels;
use crate::names::{Namespace, Str};
use crate::packed::Packed;
use problem::FileLocation;

macro_rules! kinds {
    (
        messages { $($kind:ident, $group:literal, $plural:literal, $versions:expr, $message:literal, $holder:ident<$type:ty>;)* }
        documents { $($plain:ident, $name:literal, $p_group:literal, $p_plural:literal, $p_versions:expr, $p_type:ty;)* }
        legacy { $($old:ident, $o_name:literal, $o_group:literal, $o_plural:literal, $o_versions:expr;)* }
    ) => {
        /// A kind of config object.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($kind,)*
            $($plain,)*
            $($old,)*
        }

        /// The spec of an object.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Spec {
            $($kind($holder<$type>),)*
            $($plain(Hashed<$p_type>),)*
            $($old(Hashed<legacy::LegacySpec>),)*
        }

        impl Kind {
            /// All kinds, in the order of the table.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)* $(Kind::$plain,)* $(Kind::$old,)*];

            /// The `kind` in a document.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Kind::$kind => stringify!($kind),)*
                    $(Kind::$plain => $name,)*
                    $(Kind::$old => $o_name,)*
                }
            }

            /// The API group.
            pub fn group(self) -> &'static str {
                match self {
                    $(Kind::$kind => $group,)*
                    $(Kind::$plain => $p_group,)*
                    $(Kind::$old => $o_group,)*
                }
            }

            /// The plural in URLs and CRDs.
            pub fn plural(self) -> &'static str {
                match self {
                    $(Kind::$kind => $plural,)*
                    $(Kind::$plain => $p_plural,)*
                    $(Kind::$old => $o_plural,)*
                }
            }

            /// Supported versions, the preferred one first; all have the same schema.
            pub fn versions(self) -> &'static [&'static str] {
                match self {
                    $(Kind::$kind => $versions,)*
                    $(Kind::$plain => $p_versions,)*
                    $(Kind::$old => $o_versions,)*
                }
            }

            /// The protobuf message of the spec; `None` for kinds that are converted (Gateway API, Ingress, legacy kinds).
            pub fn message(self) -> Option<&'static str> {
                match self {
                    $(Kind::$kind => Some($message),)*
                    $(Kind::$plain => None,)*
                    $(Kind::$old => None,)*
                }
            }

            /// Decodes an encoded spec of this kind.
            pub fn decode(self, bytes: &[u8]) -> Result<Spec, prost::DecodeError> {
                match self {
                    $(Kind::$kind => <$type as prost::Message>::decode(bytes).map(|m| Spec::$kind($holder::from_message(m))),)*
                    $(Kind::$plain => Err(prost::DecodeError::new_unexpected_type_url($name, "a message of Istio")),)*
                    $(Kind::$old => Err(prost::DecodeError::new_unexpected_type_url($o_name, "a message of Istio")),)*
                }
            }

            /// Parses the spec of a kind without a message.
            fn read(self, spec: &serde_json::Value) -> Result<Spec, SpecError> {
                match self {
                    $(Kind::$plain => Ok(Spec::$plain(Hashed::new(gateway_api::read(spec)?))),)*
                    $(Kind::$old => Ok(Spec::$old(Hashed::new(legacy::LegacySpec::read(spec)?))),)*
                    $(Kind::$kind => Err(SpecError::Message($message)),)*
                }
            }
        }

        impl Spec {
            pub fn kind(&self) -> Kind {
                match self {
                    $(Spec::$kind(_) => Kind::$kind,)*
                    $(Spec::$plain(_) => Kind::$plain,)*
                    $(Spec::$old(_) => Kind::$old,)*
                }
            }

            /// The encoded message; `None` for kinds without one.
            pub fn encode(&self) -> Option<Vec<u8>> {
                match self {
                    $(Spec::$kind(m) => Some(m.encode()),)*
                    $(Spec::$plain(_) => None,)*
                    $(Spec::$old(_) => None,)*
                }
            }

            /// The spec as JSON; protobuf JSON if the kind has a message.
            pub fn to_json(&self) -> serde_json::Value {
                match self {
                    $(Spec::$kind(m) => print::message_to_json($message, &m.encode()),)*
                    $(Spec::$plain(it) => serde_json::to_value(&**it).unwrap_or_default(),)*
                    $(Spec::$old(it) => it.to_json(),)*
                }
            }

            /// The spec of a kind that `legacy` converts.
            pub(crate) fn legacy(&self) -> Option<&Hashed<legacy::LegacySpec>> {
                match self {
                    $(Spec::$old(it) => Some(it),)*
                    _ => None,
                }
            }
        }
    };
}

const V1: &[&str] = &["v1", "v1beta1", "v1alpha3"];
const SECURITY: &[&str] = &["v1", "v1beta1"];
const BETA: &[&str] = &["v1", "v1beta1"];
const V1ALPHA2: &[&str] = &["v1alpha2"];
const ALPHA: &[&str] = &["v1", "v1alpha3", "v1alpha2"];

kinds! {
    messages {
        VirtualService, "networking.istio.io", "virtualservices", V1, "istio.networking.v1alpha3.VirtualService", Hashed<istio::networking::v1alpha3::VirtualService>;
        DestinationRule, "networking.istio.io", "destinationrules", V1, "istio.networking.v1alpha3.DestinationRule", Hashed<istio::networking::v1alpha3::DestinationRule>;
        Gateway, "networking.istio.io", "gateways", V1, "istio.networking.v1alpha3.Gateway", Hashed<istio::networking::v1alpha3::Gateway>;
        ServiceEntry, "networking.istio.io", "serviceentries", V1, "istio.networking.v1alpha3.ServiceEntry", Packed<istio::networking::v1alpha3::ServiceEntry>;
        WorkloadEntry, "networking.istio.io", "workloadentries", V1, "istio.networking.v1alpha3.WorkloadEntry", Packed<istio::networking::v1alpha3::WorkloadEntry>;
        WorkloadGroup, "networking.istio.io", "workloadgroups", V1, "istio.networking.v1alpha3.WorkloadGroup", Hashed<istio::networking::v1alpha3::WorkloadGroup>;
        Sidecar, "networking.istio.io", "sidecars", V1, "istio.networking.v1alpha3.Sidecar", Hashed<istio::networking::v1alpha3::Sidecar>;
        EnvoyFilter, "networking.istio.io", "envoyfilters", &["v1alpha3"], "istio.networking.v1alpha3.EnvoyFilter", Hashed<istio::networking::v1alpha3::EnvoyFilter>;
        ProxyConfig, "networking.istio.io", "proxyconfigs", &["v1beta1"], "istio.networking.v1beta1.ProxyConfig", Hashed<istio::networking::v1beta1::ProxyConfig>;
        PeerAuthentication, "security.istio.io", "peerauthentications", SECURITY, "istio.security.v1beta1.PeerAuthentication", Hashed<istio::security::v1beta1::PeerAuthentication>;
        RequestAuthentication, "security.istio.io", "requestauthentications", SECURITY, "istio.security.v1beta1.RequestAuthentication", Hashed<istio::security::v1beta1::RequestAuthentication>;
        AuthorizationPolicy, "security.istio.io", "authorizationpolicies", SECURITY, "istio.security.v1beta1.AuthorizationPolicy", Hashed<istio::security::v1beta1::AuthorizationPolicy>;
        Telemetry, "telemetry.istio.io", "telemetries", &["v1", "v1alpha1"], "istio.telemetry.v1alpha1.Telemetry", Hashed<istio::telemetry::v1alpha1::Telemetry>;
        WasmPlugin, "extensions.istio.io", "wasmplugins", &["v1alpha1"], "istio.extensions.v1alpha1.WasmPlugin", Hashed<istio::extensions::v1alpha1::WasmPlugin>;
        TrafficExtension, "extensions.istio.io", "trafficextensions", &["v1alpha1"], "istio.extensions.v1alpha1.TrafficExtension", Hashed<istio::extensions::v1alpha1::TrafficExtension>;
    }
    documents {
        GatewayClass, "GatewayClass", "gateway.networking.k8s.io", "gatewayclasses", BETA, gateway_api::GatewayClass;
        KubernetesGateway, "Gateway", "gateway.networking.k8s.io", "gateways", BETA, gateway_api::Gateway;
        ListenerSet, "ListenerSet", "gateway.networking.k8s.io", "listenersets", &["v1"], gateway_api::ListenerSet;
        HttpRoute, "HTTPRoute", "gateway.networking.k8s.io", "httproutes", BETA, gateway_api::HttpRoute;
        GrpcRoute, "GRPCRoute", "gateway.networking.k8s.io", "grpcroutes", &["v1"], gateway_api::GrpcRoute;
        TcpRoute, "TCPRoute", "gateway.networking.k8s.io", "tcproutes", ALPHA, gateway_api::StreamRoute;
        TlsRoute, "TLSRoute", "gateway.networking.k8s.io", "tlsroutes", ALPHA, gateway_api::StreamRoute;
        ReferenceGrant, "ReferenceGrant", "gateway.networking.k8s.io", "referencegrants", &["v1beta1", "v1"], gateway_api::ReferenceGrant;
        BackendTlsPolicy, "BackendTLSPolicy", "gateway.networking.k8s.io", "backendtlspolicies", ALPHA, gateway_api::BackendTlsPolicy;
        BackendTrafficPolicy, "XBackendTrafficPolicy", "gateway.networking.x-k8s.io", "xbackendtrafficpolicies", &["v1alpha1"], gateway_api::BackendTrafficPolicy;
        Ingress, "Ingress", "networking.k8s.io", "ingresses", &["v1"], gateway_api::Ingress;
        IngressClass, "IngressClass", "networking.k8s.io", "ingressclasses", &["v1"], gateway_api::IngressClass;
        ServiceRole, "ServiceRole", "rbac.istio.io", "serviceroles", &["v1alpha1"], rbac::ServiceRole;
        ServiceRoleBinding, "ServiceRoleBinding", "rbac.istio.io", "servicerolebindings", &["v1alpha1"], rbac::ServiceRoleBinding;
        RbacConfig, "RbacConfig", "rbac.istio.io", "rbacconfigs", &["v1alpha1"], rbac::RbacConfig;
        ClusterRbacConfig, "ClusterRbacConfig", "rbac.istio.io", "clusterrbacconfigs", &["v1alpha1"], rbac::RbacConfig;
    }
    legacy {
        RouteRule, "RouteRule", "config.istio.io", "routerules", V1ALPHA2;
        EgressRule, "EgressRule", "config.istio.io", "egressrules", V1ALPHA2;
        DestinationPolicy, "DestinationPolicy", "config.istio.io", "destinationpolicies", V1ALPHA2;
        IngressRule, "IngressRule", "config.istio.io", "ingressrules", V1ALPHA2;
        AuthenticationPolicy, "Policy", "authentication.istio.io", "policies", &["v1alpha1"];
        AuthenticationMeshPolicy, "MeshPolicy", "authentication.istio.io", "meshpolicies", &["v1alpha1"];
        HttpApiSpec, "HTTPAPISpec", "config.istio.io", "httpapispecs", V1ALPHA2;
        HttpApiSpecBinding, "HTTPAPISpecBinding", "config.istio.io", "httpapispecbindings", V1ALPHA2;
        QuotaSpec, "QuotaSpec", "config.istio.io", "quotaspecs", V1ALPHA2;
        QuotaSpecBinding, "QuotaSpecBinding", "config.istio.io", "quotaspecbindings", V1ALPHA2;
        MixerRule, "rule", "config.istio.io", "rules", V1ALPHA2;
        MixerHandler, "handler", "config.istio.io", "handlers", V1ALPHA2;
        MixerInstance, "instance", "config.istio.io", "instances", V1ALPHA2;
        MixerAdapter, "adapter", "config.istio.io", "adapters", V1ALPHA2;
        MixerTemplate, "template", "config.istio.io", "templates", V1ALPHA2;
        AttributeManifest, "attributemanifest", "config.istio.io", "attributemanifests", V1ALPHA2;
    }
}

impl Kind {
    /// The kind of a document, by its `apiVersion` and `kind`.
    pub fn of(api_version: &str, kind: &str) -> Option<Kind> {
        let (group, version) = api_version.split_once('/')?;
        Kind::ALL.iter().copied().find(|k| k.as_str() == kind && k.group() == group && k.versions().contains(&version))
    }
}

impl Kind {
    /// Whether objects of this kind are converted to other kinds before use. Their status contains the generation.
    pub fn is_converted(self) -> bool {
        self.message().is_none()
    }

    /// Whether the kind is of an old Istio, up to 1.6.
    pub fn is_legacy(self) -> bool {
        matches!(self.group(), "config.istio.io" | "authentication.istio.io" | "rbac.istio.io")
    }

    /// Whether objects of this kind have no namespace.
    pub fn is_cluster_wide(self) -> bool {
        self.traits().is_cluster_wide
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a spec cannot be parsed as a document.
#[derive(Debug, thiserror::Error)]
enum SpecError {
    #[error("{0} is a message")]
    Message(&'static str),
    /// The error begins with the path of the value.
    #[error(transparent)]
    Document(#[from] serde_path_to_error::Error<serde_json::Error>),
    #[error("expected an object")]
    NotAnObject(#[from] legacy::NotAnObject),
}

impl SpecError {
    /// The path of the value below the spec.
    fn steps(&self) -> Vec<String> {
        use serde_path_to_error::Segment;
        let SpecError::Document(error) = self else { return Vec::new() };
        let step = |segment: &Segment| match segment {
            Segment::Seq { index } => Some(index.to_string()),
            Segment::Map { key } => Some(key.clone()),
            Segment::Enum { .. } | Segment::Unknown => None,
        };
        error.path().iter().map_while(step).collect()
    }
}

/// Identifies an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    pub namespace: Namespace,
    pub name: Str,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// The metadata of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Meta {
    pub name: Str,
    pub namespace: Namespace,
    pub labels: Labels,
    pub annotations: BTreeMap<Str, Str>,
    /// Seconds since 1970; the older object wins a conflict.
    pub created: i64,
    pub resource_version: Str,
    /// Its store supports statuses.
    pub keeps_status: bool,
    /// An object of another revision of the control plane, which writes its status and deploys it. A Gateway's proxies may
    /// still be ours and are configured.
    pub is_of_other_revision: bool,
    /// Automatic addresses in the status of a ServiceEntry: pairs of host and address.
    pub auto_addresses: Vec<(Str, Str)>,
    /// Condition `Healthy` in the status of a WorkloadEntry.
    pub health: Option<bool>,
    /// `metadata.generation`; 0 if not from an API server.
    pub generation: i64,
    /// Where it was read from, for messages.
    pub location: Option<FileLocation>,
}

impl Meta {
    pub fn key(&self, kind: Kind) -> Key {
        Key { kind, namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

/// A config object of any kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    pub meta: Arc<Meta>,
    pub spec: Spec,
}

impl Object {
    pub fn key(&self) -> Key {
        self.meta.key(self.spec.kind())
    }

    /// Whether both objects have the same effect. Resource version and location do not count, except for the resource
    /// version of extensions: users touch an extension to have its image pulled again.
    pub fn means_the_same_as(&self, other: &Object) -> bool {
        self.spec == other.spec
            && self.meta.name == other.meta.name
            && self.meta.namespace == other.meta.namespace
            && self.meta.labels == other.meta.labels
            && self.meta.is_of_other_revision == other.meta.is_of_other_revision
            && self.meta.created == other.meta.created
            && self.meta.auto_addresses == other.meta.auto_addresses
            && self.meta.health == other.meta.health
            && (!self.spec.kind().is_converted() || self.meta.generation == other.meta.generation)
            && (!self.spec.kind().traits().has_version || self.meta.resource_version == other.meta.resource_version)
            && meaningful(&self.meta.annotations).eq(meaningful(&other.meta.annotations))
    }
}

/// Annotations that change behaviour.
fn meaningful(annotations: &BTreeMap<Str, Str>) -> impl Iterator<Item = (&Str, &Str)> {
    annotations.iter().filter(|(key, _)| key.contains("istio.io/") || &***key == "kubernetes.io/ingress.class")
}

/// An object of one kind.
pub struct Config<T> {
    pub meta: Arc<Meta>,
    pub spec: Hashed<T>,
}

// Not derived: a derive would require `T: Clone`.
impl<T> Clone for Config<T> {
    fn clone(&self) -> Self {
        Config { meta: self.meta.clone(), spec: self.spec.clone() }
    }
}

impl<T> PartialEq for Config<T> {
    fn eq(&self, other: &Self) -> bool {
        self.meta == other.meta && self.spec == other.spec
    }
}

impl<T> Eq for Config<T> {}

impl<T> Hash for Config<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.meta.hash(state);
        self.spec.hash(state);
    }
}

impl<T: fmt::Debug> fmt::Debug for Config<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("meta", &self.meta).field("spec", &self.spec).finish()
    }
}
