//! Cluster plans: `outbound` for services that a client calls, `inbound` for the workload's own ports, and the fixed
//! clusters of every client.

pub mod inbound;
pub mod outbound;

use std::sync::Arc;

use api::istio::networking::v1alpha3::{DestinationRule, Subset};
use model::hashed::Hashed;
use model::names::{Hostname, Namespace, Str};
use model::proxy::ProxyKind;
use model::service::Service;
use model::settings::{Knobs, Mesh};
use model::snapshot::routing::ConsolidatedRule;
use scope::ReadProxy;
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
    /// Another service's cluster of this name was left out.
    pub has_duplicate: bool,
}

/// The kind of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClusterKind {
    Outbound(Box<OutboundPlan>),
    Inbound(Box<InboundPlan>),
    /// No endpoints.
    BlackHole,
    /// The original destination.
    Passthrough,
    /// The workload's ports that belong to no service. Source addresses are those that iptables does not redirect.
    InboundPassthrough {
        bind: Vec<Str>,
    },
    /// The addresses that the Host header resolves to.
    AllowAnyDynamicDns(DnsCache),
    /// The agent's SDS socket for secrets of other providers.
    ExternalSds,
}

/// What all clusters of a client depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterContext {
    pub client: ProxyKind,
    pub mesh: Mesh,
    pub features: ClusterFeatures,
    /// Preserve the case of HTTP/1 headers.
    pub preserve_case: bool,
    /// The client's certificate files, used instead of mesh certificates.
    pub certificates: Option<ClientCertificateFiles>,
    /// SDS name of the certificate that a gateway presents to backends whose rule names no other.
    pub backend_certificate: Option<Str>,
    /// Whether the agent has separate SDS sockets for secrets of other providers and for files.
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

/// Paths of a client's certificate files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientCertificateFiles {
    pub chain: Str,
    pub key: Str,
    pub root: Str,
}

/// A service in telemetry metadata.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceLabel {
    pub host: Hostname,
    pub name: Str,
    pub namespace: Namespace,
}

/// The DestinationRule of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AppliedRule {
    pub namespace: Namespace,
    pub name: Str,
    pub spec: Hashed<DestinationRule>,
    /// Index of the cluster's subset in the rule.
    pub subset: Option<usize>,
}

impl ClusterContext {
    pub fn new(view: &View) -> ClusterContext {
        let (proxy, settings) = (&view.proxy, &view.settings);
        let headers = view.proxy_config.proxy_headers.as_ref();
        ClusterContext {
            client: *proxy.kind,
            mesh: settings.mesh.clone(),
            features: ClusterFeatures::new(&settings.knobs, proxy),
            preserve_case: headers.and_then(|h| h.preserve_http1_header_case).unwrap_or(false),
            certificates: ClientCertificateFiles::of(proxy),
            backend_certificate: view.gateway.as_ref().and_then(|gateway| gateway.backend_certificate.clone()),
            credential_socket: proxy.meta("credential") == Some("true"),
            file_credential_socket: proxy.meta("file-credential") == Some("true"),
        }
    }
}

impl ClusterFeatures {
    fn new(knobs: &Knobs, proxy: &ReadProxy) -> ClusterFeatures {
        // Only Istio's Envoy build has the filter; other builds would reject the cluster.
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
    fn of(proxy: &ReadProxy) -> Option<ClientCertificateFiles> {
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

    /// The cluster's subset, if it has one.
    pub fn subset(&self) -> Option<&Subset> {
        self.spec.subsets.get(self.subset?)
    }
}

/// The effective policy of a cluster: the subset overrides the rule, which overrides the mesh.
pub fn effective<'a>(rule: Option<&'a AppliedRule>, mesh: &'a Mesh, port: u16) -> EffectivePolicy<'a> {
    let whole = rule.map(|r| EffectivePolicy::of(&r.spec, None, port)).unwrap_or_default();
    let whole = whole.or_mesh(mesh.default_traffic_policy.as_ref());
    whole.with_subset(rule.and_then(AppliedRule::subset), port)
}

/// The fixed clusters of a sidecar.
pub fn sidecar_fixed(view: &View, context: &Arc<ClusterContext>) -> Vec<ClusterPlan> {
    let plan =
        |name: &str, kind| ClusterPlan { name: name.into(), context: context.clone(), kind, has_duplicate: false };
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

/// The fixed clusters of a gateway.
pub fn router_fixed(context: &Arc<ClusterContext>) -> Vec<ClusterPlan> {
    let name = names::BLACK_HOLE_CLUSTER.into();
    let mut found =
        vec![ClusterPlan { name, context: context.clone(), kind: ClusterKind::BlackHole, has_duplicate: false }];
    found.extend(external_sds(context));
    found
}

fn external_sds(context: &Arc<ClusterContext>) -> Option<ClusterPlan> {
    let name = names::EXTERNAL_SDS_CLUSTER.into();
    let plan = ClusterPlan { name, context: context.clone(), kind: ClusterKind::ExternalSds, has_duplicate: false };
    context.credential_socket.then_some(plan)
}

/// Sorts clusters by name. Of clusters with the same name, the first one is kept.
pub fn by_name(mut plans: Vec<ClusterPlan>) -> Vec<ClusterPlan> {
    plans.sort_by(|a, b| a.name.cmp(&b.name));
    plans.dedup_by(|later, first| {
        let is_same = later.name == first.name;
        first.has_duplicate |= is_same;
        is_same
    });
    plans
}
