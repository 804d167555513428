//! IngressRule becomes a Gateway on the pods of the old ingress controller, and a VirtualService bound to it.

use serde_json::{Value, json};

use super::super::{LegacyConversion, LegacyError, LegacyObject};
use super::{matches, service};

pub(super) fn convert(source: &LegacyObject<'_>) -> Result<LegacyConversion, LegacyError> {
    let mut notes = Vec::new();
    let mut fields = source.fields();
    let destination = service::required(&mut fields, "destination", &mut notes)?;
    let mut condition = match fields.message("match")? {
        Some(condition) => matches::http(condition, &mut notes)?,
        None => serde_json::Map::new(),
    };
    let host = condition.get("authority").and_then(|a| a.get("exact")).cloned().unwrap_or(json!("*"));
    if host != "*" {
        condition.remove("authority");
    }
    let mut target = destination.destination();
    if let Some(port) = fields.value("destinationServicePort").or_else(|| fields.value("destinationPort")) {
        target["port"] = json!({"number": port});
    }
    let port = fields.value("port").cloned().unwrap_or(json!(80));
    fields.value("precedence");
    fields.finish(&mut notes);
    let server = json!({"port": {"number": port, "name": "http", "protocol": "HTTP"}, "hosts": [host]});
    let mut route = json!({"route": [{"destination": target}]});
    if !condition.is_empty() {
        route["match"] = json!([Value::from(condition)]);
    }
    let gateway = json!({"selector": {"istio": "ingress"}, "servers": [server]});
    let spec = json!({"hosts": [host], "gateways": [source.name], "http": [route]});
    let documents = vec![
        source.networking("Gateway", source.name, gateway),
        source.networking("VirtualService", source.name, spec),
    ];
    Ok(LegacyConversion { documents, notes })
}
