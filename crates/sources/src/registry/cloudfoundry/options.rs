//! Options of a Cloud Foundry registry in the file of `--registryConfig`.

use std::time::Duration;

use serde::Deserialize;

use crate::registry::options_error::OptionsError;
use crate::registry::shared_options::{GoDuration, TlsOptions};

/// The form of [`CloudFoundryOptions::address`], for messages.
pub(super) const ADDRESS_FORM: &str = "of the form host:port";

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct CloudFoundryOptions {
    /// Copilot's `host:port`.
    pub address: String,
    /// CA, certificate and key are required: Copilot uses mutual TLS with a CA of the platform.
    pub tls: TlsOptions,
    /// The polling interval.
    pub interval: GoDuration,
    /// The timeout of a poll. It doubles after each timeout.
    pub timeout: GoDuration,
    /// The service port of all routes.
    pub service_port: u16,
    /// Protocols of routes and of internal routes.
    pub protocol: String,
    pub internal_protocol: String,
    /// The mesh namespace of the services.
    pub namespace: String,
    /// Gateways that serve the routes, as `namespace/name`.
    pub gateways: Vec<String>,
    /// How long routes are kept that Copilot does not list after an outage. It starts without routes.
    pub resync: GoDuration,
}

impl Default for CloudFoundryOptions {
    fn default() -> CloudFoundryOptions {
        CloudFoundryOptions {
            address: String::new(),
            tls: TlsOptions::default(),
            interval: GoDuration(Duration::from_secs(5)),
            timeout: GoDuration(Duration::from_secs(10)),
            service_port: 8080,
            protocol: "HTTP".to_owned(),
            internal_protocol: "TCP".to_owned(),
            namespace: "default".to_owned(),
            gateways: Vec::new(),
            resync: GoDuration(Duration::from_secs(60)),
        }
    }
}

/// Checks options from a section of `--registryConfig`.
pub(super) fn check(options: &CloudFoundryOptions) -> Result<(), OptionsError> {
    let invalid = |field, value: &str, expected| OptionsError::Invalid { field, value: value.to_owned(), expected };
    if !is_address(&options.address) {
        return Err(invalid("address", &options.address, ADDRESS_FORM));
    }
    let TlsOptions { ca_file, cert_file, key_file, .. } = &options.tls;
    for (field, file) in [("tls.caFile", ca_file), ("tls.certFile", cert_file), ("tls.keyFile", key_file)] {
        if file.is_none() {
            return Err(OptionsError::Missing { field, reason: "Copilot requires mutual TLS" });
        }
    }
    if options.service_port == 0 {
        return Err(invalid("servicePort", "0", "a port"));
    }
    match options.gateways.iter().find(|name| !is_gateway(name)) {
        Some(gateway) => Err(invalid("gateway", gateway, "of the form namespace/name")),
        None => Ok(()),
    }
}

pub(super) fn is_address(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0))
}

fn is_gateway(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2 && parts.iter().all(|part| !part.is_empty())
}
