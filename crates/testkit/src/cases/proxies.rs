//! `proxies.yaml` of a case: who asks. Metadata that follows from a proxy's id and workload is left out there; this
//! file holds the defaults.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{CaseLocality, CaseProxy};

/// The release of most recorded proxies.
const VERSION: &str = "1.31.0";

/// A proxy as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProxyYaml {
    name: String,
    id: String,
    /// Metadata that differs from the defaults; null takes a default away.
    #[serde(default)]
    metadata: Map<String, Value>,
    #[serde(default)]
    locality: CaseLocality,
}

/// Reads `proxies.yaml`.
pub(super) fn read(text: &str) -> Result<Vec<CaseProxy>, String> {
    let written: Vec<ProxyYaml> = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
    written.into_iter().map(complete).collect()
}

fn complete(written: ProxyYaml) -> Result<CaseProxy, String> {
    let ProxyYaml { name, id, metadata: own, locality } = written;
    let mut metadata = defaults(&id, own.get("WORKLOAD_NAME").and_then(Value::as_str))?;
    metadata.extend(own);
    metadata.retain(|_, value| !value.is_null());
    Ok(CaseProxy { name, id, metadata: Value::Object(metadata), locality })
}

/// Metadata of a proxy of this id. The workload of pod `cart-1` is `cart` where none is given.
fn defaults(id: &str, workload: Option<&str>) -> Result<Map<String, Value>, String> {
    let parts: Vec<&str> = id.split('~').collect();
    let [role, ip, pod, _] = parts[..] else { return Err(format!("the id {id:?} has not four parts")) };
    let (pod, namespace) = pod.rsplit_once('.').ok_or_else(|| format!("the id {id:?} has no namespace"))?;
    let workload = workload.unwrap_or_else(|| pod.rsplit_once('-').map_or(pod, |(workload, _)| workload));
    let owner = format!("kubernetes://apis/apps/v1/namespaces/{namespace}/deployments/{workload}");
    let metadata = json!({
        "NAMESPACE": namespace,
        "CLUSTER_ID": "Kubernetes",
        "ISTIO_VERSION": VERSION,
        "INSTANCE_IPS": ip,
        "LABELS": {"app": workload},
        "INTERCEPTION_MODE": if role == "sidecar" { json!("REDIRECT") } else { Value::Null },
        "MESH_ID": "cluster.local",
        "SERVICE_ACCOUNT": workload,
        "NAME": pod,
        "OWNER": owner,
        "WORKLOAD_NAME": workload,
    });
    let Value::Object(metadata) = metadata else { return Err("metadata is no object".to_owned()) };
    Ok(metadata)
}

/// The text of `proxies.yaml`: what cannot be left out of these proxies.
pub(super) fn text(proxies: &[CaseProxy]) -> Result<String, String> {
    let written = proxies.iter().map(written).collect::<Result<Vec<Value>, String>>()?;
    super::expected::yaml(&written)
}

fn written(proxy: &CaseProxy) -> Result<Value, String> {
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

    #[test]
    fn metadata_follows_from_the_id() {
        let proxies = read("- name: cart\n  id: sidecar~10.0.0.1~cart-1.shop~shop.svc.cluster.local\n").unwrap();
        let metadata = &proxies[0].metadata;
        assert_eq!(metadata["NAMESPACE"], "shop");
        assert_eq!(metadata["LABELS"], json!({"app": "cart"}));
        assert_eq!(metadata["OWNER"], "kubernetes://apis/apps/v1/namespaces/shop/deployments/cart");
    }

    #[test]
    fn what_differs_from_the_defaults_survives_writing() {
        let written = "- name: web\n  id: router~10.0.0.2~front-x1.shop~shop.svc.cluster.local\n  metadata:\n    \
                       WORKLOAD_NAME: front-istio\n    MESH_ID: null\n    LABELS:\n      app: web\n";
        let proxies = read(written).unwrap();
        assert_eq!(proxies[0].metadata.get("MESH_ID"), None);
        assert_eq!(text(&proxies).unwrap(), written);
    }
}
