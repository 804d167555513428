//! Options of a Consul registry in the file of `--registryConfig`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::http::HELD_BYTES;
use crate::registry::shared_options::{GoDuration, TlsOptions};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ConsulOptions {
    /// URLs of agents. One is used at a time, the next one after a failure.
    pub addresses: Vec<String>,
    /// File with the ACL token; read for each query, so that it can be replaced.
    pub token_file: Option<PathBuf>,
    pub tls: TlsOptions,
    pub datacenter: String,
    /// Namespace and partition of Consul Enterprise.
    pub consul_namespace: String,
    pub partition: String,
    /// The cluster peer whose imported services are read.
    pub peer: String,
    /// A Consul filter expression on instances.
    pub filter: String,
    /// Read only services that have this tag.
    pub tag: String,
    /// Allow responses of followers (stale consistency).
    pub stale: bool,
    /// Query the leader when a follower's response is older than this.
    pub max_stale: GoDuration,
    /// The wait of blocking queries; at most ten minutes.
    pub wait: GoDuration,
    /// The minimum interval between two queries for one list while it keeps changing.
    pub interval: GoDuration,
    /// The timeout of a response, beyond the wait of a blocking query, and of each further piece of its body. It doubles
    /// after each timeout.
    pub timeout: GoDuration,
    /// Each service is watched with its own blocking query. Above this number of services, two catalog-wide blocking
    /// queries are used instead, because an agent accepts 200 connections from one address by default.
    pub watches: usize,
    /// Limit of response bodies in memory, of all queries together; a single one may have a quarter. A response beyond
    /// the limit is an error, and the known services are kept.
    pub max_bytes: usize,
    /// Whether instances with a warning check are healthy, with their weight for that state.
    pub warning_serves: bool,
    pub profile: Profile,
    /// Template of host names: `{service}`, `{datacenter}`, `{namespace}` and `{partition}` are replaced.
    pub host: String,
    /// The mesh namespace of the services.
    pub namespace: String,
    /// The service port, in place of the port of the instances.
    pub service_port: Option<u16>,
    /// Protocol of ports without one in their metadata; empty for protocol detection.
    pub protocol: String,
    /// The tagged address to use, such as `wan`, where an instance has one.
    pub tagged_address: String,
    /// Include sidecar proxies and gateways of Consul's service mesh.
    pub proxies: bool,
    /// The trust domain of SPIFFE identities.
    pub trust_domain: String,
}

/// How instances are mapped to services of the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Profile {
    #[default]
    Standard,
    /// As Pilot 1.1 to 1.7: labels from `key|value` tags only, ports named after their protocol, TCP by default, the
    /// datacenter as region. Health checks are honoured all the same.
    Compat,
}

impl Default for ConsulOptions {
    fn default() -> ConsulOptions {
        ConsulOptions {
            addresses: Vec::new(),
            token_file: None,
            tls: TlsOptions::default(),
            datacenter: String::new(),
            consul_namespace: String::new(),
            partition: String::new(),
            peer: String::new(),
            filter: String::new(),
            tag: String::new(),
            stale: true,
            max_stale: GoDuration(Duration::from_secs(10)),
            wait: GoDuration(Duration::from_secs(300)),
            interval: GoDuration(Duration::from_secs(1)),
            timeout: GoDuration(Duration::from_secs(30)),
            watches: 100,
            max_bytes: HELD_BYTES,
            warning_serves: false,
            profile: Profile::Standard,
            host: "{service}.service.consul".to_owned(),
            namespace: "default".to_owned(),
            service_port: None,
            protocol: String::new(),
            tagged_address: String::new(),
            proxies: false,
            trust_domain: "cluster.local".to_owned(),
        }
    }
}
