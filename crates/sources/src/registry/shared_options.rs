//! Option types that several registries share in the file of `--registryConfig`.

use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::http::{ClientIdentity, HttpError, HttpOptions, TrustRoots};

/// A duration as Go writes it, such as `30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoDuration(pub Duration);

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GoDuration, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed = model::duration::parse(&text).and_then(|parsed| Duration::try_from(parsed).ok());
        parsed.map(GoDuration).ok_or_else(|| D::Error::custom(format!("{text:?} is not a duration such as 30s")))
    }
}

/// TLS settings of connections to a registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct TlsOptions {
    /// CA certificates to trust; those of the system by default.
    pub ca_file: Option<PathBuf>,
    /// The client certificate and its key; both or neither.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// The expected name in the server certificate; the host of the URL by default.
    pub server_name: Option<String>,
}

impl TlsOptions {
    /// Options of an HTTP client for these URLs. The system's CA certificates are loaded only for `https:` URLs.
    pub fn http_options(
        &self,
        urls: &[String],
        idle_connections: usize,
        held_bytes: usize,
    ) -> Result<HttpOptions, HttpError> {
        let roots = match &self.ca_file {
            Some(file) => TrustRoots::File(file.clone()),
            None if urls.iter().any(|url| url.starts_with("https:")) => TrustRoots::System,
            None => TrustRoots::None,
        };
        let identity = match (&self.cert_file, &self.key_file) {
            (Some(chain), Some(key)) => Some(ClientIdentity { chain: chain.clone(), key: key.clone() }),
            (None, None) => None,
            _ => return Err(HttpError::Tls("certFile and keyFile must be given together".to_owned())),
        };
        let server_name = self.server_name.clone();
        Ok(HttpOptions { roots, identity, server_name, idle_connections, held_bytes, ..HttpOptions::default() })
    }
}
