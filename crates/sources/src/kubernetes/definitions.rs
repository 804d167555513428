//! Installs the CustomResourceDefinitions of our kinds in an API server.

use std::time::Duration;

use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use model::config::definition::{definitions, legacy_definitions};
use serde_json::Value;
use tokio::time::sleep;

use super::access::{Access, AccessError};

/// How often a request is sent to a busy API server before it fails.
const TRIES: usize = 20;
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// Why the definitions could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("could not install the definition {name}: {error}")]
    Definition { name: String, error: kube::Error },
}

/// The kinds whose definitions are installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefinedKinds {
    Current,
    /// Also the kinds of old Istio releases.
    WithLegacy,
}

/// Applies every definition, by server-side apply: fields of other field managers are kept. Returns their number.
pub async fn install(mut access: Access, kinds: DefinedKinds) -> Result<usize, InstallError> {
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
    let legacy = legacy_definitions().filter(|_| kinds == DefinedKinds::WithLegacy);
    for definition in definitions().chain(legacy) {
        let name = definition.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let applied = apply(&api, &name, &parameters, &definition).await;
        applied.map_err(|error| InstallError::Definition { name, error })?;
        count += 1;
    }
    Ok(count)
}

/// Applies one definition, with retries while the API server is busy.
async fn apply(
    api: &Api<DynamicObject>,
    name: &str,
    parameters: &PatchParams,
    definition: &Value,
) -> Result<(), kube::Error> {
    let mut left = TRIES;
    loop {
        left -= 1;
        match api.patch(name, parameters, &Patch::Apply(definition)).await {
            Err(kube::Error::Api(status)) if left > 0 && (status.code == 429 || status.code >= 500) => {
                sleep(RETRY_WAIT).await;
            }
            other => return other.map(drop),
        }
    }
}
