//! What a Consul registry can be told.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::http::HELD_BYTES;
use crate::registry::config::{GoDuration, TlsOptions};
use crate::registry::normalize;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ConsulOptions {
    /// URLs of agents. One is asked at a time; the next one when it fails.
    pub addresses: Vec<String>,
    /// Holds the ACL token; read again for every question, so it can be replaced.
    pub token_file: Option<PathBuf>,
    pub tls: TlsOptions,
    pub datacenter: String,
    /// Consul's namespace and partition, which only its enterprise edition has.
    pub consul_namespace: String,
    pub partition: String,
    /// The peer whose imported services are read.
    pub peer: String,
    /// A filter expression on instances, in Consul's language.
    pub filter: String,
    /// Read only services that have this tag.
    pub tag: String,
    /// Let any server answer, not only the leader.
    pub stale: bool,
    /// Ask the leader when the answer of another server is older than this.
    pub max_stale: GoDuration,
    /// How long Consul may hold a question back while nothing changes; at most ten minutes.
    pub wait: GoDuration,
    /// The least time between two readings of one list while it keeps changing.
    pub interval: GoDuration,
    /// How long an answer is waited for at first beyond the time that Consul may hold it back, and each further piece of
    /// it; twice as long after each time that was not enough.
    pub timeout: GoDuration,
    /// Services that are watched one by one. An agent takes 200 connections from one address unless
    /// told otherwise; with more services than this, lists of all of them are watched instead.
    pub watches: usize,
    /// Bytes of answers to all questions together that may be held at a time, and four times what one may have. One that
    /// does not fit is an error, and what is known is kept.
    pub max_bytes: usize,
    /// ConsulInstances with a check that warns serve too, with their weight for that.
    pub warning_serves: bool,
    pub profile: Profile,
    /// The host name of a service: `{service}`, `{datacenter}`, `{namespace}` and `{partition}` are filled in.
    pub host: String,
    /// The mesh's namespace of its services.
    pub namespace: String,
    /// One port for all instances of a service, whatever port each really has.
    pub service_port: Option<u16>,
    /// What ports speak that say nothing; empty to find out from the traffic.
    pub protocol: String,
    /// The tagged address to use, such as `wan`, where an instance has it.
    pub tagged_address: String,
    /// Take in sidecar proxies and gateways of Consul's own mesh.
    pub proxies: bool,
    /// The first part of identities.
    pub trust_domain: String,
}

/// How instances become services of the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Profile {
    #[default]
    Standard,
    /// As Pilot 1.1 to 1.7 did it: labels from `key|value` tags alone, ports named after their protocol,
    /// TCP unless said otherwise, the datacenter as region. Health is still heeded.
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

impl ConsulOptions {
    /// What the flags of Pilot say: addresses, separated by commas, and an interval.
    pub fn of_flags(addresses: &str, interval: Duration) -> ConsulOptions {
        ConsulOptions {
            addresses: normalize::listed(addresses),
            interval: GoDuration(interval),
            ..ConsulOptions::default()
        }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.addresses.is_empty() {
            return Err("there is no address".to_owned());
        }
        let values = [("service", "a"), ("datacenter", "a"), ("namespace", "a"), ("partition", "a")];
        normalize::check_host(&self.host, &values)
    }
}
