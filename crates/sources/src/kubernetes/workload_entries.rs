//! Requests about WorkloadEntries that register themselves: read, create, annotate, report health, delete. A write is
//! applied only to the version that was read.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Error, ResourceExt};
use serde_json::{Value, json};

use super::access::Access;
use super::client::reason;
use super::trust_objects::{TrustRequestError, WriteResult};

const FIELD_MANAGER: &str = "pilot-discovery";
const GROUP: &str = "networking.istio.io";
/// Time for one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The condition of a status with the workload's health.
pub const HEALTHY: &str = "Healthy";

/// A stored WorkloadEntry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredEntry {
    pub version: String,
    pub annotations: BTreeMap<String, String>,
    /// Conditions of its status.
    pub conditions: Vec<Value>,
}

impl StoredEntry {
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).map(String::as_str)
    }

    /// Status and message of condition `Healthy`.
    pub fn health(&self) -> Option<(bool, &str)> {
        let condition = self.conditions.iter().find(|condition| condition["type"] == HEALTHY)?;
        let message = condition["message"].as_str().unwrap_or_default();
        Some((condition["status"] == "True", message))
    }
}

/// A client for these requests.
#[derive(Clone)]
pub struct WorkloadEntryObjects {
    client: Client,
}

impl WorkloadEntryObjects {
    pub async fn connect(mut access: Access) -> Result<WorkloadEntryObjects, TrustRequestError> {
        let client = access.client().await.map_err(|error| TrustRequestError::Failed(error.to_string()))?;
        Ok(WorkloadEntryObjects { client })
    }

    fn api(&self, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let plural = if kind == "WorkloadEntry" { "workloadentries" } else { "workloadgroups" };
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1", kind), plural);
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }

    /// `None` if there is no such entry.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Option<StoredEntry>, TrustRequestError> {
        let found = within(self.api("WorkloadEntry", namespace).get_opt(name)).await?;
        Ok(found.map(|object| StoredEntry {
            version: object.resource_version().unwrap_or_default(),
            annotations: object.annotations().clone(),
            conditions: object.data["status"]["conditions"].as_array().cloned().unwrap_or_default(),
        }))
    }

    /// Makes a namespace unless it exists.
    pub async fn make_namespace(&self, name: &str) -> Result<(), TrustRequestError> {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Namespace"), "namespaces");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        if within(api.get_opt(name)).await?.is_some() {
            return Ok(());
        }
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        // A conflict means that it exists by now.
        written(tokio::time::timeout(TIMEOUT, api.create(&parameters, &DynamicObject::new(name, &resource))).await)?;
        Ok(())
    }

    /// Creates an entry that belongs to its group and is deleted with it.
    pub async fn create(
        &self,
        namespace: &str,
        group: &str,
        mut document: Value,
    ) -> Result<WriteResult, TrustRequestError> {
        let owner = within(self.api("WorkloadGroup", namespace).get_opt(group)).await?;
        if let Some(uid) = owner.and_then(|owner| owner.uid()) {
            document["metadata"]["ownerReferences"] = json!([{"apiVersion": format!("{GROUP}/v1"),
                "kind": "WorkloadGroup", "name": group, "uid": uid, "controller": true}]);
        }
        let object: DynamicObject = serde_json::from_value(document)
            .map_err(|error| TrustRequestError::Failed(format!("could not encode the entry: {error}")))?;
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let api = self.api("WorkloadEntry", namespace);
        written(tokio::time::timeout(TIMEOUT, api.create(&parameters, &object)).await)
    }

    /// Sets annotations, and removes those without a value.
    pub async fn annotate(
        &self,
        namespace: &str,
        name: &str,
        version: &str,
        annotations: &[(&str, Option<&str>)],
    ) -> Result<WriteResult, TrustRequestError> {
        let annotations: serde_json::Map<String, Value> =
            annotations.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let patch = json!({"metadata": {"resourceVersion": version, "annotations": annotations}});
        let api = self.api("WorkloadEntry", namespace);
        let parameters = patching();
        written(tokio::time::timeout(TIMEOUT, api.patch(name, &parameters, &Patch::Merge(&patch))).await)
    }

    /// Replaces the conditions of the status.
    pub async fn write_conditions(
        &self,
        namespace: &str,
        name: &str,
        version: &str,
        conditions: &[Value],
    ) -> Result<WriteResult, TrustRequestError> {
        let patch = json!({"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}});
        let api = self.api("WorkloadEntry", namespace);
        let parameters = patching();
        written(tokio::time::timeout(TIMEOUT, api.patch_status(name, &parameters, &Patch::Merge(&patch))).await)
    }

    /// Deletes an entry. One that is gone counts as deleted.
    pub async fn delete(&self, namespace: &str, name: &str, version: &str) -> Result<WriteResult, TrustRequestError> {
        let preconditions = Preconditions { resource_version: Some(version.to_owned()), uid: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let api = self.api("WorkloadEntry", namespace);
        match tokio::time::timeout(TIMEOUT, api.delete(name, &parameters)).await {
            Ok(Err(Error::Api(status))) if status.is_not_found() => Ok(WriteResult::Written),
            deleted => written(deleted),
        }
    }
}

fn patching() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

type Timed<T> = Result<Result<T, Error>, tokio::time::error::Elapsed>;

fn written<T>(result: Timed<T>) -> Result<WriteResult, TrustRequestError> {
    match result.map_err(|_| TrustRequestError::Timeout)? {
        Ok(_) => Ok(WriteResult::Written),
        // Deleted meanwhile: it is read again.
        Err(Error::Api(status)) if status.is_conflict() || status.is_already_exists() || status.is_not_found() => {
            Ok(WriteResult::Conflict)
        }
        Err(error) => Err(TrustRequestError::Failed(reason(&error))),
    }
}

async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, TrustRequestError> {
    let answered = tokio::time::timeout(TIMEOUT, request).await.map_err(|_| TrustRequestError::Timeout)?;
    answered.map_err(|error| TrustRequestError::Failed(reason(&error)))
}
