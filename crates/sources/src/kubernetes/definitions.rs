//! Installs the definitions of our kinds in an API server.

use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use model::config::definition::definitions;
use serde_json::Value;

use super::live::Access;

/// Applies every definition; what another manager wrote beside it stays. The error names the definition.
pub async fn install(mut access: Access) -> Result<usize, String> {
    let client = access.client().await?;
    let resource = ApiResource {
        group: "apiextensions.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "apiextensions.k8s.io/v1".to_owned(),
        kind: "CustomResourceDefinition".to_owned(),
        plural: "customresourcedefinitions".to_owned(),
    };
    let api: Api<DynamicObject> = Api::all_with(client, &resource);
    let parameters = PatchParams::apply("pilot-discovery").force();
    let mut count = 0;
    for definition in definitions() {
        let name = definition.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let applied = api.patch(&name, &parameters, &Patch::Apply(&definition)).await;
        applied.map_err(|error| format!("could not install the definition {name}: {error}"))?;
        count += 1;
    }
    Ok(count)
}
