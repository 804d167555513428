//! How frameworks store services in etcd, which prescribes no layout. Pure functions.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::registry::instances::dubbo::{self, host_and_port};
use crate::registry::instances::{MalformedValue, RegisteredInstance};

/// A layout of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EtcdLayout {
    /// SkyDNS and CoreDNS: `/skydns/com/example/web/ID` is an instance of `web.example.com`.
    #[default]
    #[serde(rename = "skydns")]
    SkyDns,
    /// go-micro: `/micro/registry/SERVICE/ID`, a service with its nodes.
    GoMicro,
    /// Kratos: `/microservices/SERVICE/ID`, an instance with URLs.
    Kratos,
    /// gRPC's naming of etcd's own client: `SERVICE/ADDRESS`.
    Grpc,
    /// Dubbo 2.7: `/dubbo/INTERFACE/providers/URL`.
    Dubbo,
}

type Parsed = Result<Vec<RegisteredInstance>, MalformedValue>;

impl EtcdLayout {
    /// The default prefix; empty where there is none.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            EtcdLayout::SkyDns => "/skydns",
            EtcdLayout::GoMicro => "/micro/registry",
            EtcdLayout::Kratos => "/microservices",
            EtcdLayout::Grpc => "",
            EtcdLayout::Dubbo => "/dubbo",
        }
    }

    /// The default template of host names.
    pub(super) fn host(self) -> &'static str {
        match self {
            EtcdLayout::SkyDns => "{service}",
            EtcdLayout::Dubbo => "{service}.dubbo",
            EtcdLayout::GoMicro | EtcdLayout::Kratos | EtcdLayout::Grpc => "{service}.etcd",
        }
    }

    /// The instances of a key, whose prefix is removed. Keys that are no instances give none.
    pub(super) fn parse(self, key: &str, value: &[u8]) -> Parsed {
        match self {
            EtcdLayout::SkyDns => skydns(key, value),
            EtcdLayout::GoMicro => go_micro(value),
            EtcdLayout::Kratos => kratos(value),
            EtcdLayout::Grpc => grpc(key, value),
            EtcdLayout::Dubbo => dubbo_provider(key),
        }
    }
}

/// A JSON object. serde would read a list as the fields of a struct in their order.
fn json<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, MalformedValue> {
    if value.trim_ascii_start().first() != Some(&b'{') {
        return Err("the value is not a JSON object".to_owned());
    }
    serde_json::from_slice(value).map_err(|error| error.to_string())
}

/// Metadata by which operators take an instance out of service.
fn is_disabled(metadata: &BTreeMap<String, String>) -> bool {
    let is = |key: &str, value: &str| metadata.get(key).is_some_and(|found| found.eq_ignore_ascii_case(value));
    is("enabled", "false") || is("disabled", "true") || is("healthy", "false")
}

