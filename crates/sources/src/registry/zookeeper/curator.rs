//! Instances of Curator's service discovery as JSON, which Spring Cloud and Dubbo 3 write too.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::registry::instances::{MalformedValue, RegisteredInstance};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CuratorInstance {
    #[serde(default)]
    id: String,
    address: String,
    #[serde(default)]
    port: Option<u16>,
    #[serde(default)]
    ssl_port: Option<u16>,
    /// Anything that the application gives; an object with `metadata` in Spring Cloud and Dubbo.
    #[serde(default)]
    payload: Value,
    #[serde(default)]
    enabled: Option<bool>,
}

/// The instances of a node: one for each of its ports.
pub(super) fn instances(service: &str, data: &[u8]) -> Result<Vec<RegisteredInstance>, MalformedValue> {
    let read: CuratorInstance = serde_json::from_slice(data).map_err(|error| error.to_string())?;
    if read.address.is_empty() {
        return Err("the instance has no address".to_owned());
    }
    let mut metadata = texts(read.payload.get("metadata").unwrap_or(&read.payload));
    metadata.retain(|key, _| key != "@class");
    let is_up = metadata.get("instance_status").is_none_or(|status| status == "UP");
    let instance = |port: u16, protocol: &str| RegisteredInstance {
        service: service.into(),
        id: read.id.clone(),
        address: read.address.clone(),
        port,
        protocol: protocol.to_owned(),
        weight: metadata.get("weight").and_then(|text| text.parse().ok()).unwrap_or(0),
        is_disabled: read.enabled == Some(false) || !is_up,
        metadata: metadata.clone(),
    };
    let plain = read.port.filter(|port| *port > 0).map(|port| instance(port, ""));
    let secure = read.ssl_port.filter(|port| *port > 0).map(|port| instance(port, "https"));
    let instances: Vec<RegisteredInstance> = plain.into_iter().chain(secure).collect();
    if instances.is_empty() { Err("the instance has no port".to_owned()) } else { Ok(instances) }
}

/// Fields with a text, a number or a boolean.
fn texts(value: &Value) -> BTreeMap<String, String> {
    let text = |(key, value): (&String, &Value)| match value {
        Value::String(text) => Some((key.clone(), text.clone())),
        Value::Number(_) | Value::Bool(_) => Some((key.clone(), value.to_string())),
        _ => None,
    };
    value.as_object().into_iter().flatten().filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::instances;

    #[test]
    fn an_instance_of_spring_cloud_is_read() {
        let text = r#"{"name":"web","id":"7a","address":"10.0.0.1","port":8080,"sslPort":8443,"payload":{
            "@class":"org.springframework.cloud.zookeeper.discovery.ZookeeperInstance","id":"application-1",
            "name":"web","metadata":{"instance_status":"UP","zone":"a"}},"registrationTimeUTC":1,
            "serviceType":"DYNAMIC","uriSpec":{"parts":[]}}"#;
        let found = instances("web", text.as_bytes()).unwrap();
        let ports: Vec<(u16, &str)> = found.iter().map(|i| (i.port, i.protocol.as_str())).collect();
        assert_eq!(ports, [(8080, ""), (8443, "https")]);
        assert!(!found[0].is_disabled && found[0].metadata.get("zone").is_some_and(|zone| zone == "a"));
    }

    #[test]
    fn instances_out_of_service_are_known() {
        let read = |text: &str| instances("web", text.as_bytes()).unwrap()[0].is_disabled;
        assert!(read(r#"{"address":"a","port":1,"enabled":false}"#));
        assert!(read(r#"{"address":"a","port":1,"payload":{"metadata":{"instance_status":"OUT_OF_SERVICE"}}}"#));
        assert!(!read(r#"{"address":"a","port":1,"payload":"text","enabled":true}"#));
    }

    #[test]
    fn malformed_instances_are_errors() {
        for bad in ["", "{}", r#"{"address":""}"#, r#"{"address":"a"}"#, r#"{"address":"a","port":70000}"#, "\u{1}"] {
            assert!(instances("web", bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
