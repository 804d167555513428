//! Configuration over xDS, the other side of `xds://` sources: config objects for clients that are control planes
//! themselves. A type is `group/version/Kind`; each object travels in the envelope of MCP.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use api::istio::mcp::v1alpha1::Resource as Envelope;
use api::istio::mesh::v1alpha1::MeshConfig;
use api::{Resource, TypeUrl};
use model::config::{Kind, Object, envelope};
use model::snapshot::{Delta, Snapshot};
use prost::Name;
use xds::ResourceSet;

use crate::serve::world::Epoch;

/// Types under which clients ask for the mesh config; the first is upstream's.
const MESH: [&str; 2] = ["core/v1alpha1/MeshConfig", "/v1alpha1/MeshConfig"];

/// The objects of each kind that somebody asked for, made once for all clients.
#[derive(Debug, Default)]
pub struct Configs(Mutex<HashMap<TypeUrl, Made>>);

/// What was made of one type, and in which epoch.
#[derive(Clone, Debug)]
struct Made {
    epoch: u64,
    set: Arc<ResourceSet>,
}

/// What a type of configuration stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Mesh,
    Objects(Kind),
    /// A kind that nobody here knows, of which there are no objects.
    Nothing,
}

impl Configs {
    /// All objects of a type in this epoch. `None` where it is no type of configuration.
    pub fn set(&self, epoch: &Epoch, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        let content = content(kind)?;
        if content == Content::Nothing {
            // Not kept: there is no end of unknown names.
            return Some(Arc::new(ResourceSet::new(kind.clone(), [])));
        }
        let mut sets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let set = match sets.get(kind) {
            Some(made) if made.epoch >= epoch.number || is_untouched(epoch, made, content) => made.set.clone(),
            _ => Arc::new(make(&epoch.snapshot, kind, content)),
        };
        let number = sets.get(kind).map_or(epoch.number, |made| made.epoch.max(epoch.number));
        sets.insert(kind.clone(), Made { epoch: number, set: set.clone() });
        Some(set)
    }
}

fn content(kind: &TypeUrl) -> Option<Content> {
    if kind.is_debug() {
        return None;
    }
    if MESH.contains(&kind.as_str()) {
        return Some(Content::Mesh);
    }
    let (version, name) = kind.as_str().rsplit_once('/').filter(|(version, _)| version.contains('/'))?;
    Some(Kind::of(version, name).map_or(Content::Nothing, Content::Objects))
}

fn is_untouched(epoch: &Epoch, made: &Made, content: Content) -> bool {
    let touches = |delta: Delta| match content {
        Content::Mesh => delta.settings,
        Content::Objects(kind) => delta.touches(kind),
        Content::Nothing => false,
    };
    epoch.since(made.epoch).is_some_and(|delta| !touches(delta))
}

fn make(world: &Snapshot, kind: &TypeUrl, content: Content) -> ResourceSet {
    let sealed = |object: &Object| {
        let envelope = envelope::seal(object)?;
        let name = format!("{}/{}", object.meta.namespace, object.meta.name);
        Some(Resource::new(name, &envelope))
    };
    match content {
        Content::Mesh => {
            let mesh = Resource::encoded("", world.settings.mesh.encode().into());
            ResourceSet::new(kind.clone(), [mesh]).with_content(TypeUrl::from(MeshConfig::type_url()))
        }
        Content::Objects(of) => ResourceSet::new(kind.clone(), world.objects.of(of).filter_map(sealed))
            .with_content(TypeUrl::from(Envelope::type_url())),
        Content::Nothing => ResourceSet::new(kind.clone(), []),
    }
}

#[cfg(test)]
mod tests {
    use api::TypeUrl;
    use model::config::Kind;

    use super::{Content, content};

    #[test]
    fn types_of_configuration_are_told_from_others() {
        let of = |url: &str| content(&TypeUrl::from(url.to_owned()));
        assert_eq!(of("networking.istio.io/v1/ServiceEntry"), Some(Content::Objects(Kind::ServiceEntry)));
        assert_eq!(of("networking.istio.io/v1alpha3/ServiceEntry"), Some(Content::Objects(Kind::ServiceEntry)));
        assert_eq!(of("core/v1alpha1/MeshConfig"), Some(Content::Mesh));
        assert_eq!(of("example.com/v1/Thing"), Some(Content::Nothing));
        for other in [TypeUrl::CLUSTER.as_str(), "istio.io/debug/syncz", "nonsense", ""] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
