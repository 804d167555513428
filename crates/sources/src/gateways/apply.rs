//! Writes the objects of one Gateway by server-side apply. Objects of others are never overwritten, and fields that another
//! manager took over are left to it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use model::snapshot::gateway_api::managed::{CONTROLLER_VERSION, VERSION_ANNOTATION};
use serde_json::{Value, json};
use tracing::{debug, info};

use super::object::{DeployedKind, GatewayName, ObjectName};
use super::observed::{gateway_resource, version};
use super::ownership::NotOurs;
use super::state::{AppliedObject, DeploymentOutcome, StaleObject, Task};
use super::{FIELD_MANAGER, conflict, ownership};
use crate::kubernetes::client::reason;

/// How often an object is tried after conflicts with other writers.
const TRIES: usize = 5;

/// Why an object was not written.
#[derive(Debug, thiserror::Error)]
enum ApplyError {
    #[error(transparent)]
    NotOurs(#[from] NotOurs),
    #[error("{}", reason(.0))]
    Request(#[from] kube::Error),
    #[error("field {field}: {message}")]
    Field { field: String, message: String },
    #[error("other writers changed it {TRIES} times in a row")]
    Contended,
}

/// Applies everything that one Gateway needs.
pub(super) async fn apply(client: Client, task: Task) -> (GatewayName, DeploymentOutcome) {
    let mut outcome =
        DeploymentOutcome { content: task.deployment.content, uid: task.uid.clone(), ..DeploymentOutcome::default() };
    if task.deployment.takes_over {
        match claim(&client, &task).await {
            Ok(()) => outcome.is_claimed = true,
            Err(error) => outcome.fail(format!("could not annotate the Gateway: {}", reason(&error))),
        }
    }
    for object in task.deployment.objects.iter() {
        let Some(name) = ObjectName::of(object) else { continue };
        match apply_object(&client, &task, &name, object).await {
            Ok(applied) => drop(outcome.objects.insert(name, applied)),
            Err(error) if is_given_account(&task, &name, &error) => {
                debug!(object = %name, gateway = %task.gateway, "using the existing ServiceAccount");
            }
            Err(error) => outcome.fail(format!("could not write {name}: {error}")),
        }
    }
    for stale in &task.stale {
        match remove(&client, stale).await {
            Ok(()) => outcome.removed.push(stale.name.clone()),
            Err(error) => outcome.fail(format!("could not delete {}: {}", stale.name, reason(&error))),
        }
    }
    (task.gateway, outcome)
}

/// An account that the user named may be of anyone.
fn is_given_account(task: &Task, name: &ObjectName, error: &ApplyError) -> bool {
    let is_of_others = matches!(error, ApplyError::NotOurs(NotOurs::Unlabelled | NotOurs::OtherGateway(_)));
    name.kind == DeployedKind::ServiceAccount && task.deployment.account_is_given && is_of_others
}

/// Writes the version of our controller to the Gateway. Without permission the Gateway stays as it is, and is deployed all
/// the same.
async fn claim(client: &Client, task: &Task) -> Result<(), kube::Error> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &task.gateway.namespace, &gateway_resource());
    let annotations = json!({VERSION_ANNOTATION: CONTROLLER_VERSION.to_string()});
    // A Gateway that was created again has another UID.
    let patch = json!({"metadata": {"uid": task.uid, "annotations": annotations}});
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch_metadata(&task.gateway.name, &parameters, &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            debug!(gateway = %task.gateway, error = status.message, "could not annotate the Gateway");
            Ok(())
        }
        result => result.map(drop),
    }
}

async fn apply_object(
    client: &Client,
    task: &Task,
    name: &ObjectName,
    wanted: &Value,
) -> Result<AppliedObject, ApplyError> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &name.namespace, &name.kind.resource());
    let mut object = owned(wanted, task);
    for _ in 0..TRIES {
        let current = api.get_metadata_opt(&name.name).await?.map(|found| found.metadata);
        if let Some(current) = &current {
            ownership::check(current, &task.gateway.name, &task.uid)?;
            if hand_over(&api, name, current).await? {
                continue;
            }
        }
        set_version(&mut object, current.as_ref());
        match api.patch_metadata(&name.name, &PatchParams::apply(FIELD_MANAGER), &Patch::Apply(&object)).await {
            Ok(written) => return Ok(applied(name, task, current.as_ref(), &written.metadata)),
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                leave_out(&mut object, name, &conflict::owned_fields(&status))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(ApplyError::Contended)
}

/// The object with its owner.
fn owned(wanted: &Value, task: &Task) -> Value {
    let mut object = wanted.clone();
    let owner = json!({
        "apiVersion": gateway_resource().api_version, "kind": "Gateway",
        "name": task.gateway.name, "uid": task.uid,
    });
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.insert("ownerReferences".to_owned(), json!([owner]));
    }
    object
}

/// A write in this version fails if another writer was faster, whose object might not be ours.
fn set_version(object: &mut Value, current: Option<&ObjectMeta>) {
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return };
    match current.and_then(|current| current.resource_version.as_deref()) {
        Some(version) => drop(metadata.insert("resourceVersion".to_owned(), version.into())),
        None => drop(metadata.remove("resourceVersion")),
    }
}

/// Makes the fields of another controller of the same gateways ours. Returns whether there were any.
async fn hand_over(api: &Api<DynamicObject>, name: &ObjectName, current: &ObjectMeta) -> Result<bool, ApplyError> {
    let Some(entries) = ownership::taken_over(current) else { return Ok(false) };
    let patch = json!({"metadata": {"managedFields": entries, "resourceVersion": current.resource_version}});
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch_metadata(&name.name, &parameters, &Patch::Merge(&patch)).await {
        Ok(_) => info!(object = %name, "took over the object from another gateway controller"),
        Err(kube::Error::Api(status)) if status.is_conflict() => {}
        Err(error) => return Err(error.into()),
    }
    Ok(true)
}

/// Leaves fields out that another manager owns. Without any, another writer was faster.
fn leave_out(object: &mut Value, name: &ObjectName, fields: &[conflict::OwnedField]) -> Result<(), ApplyError> {
    for field in fields {
        if !conflict::remove(object, &field.path) {
            return Err(ApplyError::Field { field: field.path.clone(), message: field.message.clone() });
        }
        info!(object = %name, field = field.path, owner = field.message, "leaving a field to its owner");
    }
    Ok(())
}

fn applied(name: &ObjectName, task: &Task, before: Option<&ObjectMeta>, written: &ObjectMeta) -> AppliedObject {
    if before.is_none() {
        info!(object = %name, gateway = %task.gateway, "created an object of a managed gateway");
    } else if before.map(version) != Some(version(written)) {
        info!(object = %name, gateway = %task.gateway, "updated an object of a managed gateway");
    }
    AppliedObject { version: version(written), fields: ownership::owned_fields(written) }
}

async fn remove(client: &Client, stale: &StaleObject) -> Result<(), kube::Error> {
    let name = &stale.name;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &name.namespace, &name.kind.resource());
    let only = Preconditions { uid: Some(stale.uid.clone()), resource_version: None };
    match api.delete(&name.name, &DeleteParams { preconditions: Some(only), ..DeleteParams::default() }).await {
        Ok(_) => info!(object = %name, "deleted an object that the gateway no longer needs"),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
