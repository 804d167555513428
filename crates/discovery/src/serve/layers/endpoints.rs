//! Load assignments for the clusters of one layer. A change of endpoints renews the assignments that read them, and no
//! others.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use api::{Resource, TypeUrl};
use model::names::ServiceKey;
use model::problem::Problem;
use parking_lot::Mutex;
use scope::View;
use scope::reads::{ReadSet, Reads};
use translate::names::OutboundCluster;

use xds::Layer;

use crate::serve::bounded::Bounded;
use crate::serve::excess;
use crate::serve::layers::memo::LayerRequest;
use crate::serve::renderings::Renderings;

/// Load assignments for the newest snapshot that a client requested.
#[derive(Debug)]
pub(crate) struct EndpointLayer(Mutex<State>);

#[derive(Debug)]
struct State {
    number: u64,
    served: ServedEndpoints,
    /// The fields of the client that the assignments read: clients that agree in them share the layer.
    reads: ReadSet,
    /// The clusters that read the endpoints of a service.
    readers: HashMap<ServiceKey, Vec<OutboundCluster>>,
    bytes: usize,
}

/// Load assignments of one snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServedEndpoints {
    pub(crate) layer: Arc<Layer>,
    /// Clusters whose assignment exceeds a limit.
    pub(crate) left_out: Arc<BTreeSet<Arc<str>>>,
    pub(crate) problems: Arc<[Problem]>,
}

impl EndpointLayer {
    /// Assignments of all these clusters, from a view that records reads.
    pub(crate) fn new(
        number: u64,
        (view, reads): (&View, &Reads),
        clusters: &[OutboundCluster],
        renderings: &Renderings,
    ) -> EndpointLayer {
        let knobs = &view.settings.knobs;
        let mut bounded = Bounded::new(knobs.resource_bytes as usize, knobs.push_bytes as usize);
        let mut readers: HashMap<ServiceKey, Vec<OutboundCluster>> = HashMap::new();
        let mut bytes = 0;
        for cluster in clusters {
            let assignment = assignment(view, cluster, renderings);
            note_readers(&mut readers, reads, cluster);
            bytes += assignment.body.len();
            bounded.add_resource(assignment);
        }
        let (kept, left_out) = bounded.finish();
        let problems = if left_out.is_empty() {
            Vec::new()
        } else {
            excess::left_out(&TypeUrl::ENDPOINT, &view.proxy.namespace, &left_out, knobs)
        };
        let served = ServedEndpoints {
            layer: Arc::new(Layer::new(kept.into_iter().map(|(_, resource)| resource))),
            left_out: Arc::new(left_out.into_iter().map(|found| found.name).collect()),
            problems: problems.into(),
        };
        EndpointLayer(Mutex::new(State { number, served, reads: reads.set(), readers, bytes }))
    }

    /// The assignments for the requested snapshot, or for a later one that another client requested. `None` if they
    /// must be computed again: the changes are unknown, a limit is exceeded, or further fields of the client were read.
    pub(crate) fn at(&self, request: LayerRequest<'_>, renderings: &Renderings) -> Option<ServedEndpoints> {
        let mut state = self.0.lock();
        if state.number >= request.published.number {
            return Some(state.served.clone());
        }
        let changed: BTreeSet<&ServiceKey> = request.changed_endpoints(state.number)?.collect();
        let stale: Vec<OutboundCluster> =
            changed.into_iter().filter_map(|key| state.readers.get(key)).flatten().cloned().collect();
        if !stale.is_empty() {
            state.renew(request.view, &stale, renderings)?;
        }
        state.number = request.published.number;
        Some(state.served.clone())
    }

    /// The assignments for the snapshot that the layer was computed for.
    pub(crate) fn served(&self) -> ServedEndpoints {
        self.0.lock().served.clone()
    }

    pub(crate) fn free_encoded(&self) {
        let layer = self.0.lock().served.layer.clone();
        layer.free_encoded();
    }
}

impl State {
    /// Computes the assignments of some clusters again.
    fn renew(&mut self, view: &View, stale: &[OutboundCluster], renderings: &Renderings) -> Option<()> {
        let knobs = &view.settings.knobs;
        let (view, reads) = view.recording();
        let (mut bytes, mut changes) = (self.bytes, Vec::new());
        for cluster in stale {
            let renewed = assignment(&view, cluster, renderings);
            note_readers(&mut self.readers, &reads, cluster);
            let before = self.served.layer.get(&renewed.name).map_or(0, |before| before.body.len());
            bytes = (bytes + renewed.body.len()).saturating_sub(before);
            if renewed.body.len() > knobs.resource_bytes as usize {
                return None;
            }
            changes.push((renewed.name.clone(), Some(renewed)));
        }
        let exceeds = bytes > knobs.push_bytes as usize || !self.served.left_out.is_empty();
        if exceeds || !self.reads.covers(&reads.set()) {
            return None;
        }
        let layer = self.served.layer.with(changes);
        if !layer.is_same(&self.served.layer) {
            self.served.layer = Arc::new(layer);
        }
        self.bytes = bytes;
        Some(())
    }
}

/// Records that a cluster's assignment reads the endpoints that were read since the last call.
fn note_readers(readers: &mut HashMap<ServiceKey, Vec<OutboundCluster>>, reads: &Reads, cluster: &OutboundCluster) {
    for (key, _) in reads.take_endpoints().into_keys() {
        let known = readers.entry(key).or_default();
        if !known.contains(cluster) {
            known.push(cluster.clone());
        }
    }
}

/// The load assignment of one cluster.
pub(crate) fn assignment(view: &View, cluster: &OutboundCluster, renderings: &Renderings) -> Resource {
    renderings.rendered(&translate::endpoints(view, cluster))
}
