//! What the Cloud Foundry registry can be told: by `--registryConfig`, or by the file of `--cfConfig` as Pilot read it.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::registry::config::{GoDuration, TlsOptions};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct CloudFoundryOptions {
    /// Copilot's `host:port`.
    pub address: String,
    /// Copilot wants to see a certificate, and its own is from an authority of the platform: all files are needed.
    pub tls: TlsOptions,
    /// How often routes are asked for.
    pub interval: GoDuration,
    /// How long one answer may take at first; twice as long after each time that was not enough.
    pub timeout: GoDuration,
    /// The port of every route: applications listen on one.
    pub service_port: u16,
    /// What routes speak, and internal routes.
    pub protocol: String,
    pub internal_protocol: String,
    /// The mesh's namespace of its services.
    pub namespace: String,
    /// Gateways, as `namespace/name`, through which routes are reached from outside.
    pub gateways: Vec<String>,
    /// A Copilot that was away starts with nothing: what it does not list is kept this long.
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

/// The file of `--cfConfig`. All but `gateways` is Pilot's.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CfConfigFile {
    copilot: CopilotSection,
    service_port: u16,
    gateways: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CopilotSection {
    server_ca_cert_path: String,
    client_cert_path: String,
    client_key_path: String,
    address: String,
    poll_interval: Option<GoDuration>,
}

impl CloudFoundryOptions {
    /// Reads the text of a `--cfConfig` file. The error says what is wrong, by the names of that file.
    pub fn of_file(text: &str) -> Result<CloudFoundryOptions, String> {
        let CfConfigFile { copilot, service_port, gateways } =
            serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
        let interval = copilot.poll_interval.filter(|interval| !interval.0.is_zero());
        let missing = [
            ("copilot.server_ca_cert_path", copilot.server_ca_cert_path.is_empty()),
            ("copilot.client_cert_path", copilot.client_cert_path.is_empty()),
            ("copilot.client_key_path", copilot.client_key_path.is_empty()),
            ("copilot.address", copilot.address.is_empty()),
            ("copilot.poll_interval", interval.is_none()),
            ("service_port", service_port == 0),
        ];
        let missing: Vec<&str> = missing.iter().filter(|(_, is_missing)| *is_missing).map(|(name, _)| *name).collect();
        if !missing.is_empty() {
            return Err(format!("it does not set {}", missing.join(", ")));
        }
        let address = copilot.address.strip_prefix("https://").unwrap_or(&copilot.address).trim_end_matches('/');
        if !is_address(address) {
            return Err(format!("copilot.address {address:?} is not of the form host:port"));
        }
        let file = |path: String| Some(PathBuf::from(path));
        let tls = TlsOptions {
            ca_file: file(copilot.server_ca_cert_path),
            cert_file: file(copilot.client_cert_path),
            key_file: file(copilot.client_key_path),
            server_name: None,
        };
        let options = CloudFoundryOptions {
            address: address.to_owned(),
            tls,
            service_port,
            gateways,
            ..CloudFoundryOptions::default()
        };
        Ok(CloudFoundryOptions { interval: interval.unwrap_or(options.interval), ..options })
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if !is_address(&self.address) {
            return Err(format!("address {:?} is not of the form host:port", self.address));
        }
        let TlsOptions { ca_file, cert_file, key_file, .. } = &self.tls;
        for (name, file) in [("caFile", ca_file), ("certFile", cert_file), ("keyFile", key_file)] {
            if file.is_none() {
                return Err(format!("tls.{name} is missing: Copilot is reached over mutual TLS alone"));
            }
        }
        if self.service_port == 0 {
            return Err("servicePort is 0".to_owned());
        }
        if let Some(bad) = self.gateways.iter().find(|name| !is_gateway(name)) {
            return Err(format!("gateway {bad:?} is not of the form namespace/name"));
        }
        Ok(())
    }
}

fn is_address(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0))
}

fn is_gateway(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2 && parts.iter().all(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::CloudFoundryOptions;

    const FILE: &str = "copilot:\n  server_ca_cert_path: /ca.pem\n  client_cert_path: /cert.pem\n  \
                        client_key_path: /key.pem\n  address: copilot.internal:9000\n  poll_interval: 1m30s\n\
                        service_port: 8080\n";

    #[test]
    fn a_file_of_pilot_is_read() {
        let options = CloudFoundryOptions::of_file(FILE).unwrap();
        assert_eq!((options.address.as_str(), options.service_port), ("copilot.internal:9000", 8080));
        assert_eq!(options.interval.0, Duration::from_secs(90));
        assert_eq!(options.tls.key_file.as_deref(), Some("/key.pem".as_ref()));
        assert_eq!(options.check(), Ok(()));
        let with_scheme = FILE.replace("copilot.internal", "https://copilot.internal");
        assert_eq!(CloudFoundryOptions::of_file(&with_scheme).unwrap().address, "copilot.internal:9000");
    }

    #[test]
    fn mistakes_in_a_file_of_pilot_are_named() {
        let check = |from: &str, to: &str, part: &str| {
            let text = FILE.replace(from, to);
            let error = CloudFoundryOptions::of_file(&text).unwrap_err();
            assert!(text != FILE && error.contains(part), "{to}: {error}");
        };
        check("  client_cert_path: /cert.pem\n", "", "copilot.client_cert_path");
        check("  client_key_path: /key.pem\n", "", "copilot.client_key_path");
        check("/ca.pem", "''", "copilot.server_ca_cert_path");
        check("copilot.internal:9000", "copilot.internal", "copilot.address");
        check("copilot.internal:9000", "copilot.internal:0", "copilot.address");
        check("1m30s", "0s", "copilot.poll_interval");
        check("1m30s", "soon", "\"soon\" is not a duration");
        check("service_port: 8080", "", "service_port");
        check("service_port: 8080", "service_port: 80800", "80800");
        check("  client_key_path", "  client_keypath", "client_keypath");
        assert!(
            CloudFoundryOptions::of_file("")
                .unwrap_err()
                .contains("copilot.address, copilot.poll_interval, service_port")
        );
    }
}
