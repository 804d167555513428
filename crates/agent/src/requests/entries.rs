//! The messages of Envoy's access log service, with the fields that metrics are made from. Other fields are skipped
//! while decoding, which costs less than the generated types.

use std::collections::BTreeMap;

use api::Duration;

/// `envoy.service.accesslog.v3.StreamAccessLogsMessage`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LogMessage {
    /// In the first message of a stream.
    #[prost(message, optional, tag = "1")]
    pub(super) identifier: Option<Identifier>,
    #[prost(message, optional, tag = "2")]
    pub(super) http: Option<HttpEntries>,
    #[prost(message, optional, tag = "3")]
    pub(super) tcp: Option<TcpEntries>,
}

/// `envoy.service.accesslog.v3.StreamAccessLogsMessage.Identifier`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Identifier {
    #[prost(string, tag = "2")]
    pub(super) log_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HttpEntries {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<HttpEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TcpEntries {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<TcpEntry>,
}

/// `envoy.data.accesslog.v3.HTTPAccessLogEntry`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HttpEntry {
    #[prost(message, optional, tag = "1")]
    pub(super) common: Option<CommonProperties>,
    #[prost(message, optional, tag = "3")]
    pub(super) request: Option<RequestProperties>,
    #[prost(message, optional, tag = "4")]
    pub(super) response: Option<ResponseProperties>,
}

/// `envoy.data.accesslog.v3.TCPAccessLogEntry`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TcpEntry {
    #[prost(message, optional, tag = "1")]
    pub(super) common: Option<CommonProperties>,
    #[prost(message, optional, tag = "2")]
    pub(super) connection: Option<ConnectionProperties>,
}

/// `envoy.data.accesslog.v3.AccessLogCommon`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CommonProperties {
    #[prost(string, tag = "15")]
    pub(super) upstream_cluster: String,
    /// The tags that the control plane configured.
    #[prost(btree_map = "string, string", tag = "22")]
    pub(super) tags: BTreeMap<String, String>,
    #[prost(message, optional, tag = "23")]
    pub(super) duration: Option<Duration>,
    #[prost(string, tag = "26")]
    pub(super) stream_id: String,
    #[prost(int32, tag = "33")]
    pub(super) log_type: i32,
}

/// `envoy.data.accesslog.v3.ConnectionProperties`
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct ConnectionProperties {
    #[prost(uint64, tag = "1")]
    pub(super) received_bytes: u64,
    #[prost(uint64, tag = "2")]
    pub(super) sent_bytes: u64,
}

/// `envoy.data.accesslog.v3.HTTPRequestProperties`
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct RequestProperties {
    #[prost(uint64, tag = "11")]
    pub(super) headers_bytes: u64,
    #[prost(uint64, tag = "12")]
    pub(super) body_bytes: u64,
}

/// `envoy.data.accesslog.v3.HTTPResponseProperties`
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct ResponseProperties {
    /// A wrapped number.
    #[prost(message, optional, tag = "1")]
    pub(super) code: Option<u32>,
    #[prost(uint64, tag = "2")]
    pub(super) headers_bytes: u64,
    #[prost(uint64, tag = "3")]
    pub(super) body_bytes: u64,
}

/// Values of `AccessLogType` for connections.
pub(super) const CONNECTED: i32 = 1;
pub(super) const PERIODIC: i32 = 2;
