//! Objects that exist from the start: namespaces, and the definitions of the served kinds.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{Api, ApiReply, ApiRequest};
use crate::object::meta;
use crate::output::JSON;
use crate::resource::definitions;
use crate::store::ObjectKey;
use crate::users::Caller;

/// The field manager of these objects.
const MANAGER: &str = "pilotage";
const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// An object that could not be made.
#[derive(Debug, thiserror::Error)]
#[error("could not make {object}: {cause}")]
pub struct SeedError {
    object: String,
    cause: String,
}

impl Api {
    /// Makes the namespaces and definitions that are missing, and replaces definitions of another release unless a client
    /// has changed them. Also completes deletions that were interrupted, and deletes objects whose owners are gone.
    pub async fn seed(&self) -> Result<(), SeedError> {
        let mut names = vec!["default".to_owned()];
        names.extend(self.options.namespaces.iter().filter(|name| *name != "default").cloned());
        let mut requests = Vec::new();
        for name in names {
            if self.storage.cache().get(&ObjectKey::new("namespaces", "", &name)).is_none() {
                let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
                requests.push(request(http::Method::POST, "/api/v1/namespaces", &object));
            }
        }
        for definition in definitions() {
            requests.extend(self.definition_request(definition));
        }
        for (request, reply) in
            join_all(requests.iter().map(async |request| (request, self.respond(request).await))).await
        {
            if let ApiReply::Complete(response) = reply
                // 409: another process that shares the storage was first.
                && !matches!(response.code, 200 | 201 | 409)
            {
                let cause = String::from_utf8_lossy(&response.body).into_owned();
                return Err(SeedError { object: request.path.clone(), cause });
            }
        }
        self.finish_namespaces().await;
        self.collect_garbage().await;
        Ok(())
    }

    /// The request that makes or renews a definition, if it is needed.
    fn definition_request(&self, mut definition: Value) -> Option<ApiRequest> {
        const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let name = meta(&definition, "name").to_owned();
        let Some(stored) = self.storage.cache().get(&ObjectKey::new(DEFINITIONS, "", &name)) else {
            return Some(request(http::Method::POST, PATH, &definition));
        };
        let known: Value = serde_json::from_str(&stored.text).unwrap_or_default();
        let managers = known.pointer("/metadata/managedFields").and_then(Value::as_array);
        let is_ours = managers.into_iter().flatten().all(|entry| entry["manager"] == MANAGER);
        if known["spec"] == definition["spec"] || !is_ours {
            return None;
        }
        definition["metadata"]["resourceVersion"] = stored.revision.to_string().into();
        Some(request(http::Method::PUT, &format!("{PATH}/{name}"), &definition))
    }
}

fn request(method: http::Method, path: &str, object: &Value) -> ApiRequest {
    ApiRequest {
        method,
        path: path.to_owned(),
        query: format!("fieldManager={MANAGER}&fieldValidation=Ignore"),
        content_type: JSON.to_owned(),
        accept: String::new(),
        user_agent: String::new(),
        body: object.to_string().into(),
        caller: Caller::administrator(MANAGER),
    }
}
