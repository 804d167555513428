//! The View: everything translation may read for one client.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use api::istio::mesh::v1alpha1::{ProxyConfig, mesh_config};
use api::istio::networking::v1alpha3::{OutboundTrafficPolicy, Sidecar, outbound_traffic_policy};
use model::config::Config;
use model::config::mesh::effective_proxy_config;
use model::endpoint::{Endpoint, TlsMode};
use model::fetch_requests::KeySets;
use model::hashed::{Hashed, fingerprint};
use model::names::{Namespace, ServiceKey, Str};
use model::proxy::{Proxy, ProxyKind};
use model::service::Service;
use model::settings::Settings;
use model::snapshot::Snapshot;
use model::snapshot::endpoints::Endpoints;
use model::snapshot::objects::{Extensions, Gateways, SecurityPolicies, Sidecars};
use model::snapshot::routing::{ConsolidatedRule, Routing, VirtualServiceRule};
use model::snapshot::services::Services;
use model::snapshot::workloads::Credentials;

use crate::client::ReadProxy;
use crate::credentials::{self, Secret};
use crate::egress::{self, EgressListener};
use crate::gateway::{self, MergedGateway};
use crate::inbound::ServiceTarget;
use crate::outbound::{ImportedServices, OutboundScopes};
use crate::patches::Patches;
use crate::reads::{Aspect, Input, ReadSet, Reads, Tracked};
use crate::rules::{self, ImportedRules};
use crate::sections::{Importer, Sections};
use crate::select::{Selectors, Targeted, attaches};
use crate::visibility;

/// What one client may see. Reads of its fields are recorded: see `reads`.
#[derive(Clone, Debug)]
pub struct View {
    /// Everything but endpoints. Views of snapshots that differ in endpoints only share it.
    parts: Arc<ViewParts>,
    /// Endpoints of the whole mesh; read them through `endpoints` and `identities`, which record each service.
    mesh_endpoints: Arc<Endpoints>,
}

impl Deref for View {
    type Target = ViewParts;

    fn deref(&self) -> &ViewParts {
        &self.parts
    }
}

/// The parts of a view, except endpoints.
#[derive(Clone, Debug)]
pub struct ViewParts {
    pub proxy: ReadProxy,
    /// Settings are an input of everything, so their reads are not recorded.
    pub settings: Arc<Settings>,
    /// The client's proxy config: the one it sent, else the mesh's.
    pub proxy_config: Tracked<Hashed<ProxyConfig>>,
    /// The Sidecar resource that applies to this client.
    pub sidecar: Tracked<Option<Config<Sidecar>>>,
    /// Where traffic to unknown destinations goes.
    pub outbound_policy: Tracked<Hashed<OutboundTrafficPolicy>>,
    /// Egress listeners with the services and routes each imports; one catch-all without a Sidecar.
    pub egress: Tracked<Arc<Vec<EgressListener>>>,
    /// Services of all egress listeners, each host once.
    services: Tracked<Arc<ImportedServices>>,
    rules: Tracked<Arc<ImportedRules>>,
    /// Services that have this client as an endpoint.
    pub inbound: Tracked<Hashed<Vec<ServiceTarget>>>,
    /// Gateways that select this client, merged; routers only.
    pub gateway: Tracked<Option<Hashed<MergedGateway>>>,
    /// Patches of EnvoyFilters for this client.
    pub patches: Tracked<Arc<Patches>>,
    pub policy: Tracked<Arc<SecurityPolicies>>,
    /// Key sets fetched for request authentication.
    pub keys: Tracked<Arc<KeySets>>,
    pub gateways: Tracked<Arc<Gateways>>,
    pub extensions: Tracked<Arc<Extensions>>,
    /// Credentials of the whole mesh; read them through `secret`.
    credentials: Tracked<Arc<Credentials>>,
    mesh_services: Tracked<Arc<Services>>,
    mesh_routing: Tracked<Arc<Routing>>,
    sidecars: Arc<Sidecars>,
    reads: Arc<Reads>,
}

/// The fields of an endpoint that clusters depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndpointIdentity<'a> {
    pub service_port: &'a Str,
    pub service_account: &'a Str,
    pub tls: TlsMode,
}

