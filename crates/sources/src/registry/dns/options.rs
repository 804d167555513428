//! What the DNS registry can be told: which names are services.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

use crate::registry::config::GoDuration;
use crate::registry::normalize;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct DnsOptions {
    /// Servers as `address:port`, asked in turn until one answers; empty for those of the system.
    pub servers: Vec<SocketAddr>,
    /// How long one server may take.
    pub timeout: GoDuration,
    /// A name is asked for again when its records expire, but not sooner than this and not later than that.
    pub shortest: GoDuration,
    pub longest: GoDuration,
    /// The mesh's namespace of its services.
    pub namespace: String,
    pub services: Vec<DnsService>,
}

/// One service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DnsService {
    /// Its host name in the mesh.
    pub host: String,
    /// The name of its SRV records, which tell targets, ports and weights. Of several priorities the first is used.
    #[serde(default)]
    pub srv: String,
    /// The name of its A and AAAA records, where it has no SRV records; else the host itself.
    #[serde(default)]
    pub name: String,
    /// The port of the service, and of its endpoints where no SRV record says otherwise.
    pub port: u16,
    /// What it speaks; empty to find out from the traffic.
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

impl DnsOptions {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.services.is_empty() {
            return Err("there is no service".to_owned());
        }
        for service in &self.services {
            if normalize::hostname(&service.host, &[]).is_none() {
                return Err(format!("{:?} is no host name", service.host));
            }
            if !service.srv.is_empty() && !service.name.is_empty() {
                return Err(format!("service {:?} has both srv and name: give one", service.host));
            }
        }
        Ok(())
    }
}
