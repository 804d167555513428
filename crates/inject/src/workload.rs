//! The workload that a pod belongs to, by its owner and labels.

use serde_json::Value;

use crate::pod;

/// Kind and name of a workload, as upstream writes them into the proxy's environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// As in `apps/v1`.
    pub api_version: String,
    /// As in `Deployment`.
    pub kind: String,
    /// Name of the workload; empty if it is not known.
    pub name: String,
    /// Namespace; empty if the object does not name one.
    pub namespace: String,
}

impl Workload {
    /// The workload of a pod: its controller, or the workload that is derived from the controller's name and the pod's labels.
    pub fn of_pod(pod: &Value, namespace: &str) -> Workload {
        let metadata = pod.get("metadata").unwrap_or(&Value::Null);
        let own = Workload {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: pod::text(metadata, "name").to_owned(),
            namespace: namespace.to_owned(),
        };
        if pod::text(metadata, "generateName").is_empty() {
            return own;
        }
        let owners = metadata.get("ownerReferences").and_then(Value::as_array);
        let Some(owner) = owners.and_then(|all| all.iter().find(|owner| owner["controller"] == Value::Bool(true)))
        else {
            return own;
        };
        let (kind, name) = (pod::text(owner, "kind"), pod::text(owner, "name"));
        let api_version = pod::text(owner, "apiVersion");
        let (api_version, kind, name) = managed(pod, kind, name).unwrap_or((api_version, kind, name));
        let name = if name.is_empty() { own.name } else { name.to_owned() };
        let api_version = if api_version.is_empty() { pod::text(owner, "apiVersion") } else { api_version };
        Workload { api_version: api_version.to_owned(), kind: kind.to_owned(), name, ..own }
    }

    /// As kind `name` or kind `namespace/name`.
    pub fn display_name(&self) -> String {
        if self.namespace.is_empty() {
            format!("{} {}", self.kind, self.name)
        } else {
            format!("{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// API version ("" for the owner's), kind and name of the workload that manages an owner.
fn managed<'a>(pod: &'a Value, kind: &str, name: &'a str) -> Option<(&'static str, &'static str, &'a str)> {
    let without_hash = |label: &str| {
        let hash = pod::label(pod, label).filter(|hash| !hash.is_empty())?;
        name.ends_with(hash).then(|| name.strip_suffix(hash)?.strip_suffix('-')).map(|short| short.unwrap_or(name))
    };
    match kind {
        "ReplicaSet" => {
            let deployment = without_hash("pod-template-hash").map(|name| ("", "Deployment", name));
            deployment.or_else(|| without_hash("rollouts-pod-template-hash").map(|name| ("v1alpha1", "Rollout", name)))
        }
        "ReplicationController" => {
            let config = pod::label(pod, "deploymentconfig").filter(|config| !config.is_empty())?;
            Some(("", "DeploymentConfig", config))
        }
        "Job" => {
            let (cron_job, time) = name.rsplit_once('-')?;
            let is_time = (8..=10).contains(&time.len()) && time.bytes().all(|b| b.is_ascii_digit());
            (is_time && !cron_job.is_empty()).then_some(("batch/v1", "CronJob", cron_job))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Workload;

    fn check(owner: Value, labels: Value, expected: (&str, &str, &str)) {
        let pod = json!({"metadata": {"generateName": "g-", "labels": labels, "ownerReferences": [owner]}});
        let found = Workload::of_pod(&pod, "shop");
        assert_eq!((&*found.api_version, &*found.kind, &*found.name), expected);
        assert_eq!(found.namespace, "shop");
    }

    #[test]
    fn the_controller_names_the_workload() {
        let owner = |version: &str, kind: &str, name: &str| json!({"apiVersion": version, "kind": kind, "name": name, "controller": true});
        let set = owner("apps/v1", "ReplicaSet", "cart-7d9c");
        check(set.clone(), json!({"pod-template-hash": "7d9c"}), ("apps/v1", "Deployment", "cart"));
        check(set.clone(), json!({"rollouts-pod-template-hash": "7d9c"}), ("v1alpha1", "Rollout", "cart"));
        check(set.clone(), json!({"pod-template-hash": "other"}), ("apps/v1", "ReplicaSet", "cart-7d9c"));
        check(
            owner("v1", "ReplicationController", "c-1"),
            json!({"deploymentconfig": "c"}),
            ("v1", "DeploymentConfig", "c"),
        );
        check(owner("batch/v1", "Job", "night-29011435"), json!({}), ("batch/v1", "CronJob", "night"));
        check(owner("batch/v1", "Job", "night-2901143"), json!({}), ("batch/v1", "Job", "night-2901143"));
        let mut not_controlling = set;
        not_controlling["controller"] = json!(false);
        check(not_controlling, json!({"pod-template-hash": "7d9c"}), ("v1", "Pod", ""));
    }
}