impl View {
    /// The view of one client that serves `inbound`, as `inbound::targets` returns it.
    pub fn new(world: &Snapshot, proxy: &Arc<Proxy>, inbound: Vec<ServiceTarget>) -> View {
        View::shared(world, proxy, Hashed::new(inbound), &OutboundScopes::default())
    }

    /// The same with outbound scopes shared by all clients.
    pub fn shared(
        world: &Snapshot,
        proxy: &Arc<Proxy>,
        inbound: Hashed<Vec<ServiceTarget>>,
        scopes: &OutboundScopes,
    ) -> View {
        let reads = Arc::new(Reads::default());
        let sidecar = egress::sidecar_for(world, proxy);
        let outbound = scopes.get(&Sections::of(world), importer(proxy), sidecar.as_ref());
        let proxy_config = Hashed::from_message(effective_proxy_config(&world.settings.mesh, &proxy.proxy_config));
        let policy = outbound_policy(&world.settings, sidecar.as_ref());
        let gateway = gateway::merged(world, proxy, &inbound).map(Hashed::new);
        let patches = Arc::new(Patches::new(world, proxy));
        let parts = ViewParts {
            proxy: ReadProxy::new(proxy.clone(), &reads),
            settings: world.settings.clone(),
            proxy_config: Tracked::new(proxy_config, Input::ProxyConfig, &reads),
            outbound_policy: Tracked::new(policy, Input::OutboundPolicy, &reads),
            gateway: Tracked::new(gateway, Input::Gateway, &reads),
            inbound: Tracked::new(inbound, Input::Inbound, &reads),
            policy: Tracked::new(world.policy.clone(), Input::Policy, &reads),
            keys: Tracked::new(world.keys.clone(), Input::Keys, &reads),
            gateways: Tracked::new(world.gateways.clone(), Input::Gateways, &reads),
            extensions: Tracked::new(world.extensions.clone(), Input::ExtensionObjects, &reads),
            patches: Tracked::new(patches, Input::Patches, &reads),
            sidecars: world.sidecars.clone(),
            credentials: Tracked::new(world.credentials.clone(), Input::Credentials, &reads),
            mesh_services: Tracked::new(world.services.clone(), Input::MeshServices, &reads),
            mesh_routing: Tracked::new(world.routing.clone(), Input::MeshRouting, &reads),
            egress: Tracked::new(outbound.egress, Input::Egress, &reads),
            services: Tracked::new(outbound.services, Input::Services, &reads),
            rules: Tracked::new(outbound.rules, Input::Rules, &reads),
            sidecar: Tracked::new(sidecar, Input::Sidecar, &reads),
            reads,
        };
        View { parts: Arc::new(parts), mesh_endpoints: world.endpoints.clone() }
    }

    /// This client's view of another snapshot. Parts whose sections did not change are reused.
    #[must_use]
    pub fn renewed(&self, world: &Snapshot, inbound: Hashed<Vec<ServiceTarget>>, scopes: &OutboundScopes) -> View {
        let is_same = Arc::ptr_eq(&self.settings, &world.settings)
            && Arc::ptr_eq(&self.sidecars, &world.sidecars)
            && Arc::ptr_eq(self.gateways.peek(), &world.gateways)
            && Arc::ptr_eq(self.extensions.peek(), &world.extensions);
        // Routers read services and objects for their gateways.
        if !is_same || self.proxy.unrecorded().kind != ProxyKind::Sidecar {
            return View::shared(world, self.proxy.unrecorded(), inbound, scopes);
        }
        let mesh_endpoints = world.endpoints.clone();
        if self.differs_in_endpoints_only(world, &inbound) {
            return View { parts: self.parts.clone(), mesh_endpoints };
        }
        let sidecar = self.sidecar.peek().as_ref();
        let outbound = scopes.get(&Sections::of(world), importer(self.proxy.unrecorded()), sidecar);
        let reads = &self.reads;
        let parts = ViewParts {
            inbound: Tracked::new(inbound, Input::Inbound, reads),
            policy: Tracked::new(world.policy.clone(), Input::Policy, reads),
            keys: Tracked::new(world.keys.clone(), Input::Keys, reads),
            credentials: Tracked::new(world.credentials.clone(), Input::Credentials, reads),
            mesh_services: Tracked::new(world.services.clone(), Input::MeshServices, reads),
            mesh_routing: Tracked::new(world.routing.clone(), Input::MeshRouting, reads),
            egress: Tracked::new(outbound.egress, Input::Egress, reads),
            services: Tracked::new(outbound.services, Input::Services, reads),
            rules: Tracked::new(outbound.rules, Input::Rules, reads),
            ..ViewParts::clone(self)
        };
        View { parts: Arc::new(parts), mesh_endpoints }
    }

