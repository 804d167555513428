//! What one class of clients is served in one snapshot: its view, and for each type a set made of layers. Sets are
//! computed on first use, and reused from the previous snapshot if their layers are still valid.

use std::fmt;
use std::sync::{Arc, OnceLock};

use api::TypeUrl;
use model::hashed::Hashed;
use model::problem::Problem;
use model::proxy::ProxyKind;
use parking_lot::Mutex;
use scope::View;
use translate::names::{OutboundCluster, parse_outbound_cluster};
use translate::plan::listener::Direction;
use translate::recipe;
use translate::security::guards::{Guards, guards};
use xds::{Layer, ResourceSet};

use crate::serve::by_name::{self, ByName};
use crate::serve::excess::ClassExcess;
use crate::serve::layers::endpoints::{self, EndpointLayer, ServedEndpoints};
use crate::serve::layers::memo::{Entry, LayerRequest};
use crate::serve::layers::{Layers, Part, ResourceLayer, RouteTable};
use crate::serve::renderings::Renderings;
use crate::serve::snapshot_writer::PublishedSnapshot;

/// Number of served types.
const TYPES: usize = 7;
const CLUSTERS: usize = 0;
const KINDS: [TypeUrl; TYPES] = [
    TypeUrl::CLUSTER,
    TypeUrl::ENDPOINT,
    TypeUrl::LISTENER,
    TypeUrl::ROUTE,
    TypeUrl::EXTENSION,
    TypeUrl::NAME_TABLE,
    TypeUrl::SECRET,
];

/// The resources of one class of clients in one snapshot.
pub struct RenderedView {
    pub number: u64,
    pub view: Arc<View>,
    source: Source,
    /// Where resources that exceed limits are reported; `None` for a trial.
    excess: Option<Arc<ClassExcess>>,
    sets: [OnceLock<Arc<MadeSet>>; TYPES],
    before: [Option<Arc<MadeSet>>; TYPES],
    guards: OnceLock<Guards>,
}

/// Where layers come from.
#[derive(Clone, Debug)]
enum Source {
    /// Shared by all clients.
    Shared { layers: Arc<Layers>, published: Arc<PublishedSnapshot>, pins: u128 },
    /// Computed for this view alone.
    Alone(Arc<Renderings>),
}

/// A set, and the results it was made from.
#[derive(Debug)]
struct MadeSet {
    number: u64,
    set: Arc<ResourceSet>,
    origin: Arc<Origin>,
    layers: Vec<Arc<Layer>>,
    parts: Parts,
    by_name: Option<Arc<ByName>>,
}

/// The newest view of the class for which a set is valid. Resources that clients request later are made from it, and
/// older views, with the endpoints of their time, are freed.
#[derive(Debug)]
struct Origin(Mutex<(u64, Arc<View>, Source)>);

impl Origin {
    fn of(rendered: &RenderedView) -> Arc<Origin> {
        Arc::new(Origin(Mutex::new((rendered.number, rendered.view.clone(), rendered.source.clone()))))
    }

    fn view(&self) -> Arc<View> {
        self.0.lock().1.clone()
    }

    /// Whether a view differs from that of the set in endpoints only.
    fn has_view_like(&self, view: &View) -> bool {
        view.is_same_but_endpoints(&self.0.lock().1)
    }

    fn view_and_source(&self) -> (Arc<View>, Source) {
        let newest = self.0.lock();
        (newest.1.clone(), newest.2.clone())
    }

    /// The set is taken over by a later view.
    fn advance(&self, rendered: &RenderedView) {
        let mut newest = self.0.lock();
        if newest.0 < rendered.number {
            *newest = (rendered.number, rendered.view.clone(), rendered.source.clone());
        }
    }
}

/// The results that a set was made from.
#[derive(Debug, Default)]
enum Parts {
    /// None: resources of this type are made one by one, when a client names them.
    #[default]
    None,
    Resources(Vec<Arc<Entry<ResourceLayer>>>),
    /// Load assignments, each with the fingerprint of its clusters.
    Endpoints(Vec<(u128, Arc<Entry<EndpointLayer>>)>),
}

impl Parts {
    /// Whether a set of these parts is valid for a later snapshot. Load assignments are renewed for each.
    fn hold(&self, request: LayerRequest<'_>) -> bool {
        match self {
            Parts::None => true,
            Parts::Resources(parts) => parts.iter().all(|part| part.holds(request)),
            Parts::Endpoints(_) => false,
        }
    }
}

