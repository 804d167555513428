//! One cluster: `outbound` for services that a client calls, `inbound` for those it serves,
//! and the few that every client has.

pub mod inbound;
pub mod outbound;

use std::sync::Arc;

use api::istio::networking::v1alpha3::{DestinationRule, Subset};
use model::hashed::Hashed;
use model::names::{Hostname, Namespace, Str};
use model::proxy::{Proxy, ProxyKind};
use model::service::Service;
use model::settings::{Knobs, Mesh};
use model::snapshot::routing::ConsolidatedRule;
use scope::View;

use crate::dns_cache::DnsCache;
use crate::names;
use crate::plan::policy::EffectivePolicy;
use inbound::InboundPlan;
use outbound::OutboundPlan;

/// One cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterPlan {
    pub name: Str,
    pub context: Arc<ClusterContext>,
    pub kind: ClusterKind,
}

/// What a cluster is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClusterKind {
    Outbound(Box<OutboundPlan>),
    Inbound(Box<InboundPlan>),
    /// Nowhere.
    BlackHole,
    /// Where the client meant its connection to go.
    Passthrough,
    /// The workload's own port that no service names. Bound to addresses that iptables lets pass.
    InboundPassthrough {
        bind: Vec<Str>,
    },
    /// Where the Host header says.
    AllowAnyDynamicDns(DnsCache),
    /// The agent's socket for secrets of other providers.
    ExternalSds,
}

/// What every cluster of a client depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterContext {
    pub client: ProxyKind,
    pub mesh: Mesh,
    pub features: ClusterFeatures,
    /// Keep the case of HTTP/1 headers.
    pub preserve_case: bool,
    /// Certificates of the client's own, in place of the mesh's.
    pub certificates: Option<ClientCertificateFiles>,
    /// Whether the agent serves secrets of other providers, and files, on sockets of their own.
    pub credential_socket: bool,
    pub file_credential_socket: bool,
}

/// Knobs that change clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClusterFeatures {
    pub metadata_exchange: bool,
    pub metadata_exchange_alpn: bool,
    pub telemetry_label: bool,
    pub redis_filter: bool,
    pub locality_weighted_lb: bool,
    pub sends_unhealthy: bool,
    pub always_sends_unhealthy: bool,
    pub prefer_rule_tls_for_external: bool,
}

/// Files that a client proves itself with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientCertificateFiles {
    pub chain: Str,
    pub key: Str,
    pub root: Str,
}

/// A service as telemetry names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceLabel {
    pub host: Hostname,
    pub name: Str,
    pub namespace: Namespace,
}

/// A rule as it holds for one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AppliedRule {
    pub namespace: Namespace,
    pub name: Str,
    pub spec: Hashed<DestinationRule>,
    /// Which of the rule's subsets the cluster is of.
    pub subset: Option<usize>,
}

impl ClusterContext {
    pub fn new(view: &View) -> ClusterContext {
        let (proxy, settings) = (&view.proxy, &view.settings);
        let headers = view.proxy_config.proxy_headers.as_ref();
        ClusterContext {
            client: proxy.kind,
            mesh: settings.mesh.clone(),
            features: ClusterFeatures::new(&settings.knobs, proxy),
            preserve_case: headers.and_then(|h| h.preserve_http1_header_case).unwrap_or(false),
            certificates: ClientCertificateFiles::of(proxy),
            credential_socket: proxy.meta("credential") == Some("true"),
            file_credential_socket: proxy.meta("file-credential") == Some("true"),
        }
    }
}

impl ClusterFeatures {
    fn new(knobs: &Knobs, proxy: &Proxy) -> ClusterFeatures {
        // Only Istio's own Envoy build has the filter; a stock one would refuse the cluster.
        let has_filter = proxy.extensions.iter().any(|name| name.ends_with("metadata_exchange"));
        let metadata_exchange = knobs.metadata_exchange && has_filter;
        ClusterFeatures {
            metadata_exchange,
            metadata_exchange_alpn: metadata_exchange && !knobs.disable_mx_alpn,
            telemetry_label: knobs.telemetry_label,
            redis_filter: knobs.redis_filter,
            locality_weighted_lb: knobs.locality_weighted_lb,
            sends_unhealthy: knobs.auto_send_unhealthy || knobs.send_unhealthy,
            always_sends_unhealthy: knobs.send_unhealthy,
            prefer_rule_tls_for_external: knobs.prefer_rule_tls_for_external,
        }
    }
}

