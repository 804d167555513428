//! TLS contexts of static clusters and listeners. Certificates come from the agent's SDS server, with upstream's names.

use std::net::IpAddr;

use api::istio::networking::v1alpha3::ClientTlsSettings;
use api::istio::networking::v1alpha3::client_tls_settings::TlSmode as TlsMode;
use serde_json::{Map, Value, json};

const CONTEXT: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";

/// The HTTP version of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpVersion {
    Http2,
    Http1,
}

/// The transport socket of a cluster; `None` without TLS. Certificate paths in node metadata override the settings.
pub(super) fn transport_socket(
    settings: &ClientTlsSettings,
    default_sni: &str,
    metadata: &Map<String, Value>,
    http: HttpVersion,
) -> Option<Value> {
    let file = |key: &str, own: &str| metadata.get(key).and_then(Value::as_str).unwrap_or(own).to_owned();
    let root = || named("file-root:", &file("TLS_CLIENT_ROOT_CERT", &settings.ca_certificates));
    let own = || {
        let chain = file("TLS_CLIENT_CERT_CHAIN", &settings.client_certificate);
        let key = file("TLS_CLIENT_KEY", &settings.private_key);
        (!chain.is_empty() && !key.is_empty()).then(|| format!("file-cert:{chain}~{key}"))
    };
    let (certificate, root, sni, alpn) = match TlsMode::try_from(settings.mode) {
        Ok(TlsMode::Simple) => (None, root(), settings.sni.as_str(), &["h2"][..]),
        Ok(TlsMode::Mutual) => (own(), root(), settings.sni.as_str(), &["h2"][..]),
        Ok(TlsMode::IstioMutual) => {
            let sni = if settings.sni.is_empty() { default_sni } else { &settings.sni };
            (Some("default".to_owned()), Some("ROOTCA".to_owned()), sni, &["istio", "h2"][..])
        }
        _ => return None,
    };
    let names: Vec<Value> = settings.subject_alt_names.iter().map(|name| json!({"exact": name})).collect();
    let mut context = json!({});
    if let Some(name) = certificate {
        context["tls_certificate_sds_secret_configs"] = json!([secret(&name)]);
    }
    let default = if names.is_empty() { json!({}) } else { json!({"match_subject_alt_names": names}) };
    if let Some(name) = root {
        let combined =
            json!({"default_validation_context": default, "validation_context_sds_secret_config": secret(&name)});
        context["combined_validation_context"] = combined;
    }
    if http == HttpVersion::Http2 {
        context["alpn_protocols"] = json!(alpn);
    }
    Some(socket(json!({"@type": CONTEXT, "common_tls_context": context, "sni": sni})))
}

/// TLS with the workload's certificate to a server whose certificate has one of the names.
pub(super) fn own(sni: &str, names: &[String]) -> Value {
    let names: Vec<Value> = names.iter().map(|name| server_name(name)).collect();
    let context = json!({
        "alpn_protocols": ["h2"],
        "tls_certificate_sds_secret_configs": [secret("default")],
        "combined_validation_context": {
            "default_validation_context": {"match_typed_subject_alt_names": names},
            "validation_context_sds_secret_config": secret("ROOTCA"),
        },
    });
    // An IP address is not a valid server name.
    let sni = if sni.parse::<IpAddr>().is_ok() { "" } else { sni };
    socket(json!({"@type": CONTEXT, "common_tls_context": context, "sni": sni}))
}

fn server_name(name: &str) -> Value {
    let kind = match name {
        uri if uri.contains("://") => "URI",
        ip if ip.parse::<IpAddr>().is_ok() => "IP_ADDRESS",
        _ => "DNS",
    };
    json!({"san_type": kind, "matcher": {"exact": name}})
}

/// TLS of a listener that requires a client certificate of the mesh.
pub(super) fn required_of_clients() -> Value {
    socket(json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "require_client_certificate": true,
        "common_tls_context": {
            "tls_certificate_sds_secret_configs": [secret("default")],
            "combined_validation_context": {
                "default_validation_context": {},
                "validation_context_sds_secret_config": secret("ROOTCA"),
            },
        },
    }))
}

fn socket(config: Value) -> Value {
    json!({"name": "envoy.transport_sockets.tls", "typed_config": config})
}

fn named(kind: &str, path: &str) -> Option<String> {
    (!path.is_empty()).then(|| format!("{kind}{path}"))
}

fn secret(name: &str) -> Value {
    json!({
        "name": name,
        "sds_config": {
            "api_config_source": {
                "api_type": "GRPC",
                "grpc_services": [{"envoy_grpc": {"cluster_name": "sds-grpc"}}],
                "set_node_on_first_message_only": true,
                "transport_api_version": "V3",
            },
            "resource_api_version": "V3",
        },
    })
}
