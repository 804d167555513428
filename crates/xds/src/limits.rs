//! Limits on what one client may send, and on how long it may take.

use std::time::Duration;

/// Limits per request and per stream. A stream that exceeds one ends with a status that names the limit.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of one request; the value of upstream's server.
    pub request_bytes: usize,
    /// How long a client may take for its first request, and to complete any request it has started to send.
    pub request_time: Duration,
    /// Resource names in one request, including those unsubscribed from and those of held resources.
    pub request_names: usize,
    /// Resource names of one type, in a request and on the stream.
    pub names: usize,
    /// Resource names of all types of a stream.
    pub stream_names: usize,
    /// Bytes of all those names. A SotW client sends all names of a type in one request.
    pub stream_name_bytes: usize,
    /// Debug pages per request; istioctl asks for one.
    pub pages: usize,
    /// Bytes of one resource name.
    pub name_bytes: usize,
    /// Bytes of the node's id, which appears in logs and on debug pages. With the longest names that Kubernetes and DNS
    /// allow for its parts an id has 620.
    pub node_id_bytes: usize,
    /// Bytes of a node without its metadata: mostly the list of Envoy's extensions, about 60 KiB.
    pub node_bytes: usize,
    /// Bytes of a type URL.
    pub type_bytes: usize,
    /// Bytes of a rejection's message; the rest is cut.
    pub message_bytes: usize,
    /// Bytes of the node's metadata. Agents include annotations, of which Kubernetes allows 256 KiB.
    pub metadata_bytes: usize,
    /// Types on one stream. Envoy uses eight; a control plane that reads configuration uses one per kind.
    pub types: usize,
    /// How long newer resources wait for the answer to the previous response of their type.
    pub patience: Duration,
    /// How long a client may take no part of a response that waits for it; zero for no limit.
    pub send_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_bytes: 4 * 1024 * 1024,
            request_time: Duration::from_secs(30),
            request_names: 150_000,
            names: 50_000,
            stream_names: 100_000,
            stream_name_bytes: 8 * 1024 * 1024,
            pages: 16,
            name_bytes: 4 * 1024,
            node_id_bytes: 768,
            node_bytes: 256 * 1024,
            type_bytes: 256,
            message_bytes: 16 * 1024,
            metadata_bytes: 512 * 1024,
            types: 64,
            patience: Duration::from_secs(30),
            send_time: Duration::from_secs(5),
        }
    }
}
