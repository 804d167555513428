//! Outbound clusters: one per service port, and one per service port and subset.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::istio::networking::v1alpha3::client_tls_settings::TlSmode;
use api::istio::networking::v1alpha3::{Subset, TrafficPolicy};
use model::endpoint::TlsMode;
use model::labels::Labels;
use model::names::Str;
use model::peer_policies::{MutualTls, PeerPolicies};
use model::port::{Port, Protocol};
use model::proxy::{NO_CERTIFICATES, ProxyKind};
use model::service::{Registry, Resolution, Service, TrafficDistribution};
use model::settings::Milliseconds;
use model::snapshot::routing::ConsolidatedRule;
use scope::View;
use scope::client::TrackedLabels;

use super::{AppliedRule, ClusterContext, ClusterKind, ClusterPlan, ServiceLabel, effective};
use crate::dns_cache::DnsFamily;
use crate::names::{ClusterForm, OutboundCluster};
use crate::plan::endpoints::locality::{ClientLocality, LocalityGroup, LocalityLb};
use crate::plan::endpoints::{EndpointSelection, LocalityEndpoints, PERSISTENT_SESSION_LABEL, prescribed_mode};
use crate::plan::policy::{self, EffectivePolicy};
use crate::telemetry::stat_name::StatName;

const PERSISTENT_SESSION_HEADER_LABEL: &str = "istio.io/persistent-session-header";
const SPIFFE_SCHEME: &str = "spiffe://";

/// An outbound cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutboundPlan {
    pub id: OutboundCluster,
    pub service: ServiceLabel,
    /// Whether the service comes from a ServiceEntry, which may list SANs.
    pub from_entry: bool,
    /// Whether the service is outside the mesh.
    pub external: bool,
    pub distribution: TrafficDistribution,
    /// Whether sessions stay on draining endpoints.
    pub keeps_sessions: bool,
    pub protocol: Protocol,
    /// Stat name by the mesh's pattern; `None` for the cluster's name.
    pub stat_name: Option<Str>,
    pub discovery: EndpointDiscovery,
    pub rule: Option<AppliedRule>,
    pub security: UpstreamSecurity,
}

/// How Envoy finds the endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EndpointDiscovery {
    Eds,
    Dns {
        /// LOGICAL_DNS instead of STRICT_DNS.
        logical: bool,
        family: DnsFamily,
        jitter: Milliseconds,
        udp_max_queries: u32,
        endpoints: Vec<LocalityEndpoints>,
    },
    OriginalDestination {
        port_override: Option<u16>,
    },
    /// Resolves the host of each request.
    DynamicForwardProxy(DnsFamily),
}

/// TLS of upstream connections if the rule does not set it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamSecurity {
    /// The client's TLS is passed through.
    AsReceived,
    Originate {
        /// Mutual TLS to each endpoint that supports it.
        automatic: bool,
        /// SNI for mesh mTLS.
        server_name: Option<Str>,
        /// Accepted service accounts of the server.
        accounts: Arc<[Str]>,
    },
}

/// Outbound clusters of these services.
pub fn plans<'a>(
    view: &View,
    context: &Arc<ClusterContext>,
    services: impl IntoIterator<Item = &'a Arc<Service>>,
    form: ClusterForm,
) -> Vec<ClusterPlan> {
    let peers = PeerPolicies::new(&view.policy, &view.settings.mesh.root_namespace);
    let no_certificates = view.proxy.flag(NO_CERTIFICATES);
    let mut found = Vec::new();
    for service in services {
        if service.resolution == Resolution::Alias {
            continue;
        }
        let rule = view.destination_rule(&service.hostname);
        let accounts = accounts(view, service);
        let planner = ServicePlanner { view, context, service, rule, form, peers, no_certificates, accounts };
        for port in service.proxied_ports() {
            planner.port(port, &mut found);
        }
    }
    found
}

/// Plans the clusters of one service.
struct ServicePlanner<'a> {
    view: &'a View,
    context: &'a Arc<ClusterContext>,
    service: &'a Service,
    rule: Option<&'a Arc<ConsolidatedRule>>,
    form: ClusterForm,
    peers: PeerPolicies<'a>,
    /// Whether the proxy has no source of certificates.
    no_certificates: bool,
    accounts: Arc<[Str]>,
}

