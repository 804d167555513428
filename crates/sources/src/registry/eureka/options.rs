//! What a Eureka registry can be told.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::http::HELD_BYTES;
use crate::registry::config::{GoDuration, TlsOptions};
use crate::registry::normalize;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct EurekaOptions {
    /// URLs of peers that copy each other, with or without `/eureka` and `/v2`. One is asked as long as it answers.
    /// A user and a password may stand in each: `http://USER:PASSWORD@HOST/eureka`.
    pub addresses: Vec<String>,
    pub username: String,
    /// Holds the password; read again for every question, so it can be replaced.
    pub password_file: Option<PathBuf>,
    pub tls: TlsOptions,
    /// How often changes are asked for.
    pub interval: GoDuration,
    /// How long an answer, and each further piece of it, is waited for at first; twice as long after each time that was
    /// not enough.
    pub timeout: GoDuration,
    /// What makes a service.
    pub service_per: ServicePer,
    /// The host name of a service: `{name}` is filled in.
    pub host: String,
    /// The mesh's namespace of its services.
    pub namespace: String,
    /// One port for all instances of a service, whatever plain port each really has.
    pub service_port: Option<u16>,
    /// What plain ports speak that say nothing; empty to find out from the traffic.
    pub protocol: String,
    /// The first part of identities.
    pub trust_domain: String,
    /// How soon the whole list is read after a delta changed something. A server that rebuilds its answer while instances
    /// register may serve it without the last of them, under a matching hash code, until its cache expires (three
    /// minutes by default). The answers for lists and deltas are rebuilt in turn, so one of them has all.
    pub recheck: GoDuration,
    /// Bytes of answers that may be held at a time; an answer that does not fit is an error, and what is known is kept.
    pub max_bytes: usize,
    /// An instance that another peer, or a restarted one, does not know is kept this long: as long as leases last.
    pub lease: GoDuration,
}

/// Which instances are one service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServicePer {
    #[default]
    App,
    VipAddress,
    /// As Pilot 0.8 did it: the host name of an instance is the service, as it is.
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

impl EurekaOptions {
    /// What the flags of Pilot say: addresses, separated by commas, and an interval.
    pub fn of_flags(addresses: &str, interval: Duration) -> EurekaOptions {
        EurekaOptions {
            addresses: normalize::listed(addresses),
            interval: GoDuration(interval),
            ..EurekaOptions::default()
        }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.addresses.is_empty() {
            return Err("there is no address".to_owned());
        }
        normalize::check_host(&self.host, &[("name", "a")])
    }
}
