//! Clusters without a service.

use api::any;
use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::cluster::v3::cluster::{DiscoveryType, LbPolicy};
use api::envoy::config::core::v3::Http2ProtocolOptions;
use api::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use api::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use api::envoy::extensions::upstreams::http::v3::http_protocol_options::{ExplicitHttpConfig, UpstreamProtocolOptions};
use api::istio::networking::v1alpha3::client_tls_settings::TlSmode;
use model::names::Str;

use super::inbound::{bind_config, one_endpoint};
use super::{ClusterDraft, HTTP_OPTIONS, delimited, discovery, dns, http, metadata_exchange, pool, tls};
use crate::dns_cache::{self, DnsCache};
use crate::names;
use crate::plan::cluster::ClusterContext;

const CREDENTIAL_SOCKET: &str = "./var/run/secrets/credential-uds/socket";

/// A cluster without endpoints.
pub(super) fn black_hole(name: &str, context: &ClusterContext) -> Cluster {
    Cluster {
        name: name.to_owned(),
        alt_stat_name: delimited(name),
        cluster_discovery_type: discovery(DiscoveryType::Static),
        connect_timeout: context.mesh.connect_timeout,
        ..Cluster::default()
    }
}

/// The original destination.
pub(super) fn passthrough(name: &str, context: &ClusterContext) -> Cluster {
    let mut cluster = original_destination(name, context);
    if context.features.metadata_exchange {
        cluster.filters.push(metadata_exchange::filter());
    }
    cluster
}

/// The workload's ports. Its stat name is that of the outbound passthrough cluster, as upstream.
pub(super) fn inbound_passthrough(name: &str, context: &ClusterContext, bind: &[Str]) -> Cluster {
    Cluster {
        alt_stat_name: delimited(names::PASSTHROUGH_CLUSTER),
        upstream_bind_config: bind_config(bind),
        ..original_destination(name, context)
    }
}

fn original_destination(name: &str, context: &ClusterContext) -> Cluster {
    let mut draft = ClusterDraft::default();
    draft.cluster.name = name.to_owned();
    draft.cluster.alt_stat_name = delimited(name);
    draft.cluster.cluster_discovery_type = discovery(DiscoveryType::OriginalDst);
    draft.cluster.set_lb_policy(LbPolicy::ClusterProvided);
    let defaults = context.mesh.default_traffic_policy.as_ref();
    pool::apply(&mut draft, context, defaults.and_then(|d| d.connection_pool.as_ref()), None);
    // Overrides the pool's HTTP options, because traffic may have any protocol.
    let options = any(&http::passthrough_options(context));
    draft.cluster.typed_extension_protocol_options.insert(HTTP_OPTIONS.to_owned(), options);
    draft.cluster
}

/// The host of each request, with TLS if mesh config sets it.
pub(super) fn allow_any_dynamic_dns(name: &str, context: &ClusterContext, cache: &DnsCache) -> Cluster {
    let mut draft = ClusterDraft::default();
    draft.cluster.name = name.to_owned();
    draft.cluster.alt_stat_name = delimited(name);
    pool::apply(&mut draft, context, None, None);
    let settings = context.mesh.outbound_traffic_policy.as_ref().and_then(|p| p.tls.as_ref());
    let settings = settings.filter(|t| t.mode() != TlSmode::Disable);
    // Envoy requires this flag if the server's name is not verified.
    let unchecked = settings.is_none_or(|t| t.insecure_skip_verify.unwrap_or(false) || !t.sni.is_empty());
    dns::forward(&mut draft.cluster, dns_cache::render(cache), unchecked);
    let options = any(&http::passthrough_options(context));
    draft.cluster.typed_extension_protocol_options.insert(HTTP_OPTIONS.to_owned(), options);
    if let Some(settings) = settings {
        tls::originate_to_any(&mut draft, context, settings);
    }
    if context.features.metadata_exchange {
        draft.cluster.filters.push(metadata_exchange::filter());
    }
    draft.finish()
}

/// The agent's SDS socket for secrets of other providers.
pub(super) fn external_sds(name: &str, context: &ClusterContext) -> Cluster {
    let config = ProtocolConfig::Http2ProtocolOptions(Http2ProtocolOptions::default());
    let options = HttpProtocolOptions {
        upstream_protocol_options: Some(UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
            protocol_config: Some(config),
        })),
        ..HttpProtocolOptions::default()
    };
    Cluster {
        load_assignment: Some(one_endpoint(name, CREDENTIAL_SOCKET, 0)),
        typed_extension_protocol_options: [(HTTP_OPTIONS.to_owned(), any(&options))].into_iter().collect(),
        ..black_hole(name, context)
    }
}
