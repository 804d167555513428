//! What one secret is made of: its name and what lies under it.

use model::names::Str;
use scope::View;
use scope::credentials::Secret;

/// The whole input of one secret. Its fingerprint is never taken: keys are kept nowhere but where they are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretPlan {
    pub name: Str,
    pub content: Secret,
}

/// The secret of this resource name, if this client may have it.
pub fn secret(view: &View, name: &str) -> Option<SecretPlan> {
    Some(SecretPlan { name: name.into(), content: view.secret(name)? })
}
