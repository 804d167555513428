//! Selects the endpoints of a cluster for a client, and whether each is called with mTLS.

use std::borrow::Cow;
use std::net::IpAddr;

use api::istio::networking::v1alpha3::client_tls_settings::TlSmode;
use api::istio::networking::v1alpha3::{DestinationRule, Subset, TrafficPolicy};
use model::endpoint::{Endpoint, Health, TlsMode};
use model::labels::{Labels, selects};
use model::names::{Hostname, Str};
use model::peer_policies::{MutualTls, PeerPolicies};
use model::port::Port;
use model::service::{Registry, Service, TrafficDistribution};
use scope::ReadProxy;
use scope::View;

use super::locality::{ClientLocality, LabelledEndpoint, LocalityGroup, LocalityLb};
use super::networks::NetworkGateways;
use super::{EndpointsPlan, LbEndpoint, LocalityEndpoints, WorkloadLabel, reach};
use crate::names::{ClusterForm, OutboundCluster};
use crate::plan::policy::{self, EffectivePolicy};

/// Services with this label keep draining endpoints, for persistent sessions.
pub const PERSISTENT_SESSION_LABEL: &str = "istio.io/persistent-session";
const DRAINING_LABEL: &str = "istio.io/draining";
const NAME_LABELS: [&str; 3] = ["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"];
const REVISION_LABELS: [&str; 3] = ["service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"];

/// The endpoints of an EDS cluster; none if the client does not see its service.
pub fn discovered(view: &View, cluster: &OutboundCluster) -> EndpointsPlan {
    let service = view.service(&cluster.host).or_else(|| view.service(&full_name(view, &cluster.host)?));
    let localities = service.and_then(|service| {
        let port = service.port(cluster.port).filter(|_| !service.resolution.is_dns())?;
        let rule = view.destination_rule(&service.hostname).map(|r| &*r.rule.spec);
        let selection = EndpointSelection::new(view, service, port, rule, &cluster.subset, cluster.form);
        Some(selection.localities(selection.groups(|e| e.port == 0 || is_ip_or_unknown(e.address()))))
    });
    EndpointsPlan { name: cluster.to_string().into(), localities: localities.unwrap_or_default() }
}

/// The host of a cluster that a client names as `name.namespace`, as clients of old releases do.
fn full_name(view: &View, host: &str) -> Option<Hostname> {
    let is_short = host.matches('.').count() == 1;
    is_short.then(|| format!("{host}.svc.{}", view.settings.domain).into())
}

fn is_ip_or_unknown(address: &str) -> bool {
    address.is_empty() || address.parse::<IpAddr>().is_ok()
}

/// Selects the endpoints of one cluster.
pub struct EndpointSelection<'a> {
    view: &'a View,
    service: &'a Service,
    port: &'a Port,
    rule: Option<&'a DestinationRule>,
    subset: Option<&'a Subset>,
    form: ClusterForm,
    /// TLS mode of the DestinationRule, which overrides auto mTLS.
    prescribed: Option<TlSmode>,
}

