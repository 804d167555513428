//! Configuration over xDS, the server of `xds://` sources: config objects for clients that are control planes.
//! A type is `group/version/Kind`; each object is sent in the envelope of MCP, and services of registries are sent as
//! ServiceEntries.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::istio::mcp::v1alpha1::Resource as Envelope;
use api::istio::mesh::v1alpha1::MeshConfig;
use api::{Resource, TypeUrl};
use model::config::legacy::is_made_from_legacy;
use model::config::{Kind, Object, envelope};
use model::names::ServiceKey;
use model::snapshot::{Delta, Snapshot, synthetic};
use parking_lot::Mutex;
use prost::Name;
use xds::ResourceSet;

use crate::serve::snapshot_writer::PublishedSnapshot;

/// Types under which clients ask for the mesh config; the first is upstream's.
const MESH: [&str; 2] = ["core/v1alpha1/MeshConfig", "/v1alpha1/MeshConfig"];

/// The objects of each kind that a client asked for, encoded once for all clients.
#[derive(Debug, Default)]
pub struct Configs(Mutex<HashMap<TypeUrl, Made>>);

type Synthetic = BTreeMap<ServiceKey, Vec<Resource>>;

/// The encoded objects of one type, and the number of their snapshot.
#[derive(Clone, Debug)]
struct Made {
    number: u64,
    set: Arc<ResourceSet>,
    objects: Vec<Resource>,
    /// Services of registries, converted to ServiceEntries.
    synthetic: Synthetic,
}

/// The meaning of a requested type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Mesh,
    Objects(Kind),
    /// An unknown kind, which has no objects.
    Nothing,
}

impl Configs {
    /// All objects of a type in this snapshot. `None` if it is not a type of configuration.
    pub fn set(&self, published: &PublishedSnapshot, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        let content = content(kind)?;
        if content == Content::Nothing {
            // Not cached: the number of unknown names is unlimited.
            return Some(Arc::new(ResourceSet::new(kind.clone(), [])));
        }
        let mut sets = self.0.lock();
        let known = sets.get(kind);
        if let Some(newest) = known.filter(|made| made.number >= published.number) {
            return Some(newest.set.clone());
        }
        let steps = known.and_then(|made| Some((made, published.since(made.number)?)));
        let made = match steps {
            Some((made, delta)) => made.after(&delta, published, kind, content),
            None => Made::new(published, kind, content),
        };
        let set = made.set.clone();
        sets.insert(kind.clone(), made);
        Some(set)
    }
}

impl Configs {
    /// Drops types that are no longer watched.
    pub fn retain(&self, is_watched: impl Fn(&TypeUrl) -> bool) {
        self.0.lock().retain(|kind, _| is_watched(kind));
    }
}

impl Made {
    fn new(published: &PublishedSnapshot, kind: &TypeUrl, content: Content) -> Made {
        let world = &published.snapshot;
        let keys = synthetic::services(world).filter(|_| content.has_synthetic()).map(|service| service.key());
        let synthetic = keys.map(|key| (key.clone(), synthetic_entries(world, &key))).collect();
        Made::of(published.number, kind, content, objects(world, content), synthetic)
    }

    /// The same after some steps; unchanged objects are reused.
    fn after(&self, delta: &Delta, published: &PublishedSnapshot, kind: &TypeUrl, content: Content) -> Made {
        let world = &published.snapshot;
        let is_touched = match content {
            Content::Mesh => delta.settings,
            Content::Objects(kind) => delta.touches(kind),
            Content::Nothing => false,
        };
        let keys = delta.services.union(&delta.endpoints).filter(|_| content.has_synthetic());
        let known = |key: &ServiceKey| self.synthetic.get(key).map_or(&[][..], Vec::as_slice);
        let fresh = keys.map(|key| (key, synthetic_entries(world, key)));
        let changed: Vec<_> = fresh.filter(|(key, fresh)| known(key) != fresh.as_slice()).collect();
        if !is_touched && changed.is_empty() {
            return Made { number: published.number, ..self.clone() };
        }
        let mut synthetic = self.synthetic.clone();
        for (key, fresh) in changed {
            if fresh.is_empty() {
                synthetic.remove(key);
            } else {
                synthetic.insert(key.clone(), fresh);
            }
        }
        let objects = if is_touched { objects(world, content) } else { self.objects.clone() };
        Made::of(published.number, kind, content, objects, synthetic)
    }

    fn of(number: u64, kind: &TypeUrl, content: Content, objects: Vec<Resource>, synthetic: Synthetic) -> Made {
        // If a name occurs twice, the first is used: a written object before a converted service.
        let all = objects.iter().chain(synthetic.values().flatten()).cloned();
        let set = ResourceSet::new(kind.clone(), all).with_content(content.message());
        Made { number, set: Arc::new(set), objects, synthetic }
    }
}

impl Content {
    /// Whether services of registries are sent with its objects.
    fn has_synthetic(self) -> bool {
        self == Content::Objects(Kind::ServiceEntry)
    }

    /// The type URL of its messages.
    fn message(self) -> TypeUrl {
        TypeUrl::from(if self == Content::Mesh { MeshConfig::type_url() } else { Envelope::type_url() })
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

fn objects(world: &Snapshot, content: Content) -> Vec<Resource> {
    match content {
        Content::Mesh => vec![Resource::encoded("", world.settings.mesh.encode())],
        Content::Objects(kind) => {
            // Readers know current kinds only.
            let converted = world.converted.objects.of(kind).filter(|object| is_made_from_legacy(&object.meta));
            world.objects.of(kind).chain(converted).filter_map(sealed).collect()
        }
        Content::Nothing => Vec::new(),
    }
}

fn synthetic_entries(world: &Snapshot, key: &ServiceKey) -> Vec<Resource> {
    synthetic::entries(world, key).iter().filter_map(sealed).collect()
}

fn sealed(object: &Object) -> Option<Resource> {
    let envelope = envelope::seal(object)?;
    Some(Resource::new(format!("{}/{}", object.meta.namespace, object.meta.name), &envelope))
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
