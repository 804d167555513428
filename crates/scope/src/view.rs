//! The View: everything translation may read for one client.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::istio::mesh::v1alpha1::{ProxyConfig, mesh_config};
use api::istio::networking::v1alpha3::{OutboundTrafficPolicy, Sidecar, outbound_traffic_policy};
use model::config::Config;
use model::config::mesh::effective_proxy_config;
use model::endpoint::Endpoint;
use model::fetch_requests::KeySets;
use model::hashed::Hashed;
use model::names::{Hostname, ServiceKey};
use model::proxy::Proxy;
use model::service::Service;
use model::settings::Settings;
use model::snapshot::Snapshot;
use model::snapshot::endpoints::Endpoints;
use model::snapshot::objects::{Extensions, Gateways, SecurityPolicies};
use model::snapshot::routing::{ConsolidatedRule, Routing, VirtualServiceRule};
use model::snapshot::services::Services;
use model::snapshot::workloads::Credentials;

use crate::credentials::{self, Secret};
use crate::egress::{self, EgressListener};
use crate::gateway::{self, MergedGateway};
use crate::inbound::ServiceTarget;
use crate::patches::Patches;
use crate::rules;
use crate::visibility;

/// What one client may see. Clients that are alike in all that scope reads share one.
#[derive(Clone, Debug)]
pub struct View {
    pub proxy: Arc<Proxy>,
    pub settings: Arc<Settings>,
    /// The client's own settings: those it sent, or the mesh's.
    pub proxy_config: Hashed<ProxyConfig>,
    /// The Sidecar resource that rules this client, if one does.
    pub sidecar: Option<Config<Sidecar>>,
    /// Where traffic to unknown destinations goes.
    pub outbound_policy: Hashed<OutboundTrafficPolicy>,
    /// Egress listeners with the services and routes each imports; one catch-all without a Sidecar.
    pub egress: Vec<EgressListener>,
    /// Services of all egress listeners, each host once.
    pub services: Vec<Arc<Service>>,
    /// Services that this client itself is an endpoint of.
    pub inbound: Vec<ServiceTarget>,
    /// Gateways that select this client, merged; routers only.
    pub gateway: Option<MergedGateway>,
    pub policy: Arc<SecurityPolicies>,
    /// Keys that were fetched for request authentication.
    pub keys: Arc<KeySets>,
    pub gateways: Arc<Gateways>,
    pub extensions: Arc<Extensions>,
    /// What EnvoyFilters change in this client's config.
    pub patches: Arc<Patches>,
    /// Endpoints of the whole mesh; read them through `endpoints`.
    mesh_endpoints: Arc<Endpoints>,
    /// Credentials of the whole mesh; read them through `secret`.
    credentials: Arc<Credentials>,
    mesh_services: Arc<Services>,
    mesh_routing: Arc<Routing>,
    by_host: BTreeMap<Hostname, usize>,
    rules: BTreeMap<Hostname, Vec<Arc<ConsolidatedRule>>>,
}

impl View {
    /// The view of one client that serves `inbound`, as `inbound::targets` tells.
    pub fn new(world: &Snapshot, proxy: &Arc<Proxy>, inbound: Vec<ServiceTarget>) -> View {
        let sidecar = egress::sidecar_for(world, proxy);
        let egress = egress::listeners(world, proxy, sidecar.as_ref());
        let services = egress::imported_services(world, proxy, &egress);
        let by_host = services.iter().enumerate().map(|(i, s)| (s.hostname.clone(), i)).collect();
        View {
            proxy: proxy.clone(),
            settings: world.settings.clone(),
            proxy_config: Hashed::from_message(effective_proxy_config(&world.settings.mesh, &proxy.proxy_config)),
            outbound_policy: outbound_policy(&world.settings, sidecar.as_ref()),
            gateway: gateway::merged(world, proxy, &inbound),
            inbound,
            policy: world.policy.clone(),
            keys: world.keys.clone(),
            gateways: world.gateways.clone(),
            extensions: world.extensions.clone(),
            patches: Arc::new(Patches::new(world, proxy)),
            mesh_endpoints: world.endpoints.clone(),
            credentials: world.credentials.clone(),
            mesh_services: world.services.clone(),
            mesh_routing: world.routing.clone(),
            rules: rules::for_services(world, proxy, &services),
            by_host,
            sidecar,
            egress,
            services,
        }
    }

