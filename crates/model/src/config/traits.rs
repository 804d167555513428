//! How each kind is used, in one table: a new kind does not compile until it has a row.

use super::Kind;

const AGE: (&str, &str) = ("Age", ".metadata.creationTimestamp");

/// The properties of a kind.
#[derive(Clone, Copy, Debug)]
pub struct KindTraits {
    pub section: SnapshotSection,
    pub role: Role,
    /// Objects have no namespace.
    pub is_cluster_wide: bool,
    /// Objects may refer to Secrets or ConfigMaps; `credential_refs` reads the references.
    pub has_credentials: bool,
    /// The generated config contains the resource version.
    pub has_version: bool,
    /// The short name for kubectl.
    pub short_name: Option<&'static str>,
    /// Printer columns for kubectl: name and JSON path.
    pub columns: &'static [(&'static str, &'static str)],
}

/// The section of the snapshot that is rebuilt when an object of the kind changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SnapshotSection {
    Routing,
    Security,
    Gateways,
    Sidecars,
    Extensions,
    /// Services and endpoints.
    Services,
    /// Converted to other kinds first.
    Converted,
    /// Only stored.
    None,
}

/// What objects of a kind do; decides which ones may be blamed when Envoy rejects a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Defines workloads, services, gateways or their listeners.
    Definition,
    /// Defines how traffic is handled.
    Rule,
    /// A rule that keeps clients out: it is never replaced by an older version.
    Guard,
}

impl Kind {
    pub fn traits(self) -> KindTraits {
        use Role::{Definition, Guard, Rule};
        use SnapshotSection::{Converted, Extensions, Gateways, Routing, Security, Services, Sidecars};
        match self {
            Kind::VirtualService => {
                row(Routing, Rule).short("vs").columns(&[("Gateways", ".spec.gateways"), ("Hosts", ".spec.hosts"), AGE])
            }
            Kind::DestinationRule => {
                row(Routing, Rule).credentials().short("dr").columns(&[("Host", ".spec.host"), AGE])
            }
            Kind::Gateway => row(Gateways, Definition).credentials().short("gw"),
            Kind::ServiceEntry => row(Services, Definition).short("se").columns(&[
                ("Hosts", ".spec.hosts"),
                ("Location", ".spec.location"),
                ("Resolution", ".spec.resolution"),
                AGE,
            ]),
            Kind::WorkloadEntry => row(Services, Definition).short("we").columns(&[AGE, ("Address", ".spec.address")]),
            Kind::WorkloadGroup => row(SnapshotSection::None, Definition).short("wg"),
            Kind::Sidecar => row(Sidecars, Definition),
            Kind::EnvoyFilter => row(Extensions, Rule).credentials(),
            Kind::ProxyConfig => row(Extensions, Rule),
            Kind::PeerAuthentication => row(Security, Guard).short("pa").columns(&[("Mode", ".spec.mtls.mode"), AGE]),
            Kind::RequestAuthentication => row(Security, Guard).short("ra"),
            Kind::AuthorizationPolicy => row(Security, Guard).short("ap").columns(&[("Action", ".spec.action"), AGE]),
            Kind::Telemetry => row(Extensions, Rule).short("telemetry"),
            Kind::WasmPlugin | Kind::TrafficExtension => row(Extensions, Rule).version(),
            Kind::GatewayClass => row(Converted, Definition).cluster_wide(),
            Kind::KubernetesGateway | Kind::ListenerSet => row(Converted, Definition),
            Kind::HttpRoute | Kind::GrpcRoute | Kind::TcpRoute | Kind::TlsRoute => row(Converted, Rule),
            Kind::ReferenceGrant | Kind::BackendTrafficPolicy | Kind::Ingress => row(Converted, Rule),
            Kind::BackendTlsPolicy => row(Converted, Guard),
            Kind::IngressClass | Kind::ClusterRbacConfig => row(Converted, Rule).cluster_wide(),
            Kind::ServiceRole | Kind::ServiceRoleBinding | Kind::RbacConfig => row(Converted, Rule),
            Kind::RouteRule | Kind::DestinationPolicy | Kind::IngressRule => row(Converted, Rule),
            Kind::EgressRule => row(Services, Definition),
            Kind::AuthenticationPolicy => row(Converted, Guard),
            Kind::AuthenticationMeshPolicy => row(Converted, Guard).cluster_wide(),
            Kind::HttpApiSpec | Kind::HttpApiSpecBinding | Kind::QuotaSpec | Kind::QuotaSpecBinding => {
                row(SnapshotSection::None, Rule)
            }
            Kind::MixerRule | Kind::MixerHandler | Kind::MixerInstance => row(SnapshotSection::None, Rule),
            Kind::MixerAdapter | Kind::MixerTemplate | Kind::AttributeManifest => row(SnapshotSection::None, Rule),
        }
    }
}

fn row(section: SnapshotSection, role: Role) -> KindTraits {
    KindTraits {
        section,
        role,
        is_cluster_wide: false,
        has_credentials: false,
        has_version: false,
        short_name: None,
        columns: &[],
    }
}

impl KindTraits {
    fn credentials(self) -> KindTraits {
        KindTraits { has_credentials: true, ..self }
    }

    fn version(self) -> KindTraits {
        KindTraits { has_version: true, ..self }
    }

    fn cluster_wide(self) -> KindTraits {
        KindTraits { is_cluster_wide: true, ..self }
    }

    fn short(self, name: &'static str) -> KindTraits {
        KindTraits { short_name: Some(name), ..self }
    }

    fn columns(self, columns: &'static [(&'static str, &'static str)]) -> KindTraits {
        KindTraits { columns, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, SnapshotSection};

    #[test]
    fn kinds_of_the_conversion_have_no_message() {
        for kind in Kind::ALL {
            let is_in_section = kind.traits().section == SnapshotSection::Converted;
            assert_eq!(is_in_section, kind.message().is_none() && !is_used_otherwise(*kind), "{kind}");
        }
    }

    /// An EgressRule is read as a ServiceEntry, and Mixer's kinds have no effect.
    fn is_used_otherwise(kind: Kind) -> bool {
        kind.is_legacy() && matches!(kind.traits().section, SnapshotSection::Services | SnapshotSection::None)
    }
}
