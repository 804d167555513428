//! Messages of `istio.mcp.v1alpha1` as of Istio 1.4, which today's API no longer contains. Its `Resource` still does.

use std::collections::BTreeMap;

use api::istio::mcp::v1alpha1::Resource;
use api::wire::google::rpc::Status;

/// The service of a source (server).
pub const SERVICE: &str = "istio.mcp.v1alpha1.ResourceSource";
/// The method with which a sink (client) opens the stream.
pub const ESTABLISH: &str = "/istio.mcp.v1alpha1.ResourceSource/EstablishResourceStream";

#[derive(Clone, PartialEq, prost::Message)]
pub struct SinkNode {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub annotations: BTreeMap<String, String>,
}

/// A request if the nonce is empty; otherwise the ACK of the `Resources` with this nonce, or with an error its NACK.
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
    /// Used only if `incremental` is set.
    #[prost(string, repeated, tag = "4")]
    pub removed_resources: Vec<String>,
    #[prost(string, tag = "5")]
    pub nonce: String,
    /// Whether this changes the collection instead of replacing it.
    #[prost(bool, tag = "6")]
    pub incremental: bool,
}
