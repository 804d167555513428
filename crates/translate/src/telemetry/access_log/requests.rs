//! The access log from which the agent makes request metrics, for proxies whose agent does so. Each entry has tags with
//! what the metrics' labels are made from.

use api::Duration;
use api::envoy::config::core::v3::{ApiVersion, GrpcService, grpc_service};
use api::envoy::extensions::access_loggers::grpc::v3::CommonGrpcAccessLogConfig;
use api::envoy::r#type::tracing::v3::{CustomTag, custom_tag};
use model::proxy::{REQUEST_METRICS, REQUEST_METRICS_CLUSTER};
use scope::View;

use super::{AccessLog, LogFilter, LogScope, LogSink};
use crate::listener_side::ListenerSide;

/// How often the bytes of open connections are reported, as upstream's stats filter does.
pub(crate) const REPORT_INTERVAL: Duration = Duration { seconds: 5, nanos: 0 };

/// Tags of every entry; `crates/agent/src/requests/labels.rs` reads them.
const TAGS: [(&str, &str); 5] = [
    ("services", "%CLUSTER_METADATA(istio:services)%"),
    ("workload", "%UPSTREAM_METADATA(istio:workload)%"),
    ("flags", "%RESPONSE_FLAGS%"),
    ("content_type", "%REQ(CONTENT-TYPE)%"),
    ("grpc_status", "%GRPC_STATUS_NUMBER%"),
];
/// Identities of both ends of the connection between proxies.
const INBOUND_TAGS: [(&str, &str); 2] = [("peer", "%DOWNSTREAM_PEER_URI_SAN%"), ("own", "%DOWNSTREAM_LOCAL_URI_SAN%")];
const OUTBOUND_TAGS: [(&str, &str); 2] = [("peer", "%UPSTREAM_PEER_URI_SAN%"), ("own", "%UPSTREAM_LOCAL_URI_SAN%")];

/// Adds the log if the proxy's agent makes metrics from it. Other logs of connections then skip the entries of open
/// connections, which are for the metrics only.
pub(super) fn add(view: &View, side: ListenerSide, scope: LogScope, logs: &mut Vec<AccessLog>) {
    if scope == LogScope::Listener || !view.proxy.flag(REQUEST_METRICS) {
        return;
    }
    if scope == LogScope::Tcp {
        logs.iter_mut().for_each(|log| log.filters.push(LogFilter::ConnectionEnd));
    }
    let (is_inbound, is_http) = (side == ListenerSide::SidecarInbound, scope == LogScope::Http);
    logs.push(AccessLog { sink: LogSink::RequestMetrics { is_inbound, is_http }, filters: Vec::new() });
}

/// The gRPC service of the agent.
pub(super) fn service(is_inbound: bool) -> CommonGrpcAccessLogConfig {
    let envoy = grpc_service::EnvoyGrpc {
        cluster_name: REQUEST_METRICS_CLUSTER.to_owned(),
        ..grpc_service::EnvoyGrpc::default()
    };
    let (log_name, identities) =
        if is_inbound { ("pilotage-inbound", INBOUND_TAGS) } else { ("pilotage-outbound", OUTBOUND_TAGS) };
    let tag = |(tag, value): (&str, &str)| CustomTag {
        tag: tag.to_owned(),
        r#type: Some(custom_tag::Type::Value(value.to_owned())),
        ..CustomTag::default()
    };
    CommonGrpcAccessLogConfig {
        log_name: log_name.to_owned(),
        grpc_service: Some(GrpcService {
            target_specifier: Some(grpc_service::TargetSpecifier::EnvoyGrpc(envoy)),
            ..GrpcService::default()
        }),
        transport_api_version: ApiVersion::V3.into(),
        custom_tags: TAGS.into_iter().chain(identities).map(tag).collect(),
        ..CommonGrpcAccessLogConfig::default()
    }
}
