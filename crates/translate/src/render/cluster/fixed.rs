//! Clusters that no service stands behind.

use api::envoy::config::cluster::v3::cluster::{DiscoveryType, LbPolicy};
use api::envoy::config::cluster::v3::{Cluster, Filter};
use api::envoy::config::core::v3::Http2ProtocolOptions;
use api::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use api::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use api::envoy::extensions::upstreams::http::v3::http_protocol_options::{ExplicitHttpConfig, UpstreamProtocolOptions};
use api::istio::networking::v1alpha3::client_tls_settings::TlSmode;
use api::wire::xds::r#type::v3::TypedStruct;
use api::{Value, any, value};
use model::names::Str;

use super::inbound::{bind_config, one_endpoint};
use super::{ClusterDraft, HTTP_OPTIONS, delimited, discovery, dns, http, pool, tls};
use crate::dns_cache::{self, DnsCache};
use crate::names;
use crate::plan::cluster::ClusterContext;
use crate::render::endpoints::{fields, text};

const CREDENTIAL_SOCKET: &str = "./var/run/secrets/credential-uds/socket";
const METADATA_EXCHANGE: &str = "istio.metadata_exchange";
const METADATA_EXCHANGE_TYPE: &str = "type.googleapis.com/envoy.tcp.metadataexchange.config.MetadataExchange";

/// Nowhere.
pub(super) fn black_hole(name: &str, context: &ClusterContext) -> Cluster {
    Cluster {
        name: name.to_owned(),
        alt_stat_name: delimited(name),
        cluster_discovery_type: discovery(DiscoveryType::Static),
        connect_timeout: context.mesh.connect_timeout,
        ..Cluster::default()
    }
}

/// Where the client meant its connection to go.
pub(super) fn passthrough(name: &str, context: &ClusterContext) -> Cluster {
    let mut cluster = original_destination(name, context);
    if context.features.metadata_exchange {
        cluster.filters.push(metadata_exchange());
    }
    cluster
}

/// The workload's own ports. Upstream counts them under the name of the outbound cluster.
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
    // The pool's HTTP options do not hold here: any protocol may come along.
    let options = any(&http::passthrough_options(context));
    draft.cluster.typed_extension_protocol_options.insert(HTTP_OPTIONS.to_owned(), options);
    draft.cluster
}

/// Where the Host header says, with TLS if mesh config asks for it.
pub(super) fn allow_any_dynamic_dns(name: &str, context: &ClusterContext, cache: &DnsCache) -> Cluster {
    let mut draft = ClusterDraft::default();
    draft.cluster.name = name.to_owned();
    draft.cluster.alt_stat_name = delimited(name);
    pool::apply(&mut draft, context, None, None);
    let settings = context.mesh.outbound_traffic_policy.as_ref().and_then(|p| p.tls.as_ref());
    let settings = settings.filter(|t| t.mode() != TlSmode::Disable);
    // Envoy wants to hear that nothing checks whether the server is the one that was asked for.
    let unchecked = settings.is_none_or(|t| t.insecure_skip_verify.unwrap_or(false) || !t.sni.is_empty());
    dns::forward(&mut draft.cluster, dns_cache::render(cache), unchecked);
    let options = any(&http::passthrough_options(context));
    draft.cluster.typed_extension_protocol_options.insert(HTTP_OPTIONS.to_owned(), options);
    if let Some(settings) = settings {
        tls::originate_to_any(&mut draft, context, settings);
    }
    if context.features.metadata_exchange {
        draft.cluster.filters.push(metadata_exchange());
    }
    draft.finish()
}

/// The agent's socket for secrets of other providers.
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

/// The filter by which both ends of a TCP connection tell each other who they are.
pub(super) fn metadata_exchange() -> Filter {
    let config = TypedStruct {
        type_url: METADATA_EXCHANGE_TYPE.to_owned(),
        value: Some(fields([
            ("protocol", text("istio-peer-exchange")),
            ("enable_discovery", Value { kind: Some(value::Kind::BoolValue(true)) }),
        ])),
    };
    Filter { name: METADATA_EXCHANGE.to_owned(), typed_config: Some(any(&config)), ..Filter::default() }
}
