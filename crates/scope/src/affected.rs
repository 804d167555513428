//! Which parts of a client's config a change can touch. What is not named here is taken over as it is.

use std::collections::BTreeSet;

use model::config::Kind;
use model::names::ServiceKey;
use model::service::Resolution;
use model::snapshot::Delta;

use crate::View;

/// Parts that must be made again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affected {
    pub clusters: bool,
    pub listeners: bool,
    pub routes: bool,
    pub names: bool,
    pub extensions: bool,
    pub secrets: bool,
    pub endpoints: AffectedEndpoints,
}

/// Load assignments that must be made again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AffectedEndpoints {
    #[default]
    None,
    Of(BTreeSet<ServiceKey>),
    All,
}

impl Affected {
    pub fn everything() -> Affected {
        Affected {
            clusters: true,
            listeners: true,
            routes: true,
            names: true,
            extensions: true,
            secrets: true,
            endpoints: AffectedEndpoints::All,
        }
    }
}

/// Whether only endpoints or credentials changed, so that the view before can be refreshed instead of cut anew.
pub fn is_endpoints_only(delta: &Delta) -> bool {
    let entries = |kind: Kind| {
        kind.is_converted() || matches!(kind, Kind::ServiceEntry | Kind::WorkloadEntry | Kind::WorkloadGroup)
    };
    let is_other = delta.settings || delta.keys || !delta.services.is_empty();
    !is_other && delta.objects.iter().all(|key| entries(key.kind))
}

/// What a change means for one client, given its view before and after.
pub fn affected(delta: &Delta, before: &View, after: &View) -> Affected {
    if delta.settings || !delta.services.is_empty() || before.inbound != after.inbound {
        return Affected::everything();
    }
    let mut found = Affected { listeners: delta.keys, secrets: !delta.credentials.is_empty(), ..Affected::default() };
    for kind in delta.objects.iter().map(|key| key.kind) {
        add_kind(&mut found, kind);
    }
    if found.endpoints != AffectedEndpoints::All {
        add_endpoints(&mut found, delta, before, after);
    }
    found
}

/// What objects of a kind are read for.
fn add_kind(found: &mut Affected, kind: Kind) {
    match kind {
        Kind::VirtualService | Kind::DestinationRule | Kind::Gateway | Kind::Sidecar | Kind::EnvoyFilter => {
            *found = Affected::everything()
        }
        Kind::PeerAuthentication => {
            found.clusters = true;
            found.listeners = true;
            found.endpoints = AffectedEndpoints::All;
        }
        Kind::RequestAuthentication | Kind::AuthorizationPolicy | Kind::Telemetry => {
            found.listeners = true;
            found.extensions = true;
            found.clusters = true;
        }
        Kind::WasmPlugin | Kind::TrafficExtension => {
            found.listeners = true;
            found.extensions = true;
        }
        // Injection reads it; what a client runs with, it says itself.
        Kind::ProxyConfig => {}
        // These reach a client through services and endpoints only.
        Kind::ServiceEntry | Kind::WorkloadEntry | Kind::WorkloadGroup => {}
        // These reach a client as the objects they are lowered to, which are told on their own.
        Kind::GatewayClass
        | Kind::KubernetesGateway
        | Kind::ListenerSet
        | Kind::HttpRoute
        | Kind::GrpcRoute
        | Kind::TcpRoute
        | Kind::TlsRoute
        | Kind::ReferenceGrant
        | Kind::BackendTlsPolicy
        | Kind::BackendTrafficPolicy
        | Kind::Ingress
        | Kind::IngressClass
        | Kind::ServiceRole
        | Kind::ServiceRoleBinding
        | Kind::RbacConfig
        | Kind::ClusterRbacConfig => {}
    }
}

fn add_endpoints(found: &mut Affected, delta: &Delta, before: &View, after: &View) {
    let mut keys = BTreeSet::new();
    for key in &delta.endpoints {
        let Some(service) = after.service(&key.hostname) else { continue };
        // Several namespaces may claim the host; endpoints of all but the imported one are invisible.
        if service.namespace != key.namespace {
            continue;
        }
        keys.insert(key.clone());
        match service.resolution {
            // Clusters hold what Envoy is to resolve itself.
            Resolution::Dns | Resolution::DnsRoundRobin | Resolution::DynamicDns => found.clusters = true,
            // Headless services have a listener and a name per endpoint.
            Resolution::Passthrough => {
                found.clusters = true;
                found.listeners = true;
                found.names = true;
            }
            Resolution::Alias => *found = Affected::everything(),
            Resolution::ClientSide => {
                // Clusters hold the identities that endpoints may have.
                let identities = |view: &View| -> BTreeSet<_> {
                    view.endpoints(service).map(|e| (e.service_account.clone(), e.tls as u8)).collect()
                };
                found.clusters |= identities(before) != identities(after);
            }
        }
    }
    if found.endpoints != AffectedEndpoints::All && !keys.is_empty() {
        found.endpoints = AffectedEndpoints::Of(keys);
    }
}
