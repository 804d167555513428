//! Names of Gateways and of the objects that are deployed for them.

use std::fmt;

use kube::api::ApiResource;
use serde_json::Value;

/// A Gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatewayName {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for GatewayName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

/// Kinds of objects that are deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DeployedKind {
    ServiceAccount,
    Service,
    Deployment,
    Autoscaler,
    DisruptionBudget,
}

impl DeployedKind {
    pub(super) const ALL: [DeployedKind; 5] = [
        DeployedKind::ServiceAccount,
        DeployedKind::Service,
        DeployedKind::Deployment,
        DeployedKind::Autoscaler,
        DeployedKind::DisruptionBudget,
    ];

    /// Group, version, kind and plural.
    const fn names(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            DeployedKind::ServiceAccount => ("", "v1", "ServiceAccount", "serviceaccounts"),
            DeployedKind::Service => ("", "v1", "Service", "services"),
            DeployedKind::Deployment => ("apps", "v1", "Deployment", "deployments"),
            DeployedKind::Autoscaler => ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
            DeployedKind::DisruptionBudget => ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        self.names().2
    }

    pub(super) fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = self.names();
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version,
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        }
    }

    /// Whether an object of this kind is deleted when it is no longer wanted. Deleting others would interrupt traffic.
    pub(super) fn is_removed(self) -> bool {
        matches!(self, DeployedKind::Autoscaler | DeployedKind::DisruptionBudget)
    }
}

/// An object that is deployed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectName {
    pub(super) kind: DeployedKind,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl ObjectName {
    /// `None` if the object is of another kind or has no name.
    pub(super) fn of(object: &Value) -> Option<ObjectName> {
        let kind = object.get("kind")?.as_str()?;
        let kind = DeployedKind::ALL.into_iter().find(|known| known.as_str() == kind)?;
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        Some(ObjectName { kind, namespace: text("/metadata/namespace")?, name: text("/metadata/name")? })
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}
