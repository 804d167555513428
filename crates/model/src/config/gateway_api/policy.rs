//! Backend policies and ReferenceGrant.

use serde::{Deserialize, Serialize};

use super::gateway::SecretReference;

/// Allows references from other namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct ReferenceGrant {
    pub from: Vec<GrantFrom>,
    pub to: Vec<GrantTo>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct GrantFrom {
    pub group: String,
    pub kind: String,
    pub namespace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct GrantTo {
    pub group: String,
    pub kind: String,
    /// All objects of the kind if unset.
    pub name: Option<String>,
}

/// TLS settings for connections to a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsPolicy {
    pub target_refs: Vec<PolicyTarget>,
    pub validation: BackendValidation,
}

/// An object in the namespace of the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyTarget {
    pub group: String,
    pub kind: String,
    pub name: String,
    pub section_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendValidation {
    pub hostname: String,
    pub ca_certificate_refs: Vec<SecretReference>,
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known: Option<String>,
    pub subject_alt_names: Vec<SubjectAltName>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct SubjectAltName {
    #[serde(rename = "type")]
    pub kind: String,
    pub hostname: String,
    pub uri: String,
}

/// The retry budget of a backend; experimental.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTrafficPolicy {
    pub target_refs: Vec<PolicyTarget>,
    pub retry_constraint: Option<RetryConstraint>,
    /// Not supported; only its presence is reported.
    pub session_persistence: Option<Unread>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RetryConstraint {
    pub budget: RetryBudget,
    pub min_retry_rate: RetryRate,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct RetryBudget {
    pub percent: u32,
    pub interval: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct RetryRate {
    pub count: u32,
}

/// An object whose content is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Unread {}

impl Default for RetryBudget {
    fn default() -> RetryBudget {
        RetryBudget { percent: 20, interval: "10s".to_owned() }
    }
}

impl Default for RetryRate {
    fn default() -> RetryRate {
        RetryRate { count: 10 }
    }
}
