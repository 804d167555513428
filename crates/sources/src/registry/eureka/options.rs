//! Options of a Eureka registry in the file of `--registryConfig`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::http::HELD_BYTES;
use crate::registry::shared_options::{GoDuration, TlsOptions};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct EurekaOptions {
    /// URLs of peers that replicate each other, with or without `/eureka` and `/v2`. One is used until it fails. A URL
    /// may contain credentials: `http://USER:PASSWORD@HOST/eureka`.
    pub addresses: Vec<String>,
    pub username: String,
    /// File with the password; read for each request, so that it can be replaced.
    pub password_file: Option<PathBuf>,
    pub tls: TlsOptions,
    /// The polling interval.
    pub interval: GoDuration,
    /// The timeout of a response and of each further piece of its body. It doubles after each timeout.
    pub timeout: GoDuration,
    /// How instances are grouped into services.
    pub service_per: ServicePer,
    /// Template of host names: `{name}` is replaced.
    pub host: String,
    /// The mesh namespace of the services.
    pub namespace: String,
    /// The service port, in place of the non-secure port of the instances.
    pub service_port: Option<u16>,
    /// Protocol of non-secure ports without one in their metadata; empty for protocol detection.
    pub protocol: String,
    /// The trust domain of SPIFFE identities.
    pub trust_domain: String,
    /// How soon the full registry is read after a delta changed it. A server that rebuilds a cached response while
    /// instances register may serve it without the last ones, with a matching hash code, until the cache expires (three
    /// minutes by default). Lists and deltas are cached separately, so one of them is complete.
    pub recheck: GoDuration,
    /// Limit of response bodies in memory. A response beyond it is an error, and the known instances are kept.
    pub max_bytes: usize,
    /// How long an instance is kept that a new or restarted peer does not list; the duration of a lease.
    pub lease: GoDuration,
}

/// The field by which instances are grouped into services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServicePer {
    #[default]
    App,
    VipAddress,
    /// As Pilot 0.8: the host name of an instance is the host name of the service.
    HostName,
}

impl Default for EurekaOptions {
    fn default() -> EurekaOptions {
        EurekaOptions {
            addresses: Vec::new(),
            username: String::new(),
            password_file: None,
            tls: TlsOptions::default(),
            interval: GoDuration(Duration::from_secs(5)),
            timeout: GoDuration(Duration::from_secs(30)),
            service_per: ServicePer::App,
            host: "{name}.eureka".to_owned(),
            namespace: "default".to_owned(),
            service_port: None,
            protocol: String::new(),
            trust_domain: "cluster.local".to_owned(),
            recheck: GoDuration(Duration::from_secs(30)),
            max_bytes: HELD_BYTES,
            lease: GoDuration(Duration::from_secs(90)),
        }
    }
}