    /// Whether a view of this snapshot has the same parts. Only for snapshots with the same settings, Sidecars, gateways
    /// and extensions.
    fn differs_in_endpoints_only(&self, world: &Snapshot, inbound: &Hashed<Vec<ServiceTarget>>) -> bool {
        self.inbound.peek() == inbound
            && Arc::ptr_eq(self.policy.peek(), &world.policy)
            && Arc::ptr_eq(self.keys.peek(), &world.keys)
            && Arc::ptr_eq(self.credentials.peek(), &world.credentials)
            && Arc::ptr_eq(self.mesh_services.peek(), &world.services)
            && Arc::ptr_eq(self.mesh_routing.peek(), &world.routing)
    }

    /// Whether `renewed` has nothing to compute for this snapshot.
    pub fn renews_quickly(&self, world: &Snapshot) -> bool {
        Arc::ptr_eq(&self.settings, &world.settings)
            && Arc::ptr_eq(&self.sidecars, &world.sidecars)
            && Arc::ptr_eq(self.gateways.peek(), &world.gateways)
            && Arc::ptr_eq(self.extensions.peek(), &world.extensions)
            && Arc::ptr_eq(self.mesh_services.peek(), &world.services)
            && Arc::ptr_eq(self.mesh_routing.peek(), &world.routing)
            && self.proxy.unrecorded().kind == ProxyKind::Sidecar
    }

    /// Whether only endpoints differ, so that a result stays valid unless it read one of the changed endpoints.
    pub fn is_same_but_endpoints(&self, other: &View) -> bool {
        fn is_same<T>(one: &Tracked<Arc<T>>, other: &Tracked<Arc<T>>) -> bool {
            Arc::ptr_eq(one.peek(), other.peek())
        }
        if Arc::ptr_eq(&self.parts, &other.parts) {
            return true;
        }
        Arc::ptr_eq(self.proxy.unrecorded(), other.proxy.unrecorded())
            && Arc::ptr_eq(&self.settings, &other.settings)
            && Arc::ptr_eq(&self.sidecars, &other.sidecars)
            && is_same(&self.egress, &other.egress)
            && is_same(&self.services, &other.services)
            && is_same(&self.rules, &other.rules)
            && self.inbound.peek() == other.inbound.peek()
            && self.gateway.peek() == other.gateway.peek()
            && is_same(&self.patches, &other.patches)
            && is_same(&self.policy, &other.policy)
            && is_same(&self.keys, &other.keys)
            && is_same(&self.gateways, &other.gateways)
            && is_same(&self.extensions, &other.extensions)
            && is_same(&self.credentials, &other.credentials)
            && is_same(&self.mesh_services, &other.mesh_services)
            && is_same(&self.mesh_routing, &other.mesh_routing)
    }

    /// The same view with a new recorder, for one computation.
    #[must_use]
    pub fn recording(&self) -> (View, Arc<Reads>) {
        let reads = Arc::new(Reads::default());
        let parts = ViewParts {
            proxy: ReadProxy::new(self.proxy.unrecorded().clone(), &reads),
            settings: self.settings.clone(),
            proxy_config: self.proxy_config.recorded_by(&reads),
            sidecar: self.sidecar.recorded_by(&reads),
            outbound_policy: self.outbound_policy.recorded_by(&reads),
            egress: self.egress.recorded_by(&reads),
            services: self.services.recorded_by(&reads),
            rules: self.rules.recorded_by(&reads),
            inbound: self.inbound.recorded_by(&reads),
            gateway: self.gateway.recorded_by(&reads),
            patches: self.patches.recorded_by(&reads),
            policy: self.policy.recorded_by(&reads),
            keys: self.keys.recorded_by(&reads),
            gateways: self.gateways.recorded_by(&reads),
            extensions: self.extensions.recorded_by(&reads),
            credentials: self.credentials.recorded_by(&reads),
            mesh_services: self.mesh_services.recorded_by(&reads),
            mesh_routing: self.mesh_routing.recorded_by(&reads),
            sidecars: self.sidecars.clone(),
            reads: reads.clone(),
        };
        (View { parts: Arc::new(parts), mesh_endpoints: self.mesh_endpoints.clone() }, reads)
    }

