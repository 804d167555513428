//! The configuration of one proxy, read from a config dump of Envoy or of pilot-discovery.

use std::collections::BTreeMap;

use api::TypeUrl;
use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use api::envoy::config::listener::v3::Listener;
use api::envoy::config::route::v3::RouteConfiguration;
use prost::Message;
use prost_reflect::{DeserializeOptions, DynamicMessage};
use serde_json::Value;

/// Listeners, route configurations, clusters and load assignments of a proxy.
#[derive(Clone, Debug, Default)]
pub struct ProxyConfig {
    pub listeners: Vec<Listener>,
    /// By name, as the next two.
    pub routes: BTreeMap<String, RouteConfiguration>,
    pub clusters: BTreeMap<String, Cluster>,
    pub endpoints: BTreeMap<String, ClusterLoadAssignment>,
}

/// Why a dump cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    #[error("could not read the dump as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("could not read a resource of type {kind}: {cause}")]
    Resource { kind: String, cause: String },
    #[error("the dump has no listeners and no routes: is it a config dump?")]
    Empty,
}

/// Depth of a dump above its resources; deeper values are not searched.
const DEEPEST: usize = 8;

impl ProxyConfig {
    /// Reads a dump. Envoy's own has other field names around the resources than ours; only their types count.
    pub fn from_dump(text: &str) -> Result<ProxyConfig, DumpError> {
        let mut config = ProxyConfig::default();
        config.collect(&serde_json::from_str(text)?, DEEPEST)?;
        if config.listeners.is_empty() && config.routes.is_empty() {
            return Err(DumpError::Empty);
        }
        Ok(config)
    }

    fn collect(&mut self, value: &Value, depth: usize) -> Result<(), DumpError> {
        if depth == 0 || self.add(value)? {
            return Ok(());
        }
        match value {
            Value::Object(fields) => fields.values().try_for_each(|field| self.collect(field, depth - 1)),
            Value::Array(items) => items.iter().try_for_each(|item| self.collect(item, depth - 1)),
            _ => Ok(()),
        }
    }

    /// Adds a value if it is a resource; returns whether it is.
    fn add(&mut self, value: &Value) -> Result<bool, DumpError> {
        let Some(kind) = value.get("@type").and_then(Value::as_str) else { return Ok(false) };
        let kind = TypeUrl::from(kind.to_owned());
        match kind {
            _ if kind == TypeUrl::LISTENER => self.listeners.push(decoded(&kind, value)?),
            _ if kind == TypeUrl::ROUTE => {
                let table: RouteConfiguration = decoded(&kind, value)?;
                self.routes.insert(table.name.clone(), table);
            }
            _ if kind == TypeUrl::CLUSTER => {
                let cluster: Cluster = decoded(&kind, value)?;
                self.clusters.insert(cluster.name.clone(), cluster);
            }
            _ if kind == TypeUrl::ENDPOINT => {
                let assignment: ClusterLoadAssignment = decoded(&kind, value)?;
                self.endpoints.insert(assignment.cluster_name.clone(), assignment);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn decoded<M: Message + Default>(kind: &TypeUrl, value: &Value) -> Result<M, DumpError> {
    let bad = |cause: String| DumpError::Resource { kind: kind.to_string(), cause };
    let name = kind.as_str().rsplit('/').next().unwrap_or_default();
    let descriptor = api::reflect::envoy().get_message_by_name(name).ok_or_else(|| bad("unknown type".to_owned()))?;
    let mut fields = value.clone();
    if let Value::Object(fields) = &mut fields {
        fields.remove("@type");
    }
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let message =
        DynamicMessage::deserialize_with_options(descriptor, fields, &options).map_err(|e| bad(e.to_string()))?;
    message.transcode_to().map_err(|e| bad(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::{DumpError, ProxyConfig};

    #[test]
    fn dumps_of_envoy_and_of_the_server_are_read() {
        let server = r#"{"configs": [{"@type": "type.googleapis.com/envoy.admin.v3.RoutesConfigDump",
            "dynamicRouteConfigs": [{"routeConfig": {"@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            "name": "80", "virtualHosts": [{"name": "a", "domains": ["*"]}]}}]}]}"#;
        let envoy =
            server.replace("dynamicRouteConfigs", "dynamic_route_configs").replace("virtualHosts", "virtual_hosts");
        for dump in [server, &envoy] {
            assert_eq!(ProxyConfig::from_dump(dump).unwrap().routes["80"].virtual_hosts.len(), 1);
        }
    }

    #[test]
    fn other_json_is_an_error() {
        assert!(matches!(ProxyConfig::from_dump("{}"), Err(DumpError::Empty)));
        assert!(matches!(ProxyConfig::from_dump("<html>"), Err(DumpError::Json(_))));
        let wrong = r#"[{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": 7}]"#;
        assert!(matches!(ProxyConfig::from_dump(wrong), Err(DumpError::Resource { .. })));
    }
}
