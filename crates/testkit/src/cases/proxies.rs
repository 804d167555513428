//! `proxies.yaml` of a case: the proxies that subscribe. Metadata that follows from a proxy's id and workload is omitted
//! there; this file has the defaults.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::CaseError;
use super::{CaseLocality, CaseProxy, expected};

/// Istio version of most recorded proxies.
const VERSION: &str = "1.31.0";

/// A proxy as `proxies.yaml` has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProxyYaml {
    name: String,
    id: String,
    /// Metadata that differs from the defaults; null removes a default.
    #[serde(default)]
    metadata: Map<String, Value>,
    #[serde(default)]
    locality: CaseLocality,
}

/// Reads `proxies.yaml`.
pub(super) fn read(text: &str, file: &Path) -> Result<Vec<CaseProxy>, CaseError> {
    let written: Vec<ProxyYaml> = expected::parse(text, file)?;
    written.into_iter().map(complete).collect()
}

fn complete(written: ProxyYaml) -> Result<CaseProxy, CaseError> {
    let ProxyYaml { name, id, metadata: own, locality } = written;
    let mut metadata = defaults(&id, own.get("WORKLOAD_NAME").and_then(Value::as_str))?;
    metadata.extend(own);
    metadata.retain(|_, value| !value.is_null());
    Ok(CaseProxy { name, id, metadata: Value::Object(metadata), locality })
}

/// Default metadata of a proxy with this id. The workload of pod `cart-1` is `cart` unless given.
fn defaults(id: &str, workload: Option<&str>) -> Result<Map<String, Value>, CaseError> {
    let parts: Vec<&str> = id.split('~').collect();
    let [role, ip, pod, _] = parts[..] else { return Err(CaseError::ProxyId(id.to_owned())) };
    let (pod, namespace) = pod.rsplit_once('.').ok_or_else(|| CaseError::ProxyId(id.to_owned()))?;
    let workload = workload.unwrap_or_else(|| pod.rsplit_once('-').map_or(pod, |(workload, _)| workload));
    let owner = format!("kubernetes://apis/apps/v1/namespaces/{namespace}/deployments/{workload}");
    let interception = if role == "sidecar" { json!("REDIRECT") } else { Value::Null };
    let defaults = [
        ("NAMESPACE", json!(namespace)),
        ("CLUSTER_ID", json!("Kubernetes")),
        ("ISTIO_VERSION", json!(VERSION)),
        ("INSTANCE_IPS", json!(ip)),
        ("LABELS", json!({"app": workload})),
        ("INTERCEPTION_MODE", interception),
        ("MESH_ID", json!("cluster.local")),
        ("SERVICE_ACCOUNT", json!(workload)),
        ("NAME", json!(pod)),
        ("OWNER", json!(owner)),
        ("WORKLOAD_NAME", json!(workload)),
    ];
    Ok(defaults.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// The text of `proxies.yaml` without defaults.
pub(super) fn text(proxies: &[CaseProxy]) -> Result<String, CaseError> {
    let written = proxies.iter().map(written).collect::<Result<Vec<Value>, CaseError>>()?;
    expected::yaml(&written)
}

fn written(proxy: &CaseProxy) -> Result<Value, CaseError> {
    let own = proxy.metadata.as_object().cloned().unwrap_or_default();
    let workload = own.get("WORKLOAD_NAME").and_then(Value::as_str);
    let is_default_workload = defaults(&proxy.id, None)?.get("WORKLOAD_NAME").and_then(Value::as_str) == workload;
    let defaults = defaults(&proxy.id, workload.filter(|_| !is_default_workload))?;
    let mut metadata = Map::new();
    if let Some(workload) = workload.filter(|_| !is_default_workload) {
        metadata.insert("WORKLOAD_NAME".to_owned(), json!(workload));
    }
    let removed = defaults.iter().filter(|(key, value)| !own.contains_key(*key) && !value.is_null());
    metadata.extend(removed.map(|(key, _)| (key.clone(), Value::Null)));
    metadata.extend(
        own.iter().filter(|(key, value)| defaults.get(*key) != Some(value)).map(|(k, v)| (k.clone(), v.clone())),
    );
    let mut text = Map::from_iter([("name".to_owned(), json!(proxy.name)), ("id".to_owned(), json!(proxy.id))]);
    if !metadata.is_empty() {
        text.insert("metadata".to_owned(), Value::Object(metadata));
    }
    let CaseLocality { region, zone, sub_zone } = &proxy.locality;
    let locality: Map<String, Value> = [("region", region), ("zone", zone), ("sub_zone", sub_zone)]
        .into_iter()
        .filter(|(_, part)| !part.is_empty())
        .map(|(key, part)| (key.to_owned(), json!(part)))
        .collect();
    if !locality.is_empty() {
        text.insert("locality".to_owned(), Value::Object(locality));
    }
    Ok(Value::Object(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{read, text};

    const FILE: &str = "proxies.yaml";

    #[test]
    fn metadata_follows_from_the_id() {
        let proxies =
            read("- name: cart\n  id: sidecar~10.0.0.1~cart-1.shop~shop.svc.cluster.local\n", FILE.as_ref()).unwrap();
        let metadata = &proxies[0].metadata;
        assert_eq!(metadata["NAMESPACE"], "shop");
        assert_eq!(metadata["LABELS"], json!({"app": "cart"}));
        assert_eq!(metadata["OWNER"], "kubernetes://apis/apps/v1/namespaces/shop/deployments/cart");
    }

    #[test]
    fn metadata_that_differs_from_the_defaults_is_written() {
        let written = "- name: web\n  id: router~10.0.0.2~front-x1.shop~shop.svc.cluster.local\n  metadata:\n    \
                       WORKLOAD_NAME: front-istio\n    MESH_ID: null\n    LABELS:\n      app: web\n";
        let proxies = read(written, FILE.as_ref()).unwrap();
        assert_eq!(proxies[0].metadata.get("MESH_ID"), None);
        assert_eq!(text(&proxies).unwrap(), written);
    }
}
