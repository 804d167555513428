//! RBAC v1alpha1 of Istio 0.8: roles, bindings, and the switch. An unknown field makes the object invalid: without it a
//! role might allow more than intended.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What is allowed on services of the role's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ServiceRole {
    pub rules: Vec<AccessRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AccessRule {
    pub services: Vec<String>,
    pub hosts: Vec<String>,
    pub not_hosts: Vec<String>,
    pub paths: Vec<String>,
    pub not_paths: Vec<String>,
    pub methods: Vec<String>,
    pub not_methods: Vec<String>,
    pub ports: Vec<u16>,
    pub not_ports: Vec<u16>,
    pub constraints: Vec<Constraint>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Constraint {
    pub key: String,
    pub values: Vec<String>,
}

/// The subjects that have a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ServiceRoleBinding {
    pub subjects: Vec<RoleSubject>,
    #[serde(alias = "role_ref")]
    pub role_ref: RoleReference,
    pub mode: EnforcementMode,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoleSubject {
    pub user: String,
    pub group: String,
    pub properties: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoleReference {
    pub kind: String,
    pub name: String,
}

/// Where RBAC is enabled. ClusterRbacConfig has the same spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RbacConfig {
    pub mode: RbacMode,
    pub inclusion: RbacTargets,
    pub exclusion: RbacTargets,
    #[serde(alias = "enforcement_mode")]
    pub enforcement_mode: EnforcementMode,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RbacMode {
    #[default]
    Off,
    On,
    OnWithInclusion,
    OnWithExclusion,
}

/// Services by host name, and namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RbacTargets {
    pub services: Vec<String>,
    pub namespaces: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum EnforcementMode {
    #[default]
    Enforced,
    /// Denials are only logged.
    Permissive,
}
