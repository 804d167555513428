//! The bootstrap file of proxyless gRPC applications. They find it through `GRPC_XDS_BOOTSTRAP` and connect to the
//! agent's xDS relay.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Template of the listener name that a gRPC server requests; `%s` is its address.
const SERVER_LISTENER: &str = "xds.istio.io/grpc/lds/inbound/%s";

/// Values of the bootstrap file of a gRPC application.
#[derive(Clone, Debug)]
pub struct GrpcBootstrap {
    /// `sidecar~ip~name.namespace~domain`.
    pub node_id: String,
    /// `{region, zone, subZone}`, or null.
    pub locality: Value,
    pub metadata: Value,
    /// The relay's socket.
    pub socket: PathBuf,
    /// Directory with `key.pem`, `cert-chain.pem` and `root-cert.pem`; `None` without mutual TLS.
    pub certificates: Option<PathBuf>,
}

impl GrpcBootstrap {
    fn json(&self) -> Value {
        let mut node = json!({"id": self.node_id, "metadata": self.metadata});
        if !self.locality.is_null() {
            node["locality"] = self.locality.clone();
        }
        // gRPC requires an absolute path after unix://.
        let socket = std::path::absolute(&self.socket).unwrap_or_else(|_| self.socket.clone());
        let mut file = json!({
            "xds_servers": [{
                "server_uri": format!("unix://{}", socket.display()),
                "channel_creds": [{"type": "insecure"}],
                "server_features": ["xds_v3"],
            }],
            "node": node,
        });
        if let Some(folder) = &self.certificates {
            file["certificate_providers"] = json!({"default": {
                "plugin_name": "file_watcher",
                "config": {
                    "certificate_file": folder.join("cert-chain.pem"),
                    "private_key_file": folder.join("key.pem"),
                    "ca_certificate_file": folder.join("root-cert.pem"),
                    "refresh_interval": "900s",
                },
            }});
        }
        file["server_listener_resource_name_template"] = SERVER_LISTENER.into();
        file
    }

    /// Writes the file atomically.
    pub fn write(&self, path: &Path) -> Result<()> {
        let could_not = || format!("could not write {}", path.display());
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(folder).with_context(could_not)?;
        let part = path.with_extension("part");
        let text = serde_json::to_string_pretty(&self.json()).with_context(could_not)?;
        let mut file = fs::File::create(&part).with_context(could_not)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).with_context(could_not)?;
        fs::rename(&part, path).with_context(could_not)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::GrpcBootstrap;

    #[test]
    fn file_has_the_fields_that_grpc_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("grpc/bootstrap.json");
        let bootstrap = GrpcBootstrap {
            node_id: "sidecar~10.0.0.1~a.shop~shop.svc.cluster.local".into(),
            locality: json!({"region": "r"}),
            metadata: json!({"NAMESPACE": "shop", "GENERATOR": "grpc"}),
            socket: "/etc/istio/proxy/XDS".into(),
            certificates: Some("/var/lib/istio/data".into()),
        };
        bootstrap.write(&path).unwrap();
        let read: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(
            read,
            json!({
                "xds_servers": [{
                    "server_uri": "unix:///etc/istio/proxy/XDS",
                    "channel_creds": [{"type": "insecure"}],
                    "server_features": ["xds_v3"],
                }],
                "node": {
                    "id": "sidecar~10.0.0.1~a.shop~shop.svc.cluster.local",
                    "metadata": {"NAMESPACE": "shop", "GENERATOR": "grpc"},
                    "locality": {"region": "r"},
                },
                "certificate_providers": {"default": {
                    "plugin_name": "file_watcher",
                    "config": {
                        "certificate_file": "/var/lib/istio/data/cert-chain.pem",
                        "private_key_file": "/var/lib/istio/data/key.pem",
                        "ca_certificate_file": "/var/lib/istio/data/root-cert.pem",
                        "refresh_interval": "900s",
                    },
                }},
                "server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
            })
        );
    }

    #[test]
    fn without_certificates_there_is_no_provider() {
        let bootstrap = GrpcBootstrap {
            node_id: "n".into(),
            locality: Value::Null,
            metadata: json!({}),
            socket: "XDS".into(),
            certificates: None,
        };
        assert!(bootstrap.json().get("certificate_providers").is_none());
        let uri = bootstrap.json()["xds_servers"][0]["server_uri"].as_str().unwrap().to_owned();
        assert!(uri.starts_with("unix:///") && uri.ends_with("/XDS"), "{uri}");
    }
}
