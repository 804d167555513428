//! EgressRule becomes a ServiceEntry for an external host or for addresses.

use serde_json::json;

use super::super::{LegacyConversion, LegacyError, LegacyObject};
use super::service;

pub(super) fn convert(source: &LegacyObject<'_>) -> Result<LegacyConversion, LegacyError> {
    let mut notes = Vec::new();
    let mut fields = source.fields();
    let destination = service::required(&mut fields, "destination", &mut notes)?.host;
    let mut ports = Vec::new();
    for mut port in fields.messages("ports")? {
        let (number, protocol) = (port.value("port").cloned().unwrap_or_default(), port.text("protocol")?);
        let name = format!("{}-{number}", protocol.to_lowercase());
        ports.push(json!({"number": number, "name": name, "protocol": protocol.to_uppercase()}));
        port.finish(&mut notes);
    }
    fields.finish(&mut notes);
    let mut spec = json!({"location": "MESH_EXTERNAL", "resolution": "NONE", "ports": ports});
    if is_address(&destination) {
        // A ServiceEntry needs a host, even if only its addresses are used.
        spec["hosts"] = json!([format!("{}.egress.internal", source.name)]);
        spec["addresses"] = json!([destination]);
    } else {
        spec["hosts"] = json!([destination]);
    }
    Ok(LegacyConversion { documents: vec![source.networking("ServiceEntry", source.name, spec)], notes })
}

fn is_address(text: &str) -> bool {
    text.parse::<ipnet::IpNet>().is_ok() || text.parse::<std::net::IpAddr>().is_ok()
}