impl fmt::Debug for RenderedView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenderedView").field("number", &self.number).finish_non_exhaustive()
    }
}

impl RenderedView {
    /// A view that shares no layers with others.
    pub fn alone(number: u64, view: View, renderings: Arc<Renderings>) -> RenderedView {
        RenderedView::new(number, Arc::new(view), Source::Alone(renderings), None)
    }

    /// The first view of a class.
    pub(crate) fn first(
        layers: Arc<Layers>,
        published: Arc<PublishedSnapshot>,
        view: View,
        pins: u128,
        excess: Arc<ClassExcess>,
    ) -> RenderedView {
        let number = published.number;
        RenderedView::new(number, Arc::new(view), Source::Shared { layers, published, pins }, Some(excess))
    }

    fn new(number: u64, view: Arc<View>, source: Source, excess: Option<Arc<ClassExcess>>) -> RenderedView {
        let (sets, before) = Default::default();
        RenderedView { number, view, source, excess, sets, before, guards: OnceLock::new() }
    }

    /// The same class in a later snapshot.
    pub(crate) fn next(&self, published: &Arc<PublishedSnapshot>, view: View) -> RenderedView {
        let source = match &self.source {
            Source::Shared { layers, pins, .. } => {
                Source::Shared { layers: layers.clone(), published: published.clone(), pins: *pins }
            }
            Source::Alone(renderings) => Source::Alone(renderings.clone()),
        };
        let mut next = RenderedView::new(published.number, Arc::new(view), source, self.excess.clone());
        for (index, before) in next.before.iter_mut().enumerate() {
            *before = self.sets[index].get().or(self.before[index].as_ref()).cloned();
        }
        next
    }

    /// The policies that apply to this class.
    pub fn guards(&self) -> Guards {
        *self.guards.get_or_init(|| guards(&self.view))
    }

    /// This class's resources of one type; `None` for types that are not served.
    pub fn set(&self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        let index = KINDS.iter().position(|served| served == kind)?;
        Some(self.made_set(index).set.clone())
    }

    fn made_set(&self, index: usize) -> &Arc<MadeSet> {
        self.sets[index].get_or_init(|| self.made(index, &KINDS[index]))
    }