impl<'a> EndpointSelection<'a> {
    pub fn new(
        view: &'a View,
        service: &'a Service,
        port: &'a Port,
        rule: Option<&'a DestinationRule>,
        subset: &str,
        form: ClusterForm,
    ) -> EndpointSelection<'a> {
        let prescribed = rule.and_then(|r| prescribed_mode(r, subset, port.number));
        let subset = rule.and_then(|r| policy::subset(r, subset));
        EndpointSelection { view, service, port, rule, subset, form, prescribed }
    }

    /// Endpoints of the port and subset for which `usable` is true, grouped by locality.
    pub fn groups(&self, usable: impl Fn(&Endpoint) -> bool) -> Vec<LocalityGroup<'a>> {
        let gateways = NetworkGateways::new(
            &self.view.settings.networks,
            self.view.gateway_services(),
            self.service.resolution.is_dns(),
        );
        let peers = PeerPolicies::new(&self.view.policy, &self.view.settings.mesh.root_namespace);
        let mut groups: Vec<(LocalityGroup<'a>, Vec<&'a Endpoint>)> = Vec::new();
        let sends_unhealthy = self.sends_unhealthy();
        let mut confined = None;
        for endpoint in self.view.endpoints(self.service).filter(|e| self.is_selected(e) && usable(e)) {
            let confined = || *confined.get_or_insert_with(|| reach::is_cluster_local(self.view, self.service));
            if !self.is_sent(endpoint, sends_unhealthy, confined, &gateways) {
                continue;
            }
            let member =
                LabelledEndpoint { labels: Cow::Borrowed(&endpoint.labels), endpoint: self.seen(endpoint, &peers) };
            match groups.iter_mut().find(|(group, _)| group.locality == endpoint.locality) {
                Some((group, origins)) => {
                    group.members.push(member);
                    origins.push(endpoint);
                }
                None => {
                    let locality = endpoint.locality.clone();
                    let group = LocalityGroup { locality, priority: 0, weight: None, members: vec![member] };
                    groups.push((group, vec![endpoint]));
                }
            }
        }
        groups.sort_by(|a, b| a.0.locality.cmp(&b.0.locality));
        let reachable = groups.into_iter().map(|(group, origins)| {
            let group = gateways.replace_unreachable(&self.view.proxy, group, &origins);
            self.only_mutual_tls(group).weighed()
        });
        reachable.collect()
    }

    /// Sets priorities and weights of the groups for this client.
    pub fn localities(&self, groups: Vec<LocalityGroup<'_>>) -> Vec<LocalityEndpoints> {
        let policy = self.rule.map(|r| EffectivePolicy::of(r, self.subset, self.port.number)).unwrap_or_default();
        let distribution = self.service.traffic_distribution;
        match LocalityLb::of(policy.balancer, distribution, &self.view.settings.mesh) {
            Some(setting) => setting.apply(groups, self.place(), policy.outlier.is_some()),
            None => groups.into_iter().map(LocalityGroup::finish).collect(),
        }
    }

    /// The client's locality.
    pub fn place(&self) -> ClientLocality<'a> {
        ClientLocality { locality: &self.view.proxy.locality, labels: &self.view.proxy.labels }
    }

    /// Whether the endpoint has this port and the subset's labels.
    fn is_selected(&self, endpoint: &Endpoint) -> bool {
        serves(endpoint, self.service, self.port) && self.subset.is_none_or(|s| selects(&s.labels, &endpoint.labels))
    }

    fn is_sent(
        &self,
        endpoint: &Endpoint,
        sends_unhealthy: bool,
        mut confined: impl FnMut() -> bool,
        gateways: &NetworkGateways<'_>,
    ) -> bool {
        let proxy = &self.view.proxy;
        let same_cluster = endpoint.cluster == *proxy.cluster;
        let in_cluster = same_cluster || endpoint.cluster.is_empty() || proxy.cluster.is_empty();
        // Read only for endpoints without an address: clients of different networks share what does not read theirs.
        let in_network = || reach::same_or_unknown(&endpoint.network, &proxy.network);
        let gone = endpoint.health == Health::Terminating;
        let sick = endpoint.health == Health::Unhealthy && !sends_unhealthy;
        let leaving = is_draining(endpoint) && !self.keeps_sessions();
        !(gone || sick || leaving)
            && reach::is_requested(proxy, endpoint)
            && (in_cluster || !endpoint.cluster_local)
            && (same_cluster || !confined())
            && (!self.is_node_local() || same_cluster && is_on_node_of(proxy, endpoint))
            && !(endpoint.addresses.is_empty() && (gateways.is_empty() || in_network()))
    }

    /// Whether clients use only endpoints on their own node.
    fn is_node_local(&self) -> bool {
        self.service.kubernetes.as_ref().is_some_and(|service| service.node_local)
    }

    /// Whether unhealthy endpoints are sent, so that Envoy knows the share of healthy ones. Not with a panic threshold,
    /// because Envoy would send traffic to them.
    fn sends_unhealthy(&self) -> bool {
        let knobs = &self.view.settings.knobs;
        if knobs.send_unhealthy || self.service.traffic_distribution != TrafficDistribution::Any {
            return true;
        }
        let policy = self.rule.map(|r| EffectivePolicy::of(r, self.subset, self.port.number)).unwrap_or_default();
        knobs.auto_send_unhealthy && policy.outlier.is_none_or(|o| o.min_health_percent <= 0)
    }

    fn keeps_sessions(&self) -> bool {
        self.service.labels.get(PERSISTENT_SESSION_LABEL).is_some_and(|v| !v.is_empty())
    }

    /// The endpoint's plan.
    fn seen(&self, endpoint: &Endpoint, peers: &PeerPolicies<'_>) -> LbEndpoint {
        let settings = &self.view.settings;
        let more = if settings.knobs.dual_stack { endpoint.addresses.get(1..) } else { None };
        LbEndpoint {
            address: endpoint.addresses.first().cloned().unwrap_or_default(),
            more_addresses: more.unwrap_or_default().to_vec(),
            port: endpoint.port,
            weight: endpoint.weight.max(1),
            health: if is_draining(endpoint) { Health::Draining } else { endpoint.health },
            mutual_tls: self.is_called_with_mutual_tls(endpoint, peers),
            workload: settings.knobs.telemetry_label.then(|| workload(endpoint)),
        }
    }

    fn is_called_with_mutual_tls(&self, endpoint: &Endpoint, peers: &PeerPolicies<'_>) -> bool {
        endpoint.tls == TlsMode::Istio
            && match self.prescribed {
                Some(mode) => mode == TlSmode::IstioMutual,
                None => peers.of_workload(&endpoint.namespace, &endpoint.labels, endpoint.port) != MutualTls::Disable,
            }
    }

    /// With AUTO_PASSTHROUGH the gateway cannot authenticate clients, so only mTLS endpoints are included.
    fn only_mutual_tls(&self, mut group: LocalityGroup<'a>) -> LocalityGroup<'a> {
        if self.form == ClusterForm::ServerName {
            group.members.retain(|m| m.endpoint.mutual_tls);
        }
        group
    }
}

