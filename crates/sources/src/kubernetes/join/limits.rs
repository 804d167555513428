//! How many objects of a cluster are known: how many a list would remove, and whether more are accepted.

use std::collections::HashSet;

use model::names::{CredentialKey, CredentialKind, Namespace, Str};

use super::{ClusterState, NamespacedName};
use crate::kubernetes::collection::Collection;
use crate::kubernetes::config::{DocumentId, kind_id};

impl ClusterState {
    /// How many objects of a collection are known, and how many of them a complete list does not have.
    pub(in crate::kubernetes) fn loss(
        &self,
        collection: &Collection,
        listed: &HashSet<(String, String)>,
    ) -> (usize, usize) {
        let known = self.known_part(collection);
        let is_listed =
            |(namespace, name): &&NamespacedName| listed.contains(&(namespace.to_string(), name.to_string()));
        (known.len(), known.len() - known.iter().filter(is_listed).count())
    }

    /// Whether an object may be added to a collection of at most `most` objects. Known objects may always change.
    pub(in crate::kubernetes) fn has_room(
        &self,
        collection: &Collection,
        namespace: &str,
        name: &str,
        most: usize,
    ) -> bool {
        let (whole, _) = collection.parts();
        let key = || (Namespace::from(namespace), Str::from(name));
        let credential = |kind: CredentialKind| {
            let (namespace, name) = key();
            CredentialKey { kind, namespace, name }
        };
        match whole {
            Collection::Service => self.services.len() < most || self.services.contains_key(&key()),
            Collection::EndpointSlice => {
                self.service_of_slice.len() < most || self.service_of_slice.contains_key(&key())
            }
            Collection::Pod => self.pods.len() < most || self.pods.contains_key(&key()),
            Collection::Node => self.nodes.len() < most || self.nodes.contains_key(name),
            Collection::Namespace => self.namespaces.len() < most || self.namespaces.contains_key(&key().0),
            Collection::Secret => self.credentials.has_room(&credential(CredentialKind::Secret), most),
            Collection::ConfigMap => self.credentials.has_room(&credential(CredentialKind::ConfigMap), most),
            Collection::Config(api_version, kind) => {
                let (namespace, name) = key();
                let id = DocumentId { kind: kind_id(api_version, kind), namespace, name };
                self.documents.has_room(&id, most)
            }
            Collection::RevisionTag
            | Collection::DefaultRevision
            | Collection::Definition
            | Collection::Remote
            | Collection::Registry
            | Collection::Access(..)
            | Collection::Mesh
            | Collection::In(..) => true,
        }
    }
}
