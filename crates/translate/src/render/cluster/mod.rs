//! Renders clusters. Each part of a cluster has its own file.

mod dns;
mod fixed;
mod http;
mod inbound;
mod lb;
mod metadata;
mod metadata_exchange;
mod outbound;
mod outlier;
mod pool;
mod tls;

use api::any;
use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use api::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;

use crate::plan::cluster::{ClusterKind, ClusterPlan};

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// The cluster.
pub fn cluster(plan: &ClusterPlan) -> Cluster {
    match &plan.kind {
        ClusterKind::Outbound(outbound) => outbound::cluster(&plan.name, &plan.context, outbound),
        ClusterKind::Inbound(inbound) => inbound::cluster(&plan.name, &plan.context, inbound),
        ClusterKind::BlackHole => fixed::black_hole(&plan.name, &plan.context),
        ClusterKind::Passthrough => fixed::passthrough(&plan.name, &plan.context),
        ClusterKind::InboundPassthrough { bind } => fixed::inbound_passthrough(&plan.name, &plan.context, bind),
        ClusterKind::AllowAnyDynamicDns(cache) => fixed::allow_any_dynamic_dns(&plan.name, &plan.context, cache),
        ClusterKind::ExternalSds => fixed::external_sds(&plan.name, &plan.context),
    }
}

/// A cluster being built; its HTTP options are encoded last.
#[derive(Debug, Default)]
struct ClusterDraft {
    cluster: Cluster,
    http: Option<HttpProtocolOptions>,
}

impl ClusterDraft {
    fn http(&mut self) -> &mut HttpProtocolOptions {
        self.http.get_or_insert_default()
    }

    fn is_original_destination(&self) -> bool {
        self.cluster.cluster_discovery_type == discovery(DiscoveryType::OriginalDst)
    }

    fn finish(mut self) -> Cluster {
        if let Some(options) = self.http {
            let options = any(&http::with_protocol(options));
            self.cluster.typed_extension_protocol_options.insert(HTTP_OPTIONS.to_owned(), options);
        }
        self.cluster
    }
}

fn discovery(kind: DiscoveryType) -> Option<ClusterDiscoveryType> {
    Some(ClusterDiscoveryType::Type(kind as i32))
}

/// Stat names end with a delimiter, so that tag extraction can find their end.
fn delimited(name: &str) -> String {
    format!("{name};")
}