/// Whether the endpoint has this service port. Ports are compared by name; for ServiceEntries with DNS resolution by
/// number, as upstream, because several entries of one host may name the port differently.
fn serves(endpoint: &Endpoint, service: &Service, port: &Port) -> bool {
    if service.registry == Registry::External && service.resolution.is_dns() {
        return endpoint.service_port_number == port.number;
    }
    endpoint.service_port == port.name
}

/// Whether both run on the same node. A client without NODE_NAME matches only endpoints without a node name.
fn is_on_node_of(proxy: &ReadProxy, endpoint: &Endpoint) -> bool {
    *endpoint.node_name == *proxy.meta("NODE_NAME").unwrap_or_default()
}

fn is_draining(endpoint: &Endpoint) -> bool {
    endpoint.health == Health::Draining || endpoint.labels.get(DRAINING_LABEL).is_some_and(|v| !v.is_empty())
}

fn workload(endpoint: &Endpoint) -> WorkloadLabel {
    let revision = first_of(&endpoint.labels, REVISION_LABELS).filter(|r| &***r != "latest");
    WorkloadLabel {
        name: endpoint.workload_name.clone(),
        namespace: endpoint.namespace.clone(),
        canonical_name: first_of(&endpoint.labels, NAME_LABELS).unwrap_or(&endpoint.workload_name).clone(),
        canonical_revision: revision.cloned().unwrap_or_default(),
        cluster: endpoint.cluster.clone(),
    }
}

fn first_of<'a>(labels: &'a Labels, keys: [&str; 3]) -> Option<&'a Str> {
    keys.iter().find_map(|key| labels.get(key))
}

/// The TLS mode of a rule for a port; the subset takes precedence.
pub(crate) fn prescribed_mode(rule: &DestinationRule, subset: &str, port: u16) -> Option<TlSmode> {
    let own = rule.traffic_policy.as_ref();
    if subset.is_empty() {
        return mode_on_port(own, port);
    }
    let subset = policy::subset(rule, subset)?;
    mode_on_port(subset.traffic_policy.as_ref(), port).or_else(|| mode_on_port(own, port))
}

/// Unlike other parts of a policy, TLS is inherited by port-level settings without TLS.
fn mode_on_port(policy: Option<&TrafficPolicy>, port: u16) -> Option<TlSmode> {
    let policy = policy?;
    let of_port = policy.port_level_settings.iter().find_map(|settings| {
        let number = settings.port.as_ref().map(|p| p.number);
        settings.tls.as_ref().filter(|_| number == Some(u32::from(port)))
    });
    of_port.or(policy.tls.as_ref()).map(|tls| tls.mode())
}