impl ClientCertificateFiles {
    fn of(proxy: &Proxy) -> Option<ClientCertificateFiles> {
        let text = |key| Str::from(proxy.meta(key).unwrap_or_default());
        let chain = text("TLS_CLIENT_CERT_CHAIN");
        let certificates =
            ClientCertificateFiles { chain, key: text("TLS_CLIENT_KEY"), root: text("TLS_CLIENT_ROOT_CERT") };
        (!certificates.chain.is_empty()).then_some(certificates)
    }
}

impl ServiceLabel {
    pub fn of(service: &Service) -> ServiceLabel {
        ServiceLabel {
            host: service.hostname.clone(),
            name: service.name.clone(),
            namespace: service.namespace.clone(),
        }
    }
}

impl AppliedRule {
    pub fn new(rule: &ConsolidatedRule, subset: Option<usize>) -> AppliedRule {
        let (meta, spec) = (&rule.rule.meta, &rule.rule.spec);
        AppliedRule { namespace: meta.namespace.clone(), name: meta.name.clone(), spec: spec.clone(), subset }
    }

    /// The subset, if the cluster is of one.
    pub fn subset(&self) -> Option<&Subset> {
        self.spec.subsets.get(self.subset?)
    }
}

/// What holds for a cluster of this rule: the subset's word before the rule's before the mesh's.
pub fn effective<'a>(rule: Option<&'a AppliedRule>, mesh: &'a Mesh, port: u16) -> EffectivePolicy<'a> {
    let whole = rule.map(|r| EffectivePolicy::of(&r.spec, None, port)).unwrap_or_default();
    let whole = whole.or_mesh(mesh.default_traffic_policy.as_ref());
    whole.with_subset(rule.and_then(AppliedRule::subset), port)
}

/// The clusters that every sidecar has beside those of services.
pub fn sidecar_fixed(view: &View, context: &Arc<ClusterContext>) -> Vec<ClusterPlan> {
    let plan = |name: &str, kind| ClusterPlan { name: name.into(), context: context.clone(), kind };
    let bind = inbound::passthrough_addresses(&view.proxy);
    let mut found = vec![
        plan(names::BLACK_HOLE_CLUSTER, ClusterKind::BlackHole),
        plan(names::PASSTHROUGH_CLUSTER, ClusterKind::Passthrough),
        plan(names::INBOUND_PASSTHROUGH_CLUSTER, ClusterKind::InboundPassthrough { bind }),
    ];
    if view.resolves_any_outbound() {
        let kind = ClusterKind::AllowAnyDynamicDns(DnsCache::for_any_name(view));
        found.push(plan(names::ALLOW_ANY_DYNAMIC_DNS_CLUSTER, kind));
    }
    found.extend(external_sds(context));
    found
}

/// The clusters that every gateway has beside those of services.
pub fn router_fixed(context: &Arc<ClusterContext>) -> Vec<ClusterPlan> {
    let name = names::BLACK_HOLE_CLUSTER.into();
    let mut found = vec![ClusterPlan { name, context: context.clone(), kind: ClusterKind::BlackHole }];
    found.extend(external_sds(context));
    found
}

fn external_sds(context: &Arc<ClusterContext>) -> Option<ClusterPlan> {
    let name = names::EXTERNAL_SDS_CLUSTER.into();
    let plan = ClusterPlan { name, context: context.clone(), kind: ClusterKind::ExternalSds };
    context.credential_socket.then_some(plan)
}

/// The clusters by name, each name once: the first one keeps it.
pub fn by_name(mut plans: Vec<ClusterPlan>) -> Vec<ClusterPlan> {
    plans.sort_by(|a, b| a.name.cmp(&b.name));
    plans.dedup_by(|later, first| later.name == first.name);
    plans
}