fn weight(metadata: &BTreeMap<String, String>) -> u32 {
    metadata.get("weight").and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Values of any scalar type as text; `null` gives none.
fn texts(values: Option<BTreeMap<String, serde_json::Value>>) -> BTreeMap<String, String> {
    let text = |(key, value): (String, serde_json::Value)| match value {
        serde_json::Value::String(text) => Some((key, text)),
        serde_json::Value::Number(_) | serde_json::Value::Bool(_) => Some((key, value.to_string())),
        _ => None,
    };
    values.unwrap_or_default().into_iter().filter_map(text).collect()
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct SkyDnsRecord {
    host: String,
    port: u16,
    weight: u32,
}

fn skydns(key: &str, value: &[u8]) -> Parsed {
    let record: SkyDnsRecord = json(value)?;
    // Records without a host have a text only. Without a port there is nothing to connect to.
    if record.host.is_empty() || record.port == 0 {
        return Ok(Vec::new());
    }
    let mut labels: Vec<&str> = key.split('/').filter(|label| !label.is_empty()).collect();
    let id = labels.pop().ok_or("the key names no service")?;
    if labels.is_empty() {
        return Err("the key names no service: expected DOMAIN/.../SERVICE/ID".to_owned());
    }
    labels.reverse();
    Ok(vec![RegisteredInstance {
        service: labels.join(".").into(),
        id: id.to_owned(),
        address: record.host,
        port: record.port,
        weight: record.weight,
        ..RegisteredInstance::default()
    }])
}

#[derive(Deserialize)]
struct MicroService {
    name: String,
    #[serde(default)]
    version: String,
    #[serde(default)]
    metadata: Option<BTreeMap<String, serde_json::Value>>,
    nodes: Option<Vec<MicroNode>>,
}

#[derive(Deserialize)]
struct MicroNode {
    #[serde(default)]
    id: String,
    address: String,
    #[serde(default)]
    metadata: Option<BTreeMap<String, serde_json::Value>>,
}

fn go_micro(value: &[u8]) -> Parsed {
    let service: MicroService = json(value)?;
    let mut common = texts(service.metadata);
    if !service.version.is_empty() {
        common.insert("version".to_owned(), service.version);
    }
    let instance = |node: MicroNode| {
        let (address, port) = host_and_port(&node.address)?;
        let mut metadata = common.clone();
        metadata.extend(texts(node.metadata));
        Ok(RegisteredInstance {
            service: service.name.as_str().into(),
            id: node.id,
            address: address.to_owned(),
            port,
            protocol: metadata.get("server").cloned().unwrap_or_default(),
            weight: weight(&metadata),
            is_disabled: is_disabled(&metadata),
            metadata,
        })
    };
    service.nodes.unwrap_or_default().into_iter().map(instance).collect()
}

#[derive(Deserialize)]
struct KratosInstance {
    #[serde(default)]
    id: String,
    name: String,
    #[serde(default)]
    version: String,
    #[serde(default)]
    metadata: Option<BTreeMap<String, serde_json::Value>>,
    endpoints: Option<Vec<String>>,
}

fn kratos(value: &[u8]) -> Parsed {
    let registered: KratosInstance = json(value)?;
    let mut metadata = texts(registered.metadata);
    if !registered.version.is_empty() {
        metadata.insert("version".to_owned(), registered.version);
    }
    let instance = |url: String| {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("endpoint {url:?} is not a URL"))?;
        let (address, port) = host_and_port(rest.split(['/', '?']).next().unwrap_or_default())?;
        let protocol = match scheme {
            "http" if url.contains("isSecure=true") => "https",
            known => known,
        };
        Ok(RegisteredInstance {
            service: registered.name.as_str().into(),
            id: registered.id.clone(),
            address: address.to_owned(),
            port,
            protocol: protocol.to_owned(),
            weight: weight(&metadata),
            is_disabled: is_disabled(&metadata),
            metadata: metadata.clone(),
        })
    };
    registered.endpoints.unwrap_or_default().into_iter().map(instance).collect()
}

#[derive(Deserialize)]
struct GrpcEndpoint {
    #[serde(rename = "Addr")]
    address: String,
    #[serde(rename = "Metadata", default)]
    metadata: serde_json::Value,
}

fn grpc(key: &str, value: &[u8]) -> Parsed {
    let endpoint: GrpcEndpoint = json(value)?;
    let (service, id) = key.rsplit_once('/').ok_or("the key is not SERVICE/ADDRESS")?;
    let (address, port) = host_and_port(&endpoint.address)?;
    let metadata = match endpoint.metadata {
        serde_json::Value::Object(fields) => texts(Some(fields.into_iter().collect())),
        _ => BTreeMap::new(),
    };
    Ok(vec![RegisteredInstance {
        service: service.replace('/', ".").into(),
        id: id.to_owned(),
        address: address.to_owned(),
        port,
        protocol: "grpc".to_owned(),
        weight: weight(&metadata),
        is_disabled: is_disabled(&metadata),
        metadata,
    }])
}

fn dubbo_provider(key: &str) -> Parsed {
    match key.split('/').collect::<Vec<_>>()[..] {
        [interface, dubbo::PROVIDERS, url] => dubbo::provider(interface, url).map(|provider| vec![provider]),
        // Consumers, routers and settings.
        _ => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::EtcdLayout;

    fn check(layout: EtcdLayout, key: &str, value: &str, expected: &[&str]) {
        let found = layout.parse(key, value.as_bytes()).unwrap();
        let line = |i: &super::RegisteredInstance| {
            let disabled = if i.is_disabled { " disabled" } else { "" };
            format!("{} {} {}:{} {} {}{disabled}", i.service, i.id, i.address, i.port, i.protocol, i.weight)
        };
        assert_eq!(found.iter().map(line).collect::<Vec<_>>(), expected, "{key}");
    }

    #[test]
    fn skydns_records_are_named_by_their_reversed_path() {
        let record = r#"{"host":"10.0.0.1","port":8080,"priority":10,"weight":20,"ttl":60}"#;
        check(EtcdLayout::SkyDns, "com/example/web/x1", record, &["web.example.com x1 10.0.0.1:8080  20"]);
        check(EtcdLayout::SkyDns, "com/example/web/x1", r#"{"text":"v=spf1"}"#, &[]);
        check(EtcdLayout::SkyDns, "com/example/web/x1", r#"{"host":"10.0.0.1"}"#, &[]);
        assert!(EtcdLayout::SkyDns.parse("web", record.as_bytes()).is_err());
    }

    #[test]
    fn go_micro_services_have_nodes() {
        let value = r#"{"name":"greeter","version":"v2","metadata":null,"endpoints":[],"nodes":[
            {"id":"greeter-1","address":"10.0.0.1:8080","metadata":{"server":"grpc","weight":"3"}},
            {"id":"greeter-2","address":"[fd00::1]:8080","metadata":{"server":"http","enabled":"false"}}]}"#;
        let expected = ["greeter greeter-1 10.0.0.1:8080 grpc 3", "greeter greeter-2 fd00::1:8080 http 0 disabled"];
        check(EtcdLayout::GoMicro, "greeter/greeter-1", value, &expected);
        check(EtcdLayout::GoMicro, "greeter/greeter-1", r#"{"name":"greeter","nodes":null}"#, &[]);
    }

    #[test]
    fn kratos_instances_have_urls() {
        let value = r#"{"id":"a","name":"shop","version":"","metadata":{"zone":"z","n":1},
            "endpoints":["grpc://10.0.0.1:9000?isSecure=false","http://10.0.0.1:8443?isSecure=true"]}"#;
        let expected = ["shop a 10.0.0.1:9000 grpc 0", "shop a 10.0.0.1:8443 https 0"];
        check(EtcdLayout::Kratos, "shop/a", value, &expected);
    }

    #[test]
    fn grpc_endpoints_are_below_their_service() {
        let value = r#"{"Op":0,"Addr":"10.0.0.1:50051","Metadata":null}"#;
        check(EtcdLayout::Grpc, "shop/cart/1", value, &["shop.cart 1 10.0.0.1:50051 grpc 0"]);
    }

    #[test]
    fn dubbo_providers_are_in_their_keys() {
        let url = "dubbo%3A%2F%2F10.0.0.1%3A20880%2Fa.B%3Fversion%3D1.0";
        let expected = ["a.B.1.0 10.0.0.1:20880 10.0.0.1:20880 dubbo 0"];
        check(EtcdLayout::Dubbo, &format!("a.B/providers/{url}"), "", &expected);
        check(EtcdLayout::Dubbo, &format!("a.B/consumers/{url}"), "", &[]);
    }

    #[test]
    fn malformed_values_are_errors() {
        let layouts = [EtcdLayout::SkyDns, EtcdLayout::GoMicro, EtcdLayout::Kratos, EtcdLayout::Grpc];
        for value in ["", "null", "[]", "{", "\u{0}", r#"{"name":1,"host":7}"#] {
            for layout in layouts {
                assert!(layout.parse("a/b/c", value.as_bytes()).is_err(), "{layout:?} {value}");
            }
        }
        let deep = "[".repeat(100_000);
        assert!(EtcdLayout::GoMicro.parse("a", deep.as_bytes()).is_err());
        let no_port = r#"{"name":"a","nodes":[{"id":"1","address":"10.0.0.1"}]}"#;
        assert!(EtcdLayout::GoMicro.parse("a", no_port.as_bytes()).is_err());
    }
}
