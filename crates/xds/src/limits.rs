//! Bounds on what one client may make the server hold, and on how long it may make it wait.

use std::time::Duration;

/// Bounds per request and per stream. A client beyond them is told so and its stream ends.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of one request, as upstream's server sets it.
    pub request_bytes: usize,
    /// How long a client may take to finish a request that it began, and to begin the first.
    pub request_time: Duration,
    /// Resource names in one request, those that are given up and those of held resources included.
    pub request_names: usize,
    /// Resource names of one type, in a request and on the stream.
    pub names: usize,
    /// Resource names of all types of a stream.
    pub stream_names: usize,
    /// Bytes of all those names. A client that speaks SotW sends all names of a type in one request.
    pub stream_name_bytes: usize,
    /// Debug pages in one request; istioctl asks for one.
    pub pages: usize,
    /// Bytes of one resource name.
    pub name_bytes: usize,
    /// Bytes of the node's id, which is in logs and on pages. One with the longest names that Kubernetes and DNS allow
    /// for its parts has 620.
    pub node_id_bytes: usize,
    /// Bytes of a node but for its metadata: mostly the list of Envoy's extensions, which has some 60 KiB.
    pub node_bytes: usize,
    /// Bytes of the name of a type.
    pub type_bytes: usize,
    /// Bytes of the message of a refusal that are read; the rest is cut.
    pub message_bytes: usize,
    /// Bytes of the node's metadata. Kubernetes allows 256 KiB of annotations, which agents send along.
    pub metadata_bytes: usize,
    /// Types on one stream. Envoy has eight; a control plane that reads configuration has one for each kind.
    pub types: usize,
    /// How long a response waits for the answer to the one before it, if newer resources are there.
    pub patience: Duration,
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
        }
    }
}
