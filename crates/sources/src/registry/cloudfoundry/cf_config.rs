//! The file of `--cfConfig`, in the format of Pilot 0.8.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::options::{ADDRESS_FORM, CloudFoundryOptions, is_address};
use crate::disk;
use crate::registry::options_error::OptionsError;
use crate::registry::shared_options::{GoDuration, TlsOptions};

/// The file. All fields but `gateways` are those of Pilot 0.8.
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

/// Reads the options from a file.
pub(super) fn read(file: &Path) -> Result<CloudFoundryOptions, OptionsError> {
    let unreadable = |error| OptionsError::Unreadable { file: file.to_owned(), error };
    parse(&disk::text(file).map_err(unreadable)?, file)
}

fn parse(text: &str, file: &Path) -> Result<CloudFoundryOptions, OptionsError> {
    let unparsable = |error: serde_saphyr::Error| {
        let reason = error.to_string();
        OptionsError::Unparsable { file: file.to_owned(), reason }
    };
    let CfConfigFile { copilot, service_port, gateways } = serde_saphyr::from_str(text).map_err(unparsable)?;
    let interval = copilot.poll_interval.filter(|interval| !interval.0.is_zero());
    let fields = [
        ("copilot.server_ca_cert_path", copilot.server_ca_cert_path.is_empty()),
        ("copilot.client_cert_path", copilot.client_cert_path.is_empty()),
        ("copilot.client_key_path", copilot.client_key_path.is_empty()),
        ("copilot.address", copilot.address.is_empty()),
        ("copilot.poll_interval", interval.is_none()),
        ("service_port", service_port == 0),
    ];
    let fields: Vec<&str> = fields.iter().filter(|(_, is_unset)| *is_unset).map(|(name, _)| *name).collect();
    if !fields.is_empty() {
        return Err(OptionsError::UnsetFields { file: file.to_owned(), fields });
    }
    let address = copilot.address.strip_prefix("https://").unwrap_or(&copilot.address).trim_end_matches('/');
    if !is_address(address) {
        let (field, value) = ("copilot.address", address.to_owned());
        return Err(OptionsError::Invalid { field, value, expected: ADDRESS_FORM });
    }
    let path = |path: String| Some(PathBuf::from(path));
    let tls = TlsOptions {
        ca_file: path(copilot.server_ca_cert_path),
        cert_file: path(copilot.client_cert_path),
        key_file: path(copilot.client_key_path),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CloudFoundryOptions, OptionsError, parse};
    use crate::registry::adapter::Adapter;

    fn parsed(text: &str) -> Result<CloudFoundryOptions, OptionsError> {
        parse(text, "cf.yaml".as_ref())
    }

    const FILE: &str = "copilot:\n  server_ca_cert_path: /ca.pem\n  client_cert_path: /cert.pem\n  \
                        client_key_path: /key.pem\n  address: copilot.internal:9000\n  poll_interval: 1m30s\n\
                        service_port: 8080\n";

    #[test]
    fn a_file_of_pilot_is_read() {
        let options = parsed(FILE).unwrap();
        assert_eq!((options.address.as_str(), options.service_port), ("copilot.internal:9000", 8080));
        assert_eq!(options.interval.0, Duration::from_secs(90));
        assert_eq!(options.tls.key_file.as_deref(), Some("/key.pem".as_ref()));
        assert!(options.check().is_ok());
        let with_scheme = FILE.replace("copilot.internal", "https://copilot.internal");
        assert_eq!(parsed(&with_scheme).unwrap().address, "copilot.internal:9000");
    }

    #[test]
    fn mistakes_in_a_file_of_pilot_are_named() {
        let check = |from: &str, to: &str, part: &str| {
            let text = FILE.replace(from, to);
            let error = parsed(&text).unwrap_err().to_string();
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
        assert!(parsed("").unwrap_err().to_string().contains("copilot.address, copilot.poll_interval, service_port"));
    }
}
