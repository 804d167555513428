//! The plan of one SDS secret.

use model::names::Str;
use scope::View;
use scope::credentials::Secret;

/// A secret's name and content. It has no fingerprint, so that keys are never cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretPlan {
    pub name: Str,
    pub content: Secret,
}

/// The secret of this name, if the client may have it.
pub fn secret(view: &View, name: &str) -> Option<SecretPlan> {
    Some(SecretPlan { name: name.into(), content: view.secret(name)? })
}
