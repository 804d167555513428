//! Options of a DNS registry in the file of `--registryConfig`.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

use crate::registry::shared_options::GoDuration;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct DnsOptions {
    /// Name servers as `address:port`, queried in turn until one responds; those of resolv.conf by default.
    pub servers: Vec<SocketAddr>,
    /// The timeout of a query to one server.
    pub timeout: GoDuration,
    /// Bounds of the interval between two lookups of a name, which is the TTL of its records.
    pub shortest: GoDuration,
    pub longest: GoDuration,
    /// The mesh namespace of the services.
    pub namespace: String,
    pub services: Vec<DnsService>,
}

/// One service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DnsService {
    /// The host name in the mesh.
    pub host: String,
    /// The name of SRV records with targets, ports and weights. Only the records with the lowest priority value are used.
    #[serde(default)]
    pub srv: String,
    /// The name of A and AAAA records, for a service without `srv`; the host by default.
    #[serde(default)]
    pub name: String,
    /// The service port, and the port of endpoints without an SRV record.
    pub port: u16,
    /// The protocol; empty for protocol detection.
    #[serde(default)]
    pub protocol: String,
}

impl Default for DnsOptions {
    fn default() -> DnsOptions {
        DnsOptions {
            servers: Vec::new(),
            timeout: GoDuration(Duration::from_secs(2)),
            shortest: GoDuration(Duration::from_secs(1)),
            longest: GoDuration(Duration::from_secs(300)),
            namespace: "default".to_owned(),
            services: Vec::new(),
        }
    }
}
