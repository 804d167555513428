//! TLS passthrough chains to a service, matched by server name, from TLS routes of VirtualServices.

use std::collections::HashSet;

use api::istio::networking::v1alpha3::TlsMatchAttributes;
use model::names::Str;
use model::port::Port;
use model::service::{Registry, Resolution, UNSPECIFIED};

use super::addresses::{self, UNSPECIFIED_V6};
use super::conflicts::{ChainBody, ChainDraft};
use super::context::ListenerContext;
use super::tcp_routes::{ServicePort, config_ref, routed, to_service};
use crate::names;
use crate::plan::route::domains;

/// Chains from TLS routes, or the chain to the service's cluster if no route matches.
pub(super) fn chains(context: &ListenerContext<'_>, target: &ServicePort<'_>, bind: &str) -> Vec<ChainDraft> {
    let mut chains = Vec::new();
    let mut seen = HashSet::new();
    let mut ranges = target.ranges.to_vec();
    for rule in target.routes {
        for route in rule.config.spec.tls.iter().filter(|r| !r.route.is_empty()) {
            for matching in route.r#match.iter().filter(|m| admits(context, m, target.port)) {
                // As upstream: subnets of one match also apply to later matches without subnets.
                if !matching.destination_subnets.is_empty() && target.port.number > 0 {
                    ranges = matching.destination_subnets.iter().map(|s| Str::from(s.as_str())).collect();
                }
                if !seen.insert((&matching.sni_hosts, &matching.destination_subnets)) {
                    continue;
                }
                let Some(filters) = routed(context, &route.route, target.port, &rule.config) else { continue };
                chains.push(ChainDraft {
                    server_names: matching.sni_hosts.iter().map(|h| Str::from(h.as_str())).collect(),
                    ranges: ranges.clone(),
                    config: Some(config_ref(&rule.config)),
                    ..ChainDraft::new(ChainBody::Network(filters))
                });
            }
        }
    }
    if chains.is_empty() {
        chains.push(to_service(context, target, default_names(context, target, bind)));
    }
    chains
}

/// The service's hosts as server names, if its address does not identify it.
fn default_names(context: &ListenerContext<'_>, target: &ServicePort<'_>, bind: &str) -> Vec<Str> {
    let service = target.service;
    let mut address = addresses::of_service(service, &context.view.proxy, context.knobs());
    if service.registry == Registry::External && !context.view.proxy.has_ipv4() && *address == *UNSPECIFIED {
        address = UNSPECIFIED_V6.into();
    }
    let wildcard = context.wildcard();
    let unaddressed = address.is_empty() || address.contains('/') || (address == *wildcard && bind == &**wildcard);
    let by_name = service.hostname.is_wildcard() && service.resolution == Resolution::DynamicDns;
    if !target.ranges.is_empty() || unaddressed || by_name {
        let (domain, absolute) = (&context.view.proxy.domain, context.knobs().absolute_fqdn_domain);
        let aliases = service.aliases.iter().flat_map(|a| domains::of_alias(&a.hostname, domain, absolute));
        return std::iter::once(service.hostname.text().clone()).chain(aliases).collect();
    }
    Vec::new()
}

fn admits(context: &ListenerContext<'_>, matching: &TlsMatchAttributes, port: &Port) -> bool {
    let proxy = &context.view.proxy;
    (matching.gateways.is_empty() || matching.gateways.iter().any(|g| g == names::MESH_GATEWAY))
        && proxy.labels.is_selected_by(&matching.source_labels)
        && (matching.port == 0 || matching.port == u32::from(port.number))
        && (matching.source_namespace.is_empty() || proxy.namespace == *matching.source_namespace)
}
