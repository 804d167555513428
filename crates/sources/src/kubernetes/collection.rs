//! The collections of objects that are watched in a cluster.

use std::fmt;

use model::names::{Namespace, Str};

/// A collection of objects that one watch covers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Collection {
    Service,
    EndpointSlice,
    Pod,
    Node,
    Namespace,
    Secret,
    ConfigMap,
    /// Objects of a config kind, by `apiVersion` and `kind`.
    Config(Str, Str),
    /// MutatingWebhookConfigurations that define a tag of a revision.
    RevisionTag,
    /// The ValidatingWebhookConfiguration that names the default revision.
    DefaultRevision,
    /// CustomResourceDefinitions.
    Definition,
    /// Labelled Secrets with kubeconfigs of remote clusters.
    Remote,
    /// The ConfigMap that names remote clusters.
    Registry,
    /// A Secret that this ConfigMap names, by namespace and name.
    Access(Str, Str),
    /// The ConfigMap with mesh settings, if its namespace is not watched otherwise.
    Mesh,
    /// The objects of a collection in one namespace.
    In(Namespace, Box<Collection>),
}

impl Collection {
    /// The collection, and the namespace that it is limited to.
    pub(super) fn parts(&self) -> (&Collection, Option<&Namespace>) {
        match self {
            Collection::In(namespace, whole) => (whole, Some(namespace)),
            whole => (whole, None),
        }
    }
}

impl fmt::Display for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Collection::Config(api_version, kind) => write!(f, "{api_version}/{kind}"),
            Collection::Definition => f.write_str("CustomResourceDefinition"),
            Collection::RevisionTag => f.write_str("MutatingWebhookConfiguration(istio.io/tag)"),
            Collection::DefaultRevision => f.write_str("ValidatingWebhookConfiguration(istiod-default-validator)"),
            Collection::Remote => f.write_str("Secret(istio/multiCluster)"),
            Collection::Registry => f.write_str("ConfigMap(clusterRegistries)"),
            Collection::Access(namespace, name) => write!(f, "Secret({namespace}/{name})"),
            Collection::Mesh => f.write_str("ConfigMap(mesh)"),
            Collection::In(namespace, whole) => write!(f, "{whole}({namespace})"),
            plain => write!(f, "{plain:?}"),
        }
    }
}
