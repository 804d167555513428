//! Resources that a proxy would get, computed without a server: the same functions as when serving.

use std::sync::Arc;

use api::envoy::config::core::v3::Node;
use api::{Resource, TypeUrl};
use model::change::{Batch, Change, SourceId};
use model::config::Object;
use model::proxy::{InvalidNode, Proxy};
use model::settings::Settings;
use model::snapshot::Snapshot;
use scope::View;
use scope::{identity, inbound};

use crate::serve::rendered::RenderedView;
use crate::serve::renderings::Renderings;

/// A mesh with a fixed configuration.
#[derive(Debug)]
pub struct Offline {
    world: Snapshot,
    renderings: Arc<Renderings>,
}

impl Offline {
    pub fn new(settings: Settings, objects: Vec<Object>) -> Offline {
        Offline::from_changes(settings, objects.into_iter().map(Change::Applied).collect())
    }

    /// A mesh from the changes that a source would send.
    pub fn from_changes(settings: Settings, changes: Vec<Change>) -> Offline {
        let batch = Batch { source: SourceId("offline".into()), changes };
        let (world, _) = Snapshot::empty(settings).apply(vec![batch]);
        Offline::of(world)
    }

    /// The mesh of a snapshot.
    pub fn of(world: Snapshot) -> Offline {
        Offline { world, renderings: Arc::default() }
    }

    pub fn world(&self) -> &Snapshot {
        &self.world
    }

    /// The view of a proxy with this node.
    pub fn cut(&self, node: &Node) -> Result<RenderedView, InvalidNode> {
        let proxy = Proxy::from_node(node)?;
        let proxy = Arc::new(identity::resolved(&self.world, &proxy).into_owned());
        let inbound = inbound::targets(&self.world, &proxy);
        Ok(RenderedView::alone(0, View::new(&self.world, &proxy, inbound), self.renderings.clone()))
    }

    /// Resources of one type for a proxy with this node: those named, or all if `names` is empty.
    pub fn resources(&self, node: &Node, kind: &TypeUrl, names: &[String]) -> Result<Vec<Resource>, InvalidNode> {
        let Some(set) = self.cut(node)?.set(kind) else { return Ok(Vec::new()) };
        Ok(match names {
            [] => set.resources().cloned().collect(),
            names => names.iter().filter_map(|name| set.get(name)).collect(),
        })
    }
}