    /// The fingerprint of this view's values of the inputs in a set: views with the same fingerprint give the same
    /// result. Sections of the snapshot are hashed by address, so one of the views must outlive the fingerprint.
    pub fn fingerprint(&self, set: &ReadSet) -> u128 {
        fingerprint(&Inputs { view: self, set })
    }

    /// Whether the recorded part of a service's endpoints is the same in this view.
    pub fn has_endpoints(&self, key: &ServiceKey, aspect: Aspect, found: u128) -> bool {
        self.endpoints_fingerprint(key, aspect) == found
    }

    fn endpoints_fingerprint(&self, key: &ServiceKey, aspect: Aspect) -> u128 {
        match aspect {
            Aspect::All => fingerprint(&self.mesh_endpoints.address_of(key)),
            Aspect::Identities => {
                let found: BTreeSet<_> = identities(&self.mesh_endpoints, key).map(|i| fingerprint(&i)).collect();
                fingerprint(&found)
            }
        }
    }

    fn hash_input<H: Hasher>(&self, input: Input, state: &mut H) {
        fn address<T, H: Hasher>(part: &Tracked<Arc<T>>, state: &mut H) {
            Arc::as_ptr(part.peek()).addr().hash(state);
        }
        match input {
            Input::ProxyConfig => self.proxy_config.peek().hash(state),
            Input::Sidecar => self.sidecar.peek().hash(state),
            Input::OutboundPolicy => self.outbound_policy.peek().hash(state),
            Input::Egress => address(&self.egress, state),
            Input::Services => address(&self.services, state),
            Input::Rules => address(&self.rules, state),
            Input::Inbound => self.inbound.peek().hash(state),
            Input::Gateway => self.gateway.peek().hash(state),
            Input::Patches => self.patches.peek().fingerprint().hash(state),
            Input::Policy => address(&self.policy, state),
            Input::Keys => address(&self.keys, state),
            Input::Gateways => address(&self.gateways, state),
            Input::ExtensionObjects => address(&self.extensions, state),
            Input::Credentials => address(&self.credentials, state),
            Input::MeshServices => address(&self.mesh_services, state),
            Input::MeshRouting => address(&self.mesh_routing, state),
            Input::Kind
            | Input::Id
            | Input::Ips
            | Input::Families
            | Input::Namespace
            | Input::Domain
            | Input::Cluster
            | Input::ServiceCluster
            | Input::Network
            | Input::Locality
            | Input::Labels
            | Input::Interception
            | Input::PodPorts
            | Input::Extensions
            | Input::EnvoyVersion => _ = self.proxy.hash_input(input, state),
        }
    }

    /// Services of all egress listeners, each host once.
    pub fn services(&self) -> &[Arc<Service>] {
        &self.services.list
    }

    /// The imported service of this host name.
    pub fn service(&self, host: &str) -> Option<&Arc<Service>> {
        self.services.get(host)
    }

    /// The service of this host name that the client would see if it were imported: for inbound use and
    /// for destinations that only a route refers to.
    pub fn any_service(&self, key: &ServiceKey) -> Option<&Arc<Service>> {
        self.mesh_services.get(key)
    }

    /// The service that mesh config refers to as `host` or `namespace/host`; `None` unless there is exactly one.
    pub fn named_service(&self, name: &str) -> Option<&Arc<Service>> {
        if let Some((namespace, host)) = name.split_once('/') {
            return self.mesh_services.get(&ServiceKey { hostname: host.into(), namespace: namespace.into() });
        }
        let mut owners = self.mesh_services.owners(name);
        owners.next().filter(|_| owners.next().is_none())
    }

    /// The rule for calls to this host: one that selects this client, else the one without a selector.
    pub fn destination_rule(&self, host: &str) -> Option<&Arc<ConsolidatedRule>> {
        rules::choose(self.rules.get(host)?, &self.proxy)
    }