    /// Whether a set is computed, or can be made from cached layers in microseconds, and has the route tables of these
    /// names. A set of route tables is made at once, and each table when it is asked for.
    pub fn is_quick<'a>(&self, kind: &TypeUrl, mut unlisted: impl Iterator<Item = &'a str>) -> bool {
        let Some(index) = KINDS.iter().position(|served| served == kind) else { return false };
        let mut is_answered = |made: &MadeSet| {
            let tables = made.by_name.as_ref().filter(|_| *kind == TypeUrl::ROUTE);
            tables.is_none_or(|tables| tables.has(&mut unlisted))
        };
        if let Some(made) = self.sets[index].get() {
            return is_answered(made);
        }
        let Some(before) = &self.before[index] else { return false };
        if *kind == TypeUrl::ENDPOINT {
            // At most a few assignments have to be renewed.
            return self.is_quick(&TypeUrl::CLUSTER, std::iter::empty())
                && before.origin.has_view_like(&self.view)
                && self.request().is_some_and(|request| request.is_next_to(before.number));
        }
        let holds = self.may_take_over(before) && is_answered(before);
        if holds {
            before.origin.advance(self);
            // If another client has set it meanwhile, both are the same.
            let _ = self.sets[index].set(before.clone());
        }
        holds
    }

    fn made(&self, index: usize, kind: &TypeUrl) -> Arc<MadeSet> {
        let before = self.before[index].as_ref();
        if let Some(before) = before.filter(|before| self.may_take_over(before)) {
            before.origin.advance(self);
            return before.clone();
        }
        let before = before.map(|before| &**before);
        let made = match kind {
            k if *k == TypeUrl::ENDPOINT => self.endpoints(before),
            k if *k == TypeUrl::ROUTE => self.routes(),
            k if *k == TypeUrl::SECRET => self.secrets(),
            _ => self.resources(kind, before),
        };
        Arc::new(made)
    }

    /// Whether a set of an earlier snapshot is valid for this one.
    fn may_take_over(&self, before: &MadeSet) -> bool {
        let Some(request) = self.request() else { return false };
        before.origin.has_view_like(&self.view)
            && before.parts.hold(request)
            && before.by_name.as_ref().is_none_or(|by_name| by_name.holds(request))
    }

    fn request(&self) -> Option<LayerRequest<'_>> {
        match &self.source {
            Source::Shared { published, pins, .. } => Some(LayerRequest { view: &self.view, published, pins: *pins }),
            Source::Alone(_) => None,
        }
    }

    fn layer(&self, kind: &TypeUrl, part: Part) -> Arc<Entry<ResourceLayer>> {
        match (&self.source, self.request()) {
            (Source::Shared { layers, .. }, Some(request)) => layers.resources(request, kind, part),
            _ => Entry::unshared(ResourceLayer::new(&self.view, kind, part, self.renderings()), &self.view),
        }
    }

    fn renderings(&self) -> &Arc<Renderings> {
        match &self.source {
            Source::Shared { layers, .. } => &layers.renderings,
            Source::Alone(renderings) => renderings,
        }
    }

    /// The layers of a type. Patches and limits apply to all resources of the type together.
    fn layers_of(&self, kind: &TypeUrl) -> Vec<Arc<Entry<ResourceLayer>>> {
        let has_directions = *kind == TypeUrl::CLUSTER || *kind == TypeUrl::LISTENER;
        let is_plain = self.view.patches.is_empty() && *self.view.proxy.kind == ProxyKind::Sidecar;
        if has_directions && is_plain {
            let directions = [Direction::Outbound, Direction::Inbound];
            let parts = directions.map(|direction| self.layer(kind, Part::Towards(direction)));
            let bytes: usize = parts.iter().map(|part| part.value.bytes).sum();
            let fits = parts.iter().all(|part| part.value.problems.is_empty());
            if fits && bytes <= self.view.settings.knobs.push_bytes as usize {
                return parts.into();
            }
        }
        vec![self.layer(kind, Part::Whole)]
    }

    fn resources(&self, kind: &TypeUrl, before: Option<&MadeSet>) -> MadeSet {
        let parts = self.layers_of(kind);
        self.report(kind, parts.iter().flat_map(|part| part.value.problems.iter()));
        let layers: Vec<Arc<Layer>> = parts.iter().map(|part| part.value.layer.clone()).collect();
        let same = before.filter(|before| is_same(&before.layers, &layers));
        let set = match same {
            Some(before) => before.set.clone(),
            None => Arc::new(ResourceSet::of_layers(kind.clone(), layers.clone())),
        };
        let parts = Parts::Resources(parts);
        MadeSet { number: self.number, set, origin: Origin::of(self), layers, parts, by_name: None }
    }

    fn report<'a>(&self, kind: &TypeUrl, problems: impl Iterator<Item = &'a Problem>) {
        if let Some(excess) = &self.excess {
            excess.set(kind, "", &problems.cloned().collect::<Vec<_>>());
        }
    }

    fn endpoints(&self, before: Option<&MadeSet>) -> MadeSet {
        let known = before.filter(|before| before.origin.has_view_like(&self.view));
        let made: Vec<(u128, Arc<Entry<EndpointLayer>>, ServedEndpoints)> = self
            .cluster_parts()
            .iter()
            .filter(|part| !part.value.clusters.is_empty())
            .map(|part| self.endpoint_layer(&part.value.clusters, known))
            .collect();
        self.report(&TypeUrl::ENDPOINT, made.iter().flat_map(|(_, _, served)| served.problems.iter()));
        let layers: Vec<Arc<Layer>> = made.iter().map(|(_, _, served)| served.layer.clone()).collect();
        let left_out: Vec<_> = made.iter().map(|(_, _, served)| served.left_out.clone()).collect();
        let parts = Parts::Endpoints(made.into_iter().map(|(clusters, entry, _)| (clusters, entry)).collect());
        let is_unused = |before: &MadeSet| before.by_name.as_ref().is_none_or(|by_name| by_name.is_empty());
        if let Some(before) = before.filter(|before| is_same(&before.layers, &layers) && is_unused(before)) {
            let (set, by_name, origin) = (before.set.clone(), before.by_name.clone(), before.origin.clone());
            origin.advance(self);
            return MadeSet { number: self.number, set, origin, layers, parts, by_name };
        }
        let (origin, renderings) = (Origin::of(self), self.renderings().clone());
        let by_name = Arc::new(self.by_name(TypeUrl::ENDPOINT));
        let (named, from) = (by_name.clone(), origin.clone());
        let set = ResourceSet::of_layers(TypeUrl::ENDPOINT, layers.clone()).with_fallback(move |name| {
            if left_out.iter().any(|names| names.contains(name)) {
                return None;
            }
            let cluster = parse_outbound_cluster(name)?;
            let make = || {
                let resource = Some(endpoints::assignment(&from.view(), &cluster, &renderings));
                by_name::Made { resource, ..by_name::Made::default() }
            };
            named.answer(name, make)
        });
        MadeSet { number: self.number, set: Arc::new(set), origin, layers, parts, by_name: Some(by_name) }
    }

    /// The layers of clusters, whose outbound ones need endpoints.
    fn cluster_parts(&self) -> Vec<Arc<Entry<ResourceLayer>>> {
        match &self.made_set(CLUSTERS).parts {
            Parts::Resources(parts) => parts.clone(),
            Parts::None | Parts::Endpoints(_) => self.layers_of(&TypeUrl::CLUSTER),
        }
    }

    /// The load assignments of clusters: those of `known`, a set of this class that differs in endpoints only, brought
    /// up to date, or those that other clients with the same clusters have.
    fn endpoint_layer(
        &self,
        clusters: &Hashed<Vec<OutboundCluster>>,
        known: Option<&MadeSet>,
    ) -> (u128, Arc<Entry<EndpointLayer>>, ServedEndpoints) {
        let fingerprint = clusters.fingerprint();
        let (Source::Shared { layers, .. }, Some(request)) = (&self.source, self.request()) else {
            let (view, reads) = self.view.recording();
            let made = EndpointLayer::new(self.number, (&view, &reads), clusters, self.renderings());
            let served = made.served();
            return (fingerprint, Entry::unshared(made, &self.view), served);
        };
        if let Some(Parts::Endpoints(parts)) = known.map(|known| &known.parts)
            && let Some((_, entry)) = parts.iter().find(|(of, _)| *of == fingerprint)
            && let Some(served) = entry.value.at(request, &layers.renderings)
        {
            return (fingerprint, entry.clone(), served);
        }
        let (entry, served) = layers.endpoints(request, clusters);
        (fingerprint, entry, served)
    }

    fn routes(&self) -> MadeSet {
        let by_name = Arc::new(self.by_name(TypeUrl::ROUTE));
        let origin = Origin::of(self);
        let (named, from) = (by_name.clone(), origin.clone());
        let make = move |name: &str| {
            let (view, source) = from.view_and_source();
            match &source {
                Source::Shared { layers, published, pins } => {
                    let entry = layers.route(LayerRequest { view: &view, published, pins: *pins }, name);
                    let RouteTable { table, problems } = &entry.value;
                    let (resource, problems) = (table.clone(), problems.clone());
                    by_name::Made { resource, problems, made_of: Some(entry) }
                }
                Source::Alone(renderings) => {
                    let RouteTable { table, problems } = RouteTable::new(&view, name, renderings);
                    by_name::Made { resource: table, problems, made_of: None }
                }
            }
        };
        let answer = move |name: &str| named.answer(name, || make(name));
        let set = ResourceSet::new(TypeUrl::ROUTE, []).with_fallback(answer);
        self.unlisted(set, origin, Some(by_name))
    }

    fn by_name(&self, kind: TypeUrl) -> ByName {
        let (proxy, settings) = (&self.view.proxy, &self.view.settings);
        ByName::new(kind, proxy.unrecorded().namespace.clone(), settings.clone(), self.excess.clone())
    }

    /// Secrets, which are served by name. Their bytes are never cached.
    fn secrets(&self) -> MadeSet {
        let origin = Origin::of(self);
        let from = origin.clone();
        let set = ResourceSet::new(TypeUrl::SECRET, []).with_fallback(move |name| {
            recipe(&from.view(), &TypeUrl::SECRET, name, &mut Vec::new()).map(|recipe| recipe.render())
        });
        self.unlisted(set, origin, None)
    }

    /// A set whose resources are made by name.
    fn unlisted(&self, set: ResourceSet, origin: Arc<Origin>, by_name: Option<Arc<ByName>>) -> MadeSet {
        let (layers, parts) = (Vec::new(), Parts::None);
        MadeSet { number: self.number, set: Arc::new(set), origin, layers, parts, by_name }
    }
}

fn is_same(one: &[Arc<Layer>], other: &[Arc<Layer>]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| Arc::ptr_eq(one, other))
}