    /// This view over a world in which only endpoints and credentials changed.
    #[must_use]
    pub fn refreshed(&self, world: &Snapshot, inbound: Vec<ServiceTarget>) -> View {
        let (mesh_endpoints, credentials) = (world.endpoints.clone(), world.credentials.clone());
        View { inbound, mesh_endpoints, credentials, ..self.clone() }
    }

    /// The imported service of this host name.
    pub fn service(&self, host: &str) -> Option<&Arc<Service>> {
        self.by_host.get(host).map(|index| &self.services[*index])
    }

    /// The service of this host name that the client would see if it were imported: for inbound use and
    /// for destinations that only a route names.
    pub fn any_service(&self, key: &ServiceKey) -> Option<&Arc<Service>> {
        self.mesh_services.get(key)
    }

    /// The service that mesh config names as `host` or `namespace/host`; `None` where that is not exactly one.
    pub fn named_service(&self, name: &str) -> Option<&Arc<Service>> {
        if let Some((namespace, host)) = name.split_once('/') {
            return self.mesh_services.get(&ServiceKey { hostname: host.into(), namespace: namespace.into() });
        }
        let mut owners = self.mesh_services.owners(name);
        owners.next().filter(|_| owners.next().is_none())
    }

    /// The rule for calls to this host, the one that selects this client before the one for all.
    pub fn destination_rule(&self, host: &str) -> Option<&Arc<ConsolidatedRule>> {
        rules::choose(self.rules.get(host)?, &self.proxy)
    }

    /// Routes bound to a gateway (`namespace/name`) that this client may see, in order of precedence.
    pub fn gateway_routes(&self, gateway: &str) -> Vec<Arc<VirtualServiceRule>> {
        visibility::routes(&self.mesh_routing, &self.settings, &self.proxy.namespace, gateway)
    }

    /// The rule that also holds for the server's side of this host: never one that selects clients.
    pub fn inbound_rule(&self, host: &str) -> Option<&Arc<ConsolidatedRule>> {
        rules::for_all(self.rules.get(host)?)
    }

    /// Services of the whole mesh that answer from outside it: they may be gateways between networks.
    pub fn gateway_services(&self) -> &[Arc<Service>] {
        self.mesh_services.external()
    }

    /// All endpoints of a service, every port, whatever their health.
    pub fn endpoints<'a>(&'a self, service: &Service) -> impl Iterator<Item = &'a Endpoint> + use<'a> {
        self.mesh_endpoints.of(&service.key())
    }

    /// The secret of this resource name, if there is one and this client may have it.
    pub fn secret(&self, name: &str) -> Option<Secret> {
        let named = self.gateway.as_ref().map(|gateway| &gateway.secrets);
        credentials::granted(&self.credentials, &self.proxy, named, name)
    }

    /// Whether mesh config (or the Sidecar) lets unknown destinations through.
    pub fn allows_any_outbound(&self) -> bool {
        self.outbound_policy.mode() == outbound_traffic_policy::Mode::AllowAny
    }

    /// Whether unknown destinations are resolved by the host that a request names.
    pub fn resolves_any_outbound(&self) -> bool {
        self.outbound_policy.mode == mesh_config::outbound_traffic_policy::Mode::AllowAnyDynamicDns as i32
    }
}

/// The Sidecar's policy, or the mesh's.
fn outbound_policy(settings: &Settings, sidecar: Option<&Config<Sidecar>>) -> Hashed<OutboundTrafficPolicy> {
    if let Some(policy) = sidecar.and_then(|s| s.spec.outbound_traffic_policy.as_ref()) {
        return Hashed::from_message(policy.clone());
    }
    let mode = settings
        .mesh
        .outbound_traffic_policy
        .as_ref()
        .map_or(outbound_traffic_policy::Mode::AllowAny as i32, |p| p.mode);
    Hashed::from_message(OutboundTrafficPolicy { mode, ..OutboundTrafficPolicy::default() })
}