    /// Those of these policies that apply to this client: the root namespace's first, then its own, each oldest first.
    pub fn attached<'a, T: Targeted>(&self, policies: &'a [Config<T>]) -> Vec<&'a Config<T>> {
        let root = self.settings.root_namespace();
        let own: &Namespace = &self.proxy.namespace;
        let of = |namespace: &Namespace| {
            let namespace = namespace.clone();
            policies.iter().filter(move |p| p.meta.namespace == namespace)
        };
        let elsewhere = (root != *own).then(|| of(own));
        let candidates = of(&root).chain(elsewhere.into_iter().flatten());
        let selectors = Selectors::of(&self.settings.knobs);
        candidates.filter(|p| attaches(&*p.spec, &p.meta.namespace, own, &self.proxy.labels, selectors)).collect()
    }

    /// Routes bound to a gateway (`namespace/name`) that this client may see, in order of precedence.
    pub fn gateway_routes(&self, gateway: &str) -> Vec<Arc<VirtualServiceRule>> {
        visibility::routes(&self.mesh_routing, &self.settings, &self.proxy.namespace, gateway)
    }

    /// The rule that also applies to the server's side of this host: never one that selects clients.
    pub fn inbound_rule(&self, host: &str) -> Option<&Arc<ConsolidatedRule>> {
        rules::for_all(self.rules.get(host)?)
    }

    /// Services of the whole mesh with addresses of load balancers or nodes: they may be gateways between networks.
    pub fn gateway_services(&self) -> &[Arc<Service>] {
        self.mesh_services.external()
    }

    /// All endpoints of a service, on every port, healthy or not.
    pub fn endpoints<'a>(&'a self, service: &Service) -> impl Iterator<Item = &'a Endpoint> + use<'a> {
        let key = service.key();
        let found = self.mesh_endpoints.of(&key);
        let read = self.endpoints_fingerprint(&key, Aspect::All);
        self.reads.note_endpoints(key, Aspect::All, read);
        found
    }

    /// The identities of a service's endpoints. Clusters read these, so that not every endpoint change affects them.
    pub fn identities<'a>(&'a self, service: &Service) -> impl Iterator<Item = EndpointIdentity<'a>> + use<'a> {
        let key = service.key();
        let found = identities(&self.mesh_endpoints, &key);
        let read = self.endpoints_fingerprint(&key, Aspect::Identities);
        self.reads.note_endpoints(key, Aspect::Identities, read);
        found
    }

    /// The secret of this resource name, if it exists and this client may have it.
    pub fn secret(&self, name: &str) -> Option<Secret> {
        let named = self.gateway.as_ref().map(|gateway| &gateway.secrets);
        credentials::granted(&self.credentials, &self.proxy, named, name)
    }

    /// Whether mesh config (or the Sidecar) allows traffic to unknown destinations.
    pub fn allows_any_outbound(&self) -> bool {
        self.outbound_policy.mode() == outbound_traffic_policy::Mode::AllowAny
    }

    /// Whether unknown destinations are resolved by the host name in the request.
    pub fn resolves_any_outbound(&self) -> bool {
        self.outbound_policy.mode == mesh_config::outbound_traffic_policy::Mode::AllowAnyDynamicDns as i32
    }
}

/// The Sidecar's outbound policy, else the mesh's.
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

fn importer(proxy: &Proxy) -> Importer<'_> {
    Importer { kind: proxy.kind, namespace: &proxy.namespace }
}

fn identities<'a>(endpoints: &'a Endpoints, key: &ServiceKey) -> impl Iterator<Item = EndpointIdentity<'a>> + use<'a> {
    endpoints.of(key).map(|e| EndpointIdentity {
        service_port: &e.service_port,
        service_account: &e.service_account,
        tls: e.tls,
    })
}

/// The inputs of a view, for hashing.
struct Inputs<'a> {
    view: &'a View,
    set: &'a ReadSet,
}

impl Hash for Inputs<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Settings are not recorded.
        Arc::as_ptr(&self.view.settings).addr().hash(state);
        self.set.inputs().for_each(|input| self.view.hash_input(input, state));
        self.view.proxy.hash_keys(self.set, state);
    }
}
