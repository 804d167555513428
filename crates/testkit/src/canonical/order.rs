//! Lists whose order has no meaning for Envoy, and the order that they get here.

use std::fmt::Write;

use serde_json::Value;

/// Message, field, and why the order has no meaning. All other lists keep their order: routes of a virtual host, filters
/// of a chain, weighted clusters, access logs, header mutations.
const FREE: &[(&str, &str, &str)] = &[
    ("envoy.config.route.v3.RouteConfiguration", "virtual_hosts", "a domain is in one host only"),
    ("envoy.config.route.v3.VirtualHost", "domains", "the most specific domain wins"),
    ("envoy.config.listener.v3.Listener", "filter_chains", "the most specific match wins"),
    ("envoy.config.listener.v3.FilterChainMatch", "prefix_ranges", "a set"),
    ("envoy.config.listener.v3.FilterChainMatch", "direct_source_prefix_ranges", "a set"),
    ("envoy.config.listener.v3.FilterChainMatch", "source_prefix_ranges", "a set"),
    ("envoy.config.listener.v3.FilterChainMatch", "source_ports", "a set"),
    ("envoy.config.listener.v3.FilterChainMatch", "server_names", "a set"),
    ("envoy.config.listener.v3.FilterChainMatch", "application_protocols", "a set"),
    ("envoy.config.route.v3.RouteMatch", "headers", "all must match"),
    ("envoy.config.route.v3.RouteMatch", "query_parameters", "all must match"),
    ("envoy.config.route.v3.RouteMatch", "dynamic_metadata", "all must match"),
    ("envoy.config.route.v3.CorsPolicy", "allow_origin_string_match", "any may match"),
    ("envoy.config.route.v3.RetryPolicy", "retriable_status_codes", "a set"),
    ("envoy.config.rbac.v3.Policy", "permissions", "any may match"),
    ("envoy.config.rbac.v3.Policy", "principals", "any may match"),
    ("envoy.config.rbac.v3.Permission.Set", "rules", "a pure and/or"),
    ("envoy.config.rbac.v3.Principal.Set", "ids", "a pure and/or"),
    (
        "envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext",
        "match_typed_subject_alt_names",
        "any may match",
    ),
    (
        "envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext",
        "match_subject_alt_names",
        "any may match",
    ),
    ("envoy.config.endpoint.v3.ClusterLoadAssignment", "endpoints", "localities are a set"),
    ("envoy.config.endpoint.v3.LocalityLbEndpoints", "lb_endpoints", "endpoints are a set"),
    ("istio.networking.nds.v1.NameInfo", "ips", "addresses are a set"),
    ("istio.networking.nds.v1.NameInfo", "alt_hosts", "a set"),
];

pub(super) fn is_free(message: &str, field: &str) -> bool {
    FREE.iter().any(|(m, f, _)| *m == message && *f == field)
}

/// By name, then by text. The text is that of the recorder's JSON writer, since recorded
/// resources are in its order.
pub(super) fn key(item: &Value) -> (String, String) {
    let name = match &item["name"] {
        Value::String(name) => name.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let mut text = String::new();
    write_text(item, &mut text);
    (name, text)
}

/// JSON with sorted keys, a blank after `,` and `:`, and ASCII only.
fn write_text(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            out.push('{');
            for (at, key) in keys.into_iter().enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                write_string(key, out);
                out.push_str(": ");
                write_text(&map[key], out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                write_text(item, out);
            }
            out.push(']');
        }
        Value::String(text) => write_string(text, out),
        other => out.push_str(&other.to_string()),
    }
}

fn write_string(text: &str, out: &mut String) {
    let quoted = Value::from(text).to_string();
    for c in quoted.chars() {
        if c.is_ascii() && c != '\x7f' {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::key;

    #[test]
    fn text_is_that_of_the_recorder() {
        let item = json!({"b": [1, 2.0, "x\"é"], "a": {}, "name": "n"});
        assert_eq!(key(&item), ("n".to_owned(), r#"{"a": {}, "b": [1, 2.0, "x\"\u00e9"], "name": "n"}"#.to_owned()));
    }
}