impl ServicePlanner<'_> {
    /// Adds the cluster of a port and those of its subsets.
    fn port(&self, port: &Port, found: &mut Vec<ClusterPlan>) {
        // In the SNI form, a wildcard host is not resolved per request.
        if self.is_resolved_per_request() && self.form == ClusterForm::Plain {
            // Only these protocols carry a host name.
            let named = matches!(port.protocol, Protocol::Http | Protocol::Tls | Protocol::Grpc | Protocol::Http2);
            if named {
                let family = DnsFamily::of(&self.view.proxy, self.view.settings.knobs.dual_stack);
                found.push(self.cluster(port, None, EndpointDiscovery::DynamicForwardProxy(family)));
            }
            return;
        }
        // Without endpoints to resolve, there are no clusters for the port or its subsets.
        let Some(discovery) = self.discovery(port, None) else { return };
        if !self.is_closed(port, None) {
            found.push(self.cluster(port, None, discovery));
        }
        for index in 0..self.rule.map_or(0, |r| r.rule.spec.subsets.len()) {
            if let Some(discovery) = self.discovery(port, Some(index)).filter(|_| !self.is_closed(port, Some(index))) {
                found.push(self.cluster(port, Some(index), discovery));
            }
        }
    }

    /// Whether a policy demands mutual TLS of a proxy without certificates. Such a cluster is left out: Envoy would wait for
    /// a certificate without end and not become ready.
    fn is_closed(&self, port: &Port, subset: Option<usize>) -> bool {
        if !self.no_certificates || self.form == ClusterForm::ServerName {
            return false;
        }
        let name = self.subset(subset).map_or("", |s| s.name.as_str());
        match self.rule.and_then(|rule| prescribed_mode(&rule.rule.spec, name, port.number)) {
            Some(mode) => mode == TlSmode::IstioMutual,
            None => self.is_strict() && self.speaks_mutual_tls(port),
        }
    }

    fn is_strict(&self) -> bool {
        let is_automatic = !self.service.mesh_external && self.context.mesh.enable_auto_mtls.unwrap_or(true);
        is_automatic && self.peers.of_namespace(&self.service.namespace) == MutualTls::Strict
    }

    /// Whether an endpoint of the port accepts mesh TLS.
    fn speaks_mutual_tls(&self, port: &Port) -> bool {
        self.view.identities(self.service).any(|e| *e.service_port == port.name && e.tls == TlsMode::Istio)
    }

    fn is_resolved_per_request(&self) -> bool {
        self.service.resolution == Resolution::DynamicDns && self.service.hostname.is_wildcard()
    }

    fn cluster(&self, port: &Port, subset: Option<usize>, discovery: EndpointDiscovery) -> ClusterPlan {
        let service = self.service;
        let subset_name = self.subset(subset).map_or("", |s| s.name.as_str());
        let session = |label| service.labels.get(label).is_some_and(|v| !v.is_empty());
        let forwarded = matches!(discovery, EndpointDiscovery::DynamicForwardProxy(_));
        let pattern = &self.context.mesh.outbound_cluster_stat_name;
        let named = !pattern.is_empty() && !forwarded;
        let id = self.id(port, subset);
        let name = id.to_string().into();
        let outbound = OutboundPlan {
            id,
            service: ServiceLabel::of(service),
            from_entry: service.registry == Registry::External,
            external: service.mesh_external,
            distribution: service.traffic_distribution,
            keeps_sessions: subset.is_none()
                && self.form != ClusterForm::ServerName
                && (session(PERSISTENT_SESSION_LABEL) || session(PERSISTENT_SESSION_HEADER_LABEL)),
            protocol: port.protocol,
            stat_name: named
                .then(|| StatName::outbound(service, subset_name, port.number, &port.name).fill(pattern).into()),
            security: self.security(port, subset, forwarded),
            rule: self.rule.map(|rule| AppliedRule::new(rule, subset)),
            discovery,
        };
        ClusterPlan {
            name,
            context: self.context.clone(),
            kind: ClusterKind::Outbound(Box::new(outbound)),
            has_duplicate: false,
        }
    }

    fn id(&self, port: &Port, subset: Option<usize>) -> OutboundCluster {
        let subset = self.subset(subset).map_or_else(Str::default, |s| s.name.as_str().into());
        OutboundCluster { port: port.number, subset, host: self.service.hostname.clone(), form: self.form }
    }

    fn subset(&self, index: Option<usize>) -> Option<&Subset> {
        self.rule?.rule.spec.subsets.get(index?)
    }

    /// How endpoints are found; `None` for DNS resolution without endpoints.
    fn discovery(&self, port: &Port, subset: Option<usize>) -> Option<EndpointDiscovery> {
        let service = self.service;
        if subset.is_some() && self.skips_balancing(port, subset) {
            return Some(self.original_destination(port));
        }
        match service.resolution {
            Resolution::Dns | Resolution::DnsRoundRobin => self.resolved(port, subset),
            Resolution::Passthrough if self.follows_original_destination() => Some(self.original_destination(port)),
            _ => Some(EndpointDiscovery::Eds),
        }
    }

    /// Whether the policy of the subset or of the rule is PASSTHROUGH.
    fn skips_balancing(&self, port: &Port, subset: Option<usize>) -> bool {
        let own = self.subset(subset).and_then(|s| s.traffic_policy.as_ref());
        let own = policy::simple(own.and_then(|p| p.load_balancer.as_ref()));
        let whole = self.rule.map(|r| EffectivePolicy::of(&r.rule.spec, None, port.number)).unwrap_or_default();
        own == api::istio::networking::v1alpha3::load_balancer_settings::SimpleLb::Passthrough || whole.is_passthrough()
    }

    /// Gateways have no original destination.
    fn follows_original_destination(&self) -> bool {
        let as_endpoints = self.service.is_headless() && self.view.settings.knobs.eds_for_headless;
        self.context.client != ProxyKind::Router && !as_endpoints
    }

    fn original_destination(&self, port: &Port) -> EndpointDiscovery {
        let ports = &self.service.passthrough_ports;
        let port_override = ports.iter().find(|(number, _)| *number == port.number).map(|(_, target)| *target);
        EndpointDiscovery::OriginalDestination { port_override }
    }

    fn resolved(&self, port: &Port, subset: Option<usize>) -> Option<EndpointDiscovery> {
        let rule = self.rule.map(|r| &*r.rule.spec);
        let name = self.subset(subset).map_or("", |s| s.name.as_str());
        let selection = EndpointSelection::new(self.view, self.service, port, rule, name, self.form);
        let groups = selection.groups(|_| true);
        if groups.is_empty() {
            return None;
        }
        let knobs = &self.view.settings.knobs;
        Some(EndpointDiscovery::Dns {
            logical: self.service.resolution == Resolution::DnsRoundRobin,
            family: DnsFamily::of(&self.view.proxy, knobs.dual_stack),
            jitter: knobs.dns_jitter_ms,
            udp_max_queries: knobs.dns_cares_udp_max_queries,
            endpoints: self.placed(port, subset, &selection, groups),
        })
    }

    /// Endpoints inlined in a DNS cluster. As upstream, and unlike EDS: outlier detection of the mesh counts too, and
    /// endpoints of a subset are not prioritized by labels.
    fn placed(
        &self,
        port: &Port,
        subset: Option<usize>,
        selection: &EndpointSelection<'_>,
        groups: Vec<LocalityGroup<'_>>,
    ) -> Vec<LocalityEndpoints> {
        let rule = self.rule.map(|rule| AppliedRule::new(rule, subset));
        let policy = effective(rule.as_ref(), &self.context.mesh, port.number);
        match LocalityLb::of(policy.balancer, self.service.traffic_distribution, &self.context.mesh) {
            Some(setting) => {
                let unlabelled = TrackedLabels::unrecorded(Labels::default());
                let place = selection.place();
                let place = if subset.is_some() { ClientLocality { labels: &unlabelled, ..place } } else { place };
                setting.apply(groups, place, policy.outlier.is_some())
            }
            None => groups.into_iter().map(LocalityGroup::finish).collect(),
        }
    }

    fn security(&self, port: &Port, subset: Option<usize>, forwarded: bool) -> UpstreamSecurity {
        if self.form == ClusterForm::ServerName {
            return UpstreamSecurity::AsReceived;
        }
        let policy = match subset {
            Some(_) => self.subset(subset).and_then(|s| s.traffic_policy.as_ref()),
            None => self.rule.and_then(|r| r.rule.spec.traffic_policy.as_ref()),
        };
        UpstreamSecurity::Originate {
            automatic: self.is_mutual_tls_automatic(port, policy),
            server_name: (!forwarded).then(|| self.id(port, subset).server_name().into()),
            accounts: if forwarded { Arc::default() } else { self.accounts.clone() },
        }
    }

    /// Whether auto mTLS applies to the port.
    fn is_mutual_tls_automatic(&self, port: &Port, policy: Option<&TrafficPolicy>) -> bool {
        let service = self.service;
        if self.no_certificates || service.mesh_external || !self.context.mesh.enable_auto_mtls.unwrap_or(true) {
            return false;
        }
        let balancer = policy.and_then(|p| p.load_balancer.as_ref());
        let unbalanced = EffectivePolicy { balancer, ..EffectivePolicy::default() }.is_passthrough();
        // Without load balancing there is no per-endpoint choice, so all endpoints must support mTLS.
        if (service.resolution == Resolution::Passthrough || unbalanced) && !self.all_speak_mutual_tls(port) {
            return false;
        }
        self.peers.of_namespace(&service.namespace) != MutualTls::Disable
    }

    fn all_speak_mutual_tls(&self, port: &Port) -> bool {
        let mut of_port = self.view.identities(self.service).filter(|e| *e.service_port == port.name).peekable();
        of_port.peek().is_some() && of_port.all(|e| e.tls == TlsMode::Istio)
    }
}

/// Accepted service accounts of a service: those of its endpoints and those it lists, in all trust domain aliases.
fn accounts(view: &View, service: &Service) -> Arc<[Str]> {
    let mut found: BTreeSet<&Str> = service.service_accounts.iter().collect();
    found.extend(view.identities(service).map(|e| e.service_account).filter(|account| !account.is_empty()));
    if found.is_empty() {
        return Arc::default();
    }
    let aliases = &view.settings.mesh.trust_domain_aliases;
    if aliases.is_empty() {
        return found.into_iter().cloned().collect();
    }
    let mut all: BTreeSet<Str> = found.iter().map(|account| (*account).clone()).collect();
    for account in found {
        let path = account.strip_prefix(SPIFFE_SCHEME).and_then(|rest| rest.split_once('/')).map(|(_, path)| path);
        all.extend(
            path.into_iter()
                .flat_map(|path| aliases.iter().map(move |alias| Str::from(format!("{SPIFFE_SCHEME}{alias}/{path}")))),
        );
    }
    all.into_iter().collect()
}
