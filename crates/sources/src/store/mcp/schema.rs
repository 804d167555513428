//! Messages of `istio.mcp.v1alpha1` that today's API no longer has, as of Istio 1.4. The envelope is still there.

use std::collections::BTreeMap;

use api::istio::mcp::v1alpha1::Resource;
use api::wire::google::rpc::Status;

/// Where a sink, which is the client, opens the one stream for all collections.
pub const ESTABLISH: &str = "/istio.mcp.v1alpha1.ResourceSource/EstablishResourceStream";

#[derive(Clone, PartialEq, prost::Message)]
pub struct SinkNode {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub annotations: BTreeMap<String, String>,
}

/// With an empty nonce a request; with the nonce of `Resources` its acceptance, or with an error its refusal.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RequestResources {
    #[prost(message, optional, tag = "1")]
    pub sink_node: Option<SinkNode>,
    #[prost(string, tag = "2")]
    pub collection: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub initial_resource_versions: BTreeMap<String, String>,
    #[prost(string, tag = "4")]
    pub response_nonce: String,
    #[prost(message, optional, tag = "5")]
    pub error_detail: Option<Status>,
    #[prost(bool, tag = "6")]
    pub incremental: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Resources {
    #[prost(string, tag = "1")]
    pub system_version_info: String,
    #[prost(string, tag = "2")]
    pub collection: String,
    #[prost(message, repeated, tag = "3")]
    pub resources: Vec<Resource>,
    /// Heeded only where `incremental` is set.
    #[prost(string, repeated, tag = "4")]
    pub removed_resources: Vec<String>,
    #[prost(string, tag = "5")]
    pub nonce: String,
    /// Whether the collection is changed by this rather than replaced.
    #[prost(bool, tag = "6")]
    pub incremental: bool,
}
