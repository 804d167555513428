//! Route tables in pieces of a few virtual hosts. Tables of different namespaces, and of one namespace before and after a
//! change, share most pieces. If a table would be too large, the largest virtual hosts have no routes: their requests
//! fail, and all others are served.

use std::collections::{BTreeSet, HashMap};

use api::{Body, Resource};
use bytes::Bytes;
use model::config::{Key, Kind};
use model::hashed::{Hashed, fingerprint};
use model::problem::{Problem, ProblemCode, Subject};
use model::settings::Knobs;
use prost::Message;
use scope::View;
use translate::patch::{self, PatchedPlan};
use translate::plan::route::{RouteEntry, RoutePlan, VirtualHostPlan};
use translate::{client, render};
use xxhash_rust::xxh3::xxh3_64;

use crate::serve::bounded::Bounded;
use crate::serve::renderings::Renderings;

/// Virtual hosts that are listed for one table.
const MOST_NAMED: usize = 10;
/// Maximum overhead in bytes of a virtual host, or of a table without any.
const FRAME: usize = 64;

/// The table of this name for one class of clients.
pub(crate) fn route_table(
    view: &View,
    name: &str,
    renderings: &Renderings,
    problems: &mut Vec<Problem>,
) -> Option<Resource> {
    let wanted = client::route(view, name, problems)?;
    let key = fingerprint(&wanted);
    if let Some(known) = renderings.find(key) {
        return Some(known);
    }
    let PatchedPlan::Planned { plan, patches } = wanted else { return None };
    let knobs = &view.settings.knobs;
    if patches.is_empty()
        && let Some(pieces) = pieces(&plan, renderings, knobs.resource_bytes as usize)
    {
        return Some(renderings.get(key, || Resource::encoded(plan.name.clone(), Body::of_pieces(pieces))));
    }
    let hosts = Hosts::new(&plan, knobs);
    let bounded = PatchedPlan::Planned { plan: RoutePlan { virtual_hosts: hosts.plans(), ..plan.clone() }, patches };
    let table = patch::route::resource(&bounded, render::route::resource);
    if hosts.emptied.is_empty() {
        return Some(renderings.get(key, || table));
    }
    // Not cached: a later reader would not get the problems.
    problems.extend(hosts.problems(&view.proxy.namespace, knobs));
    Some(table)
}

/// The encoded table: its shell, then its virtual hosts. `None` if it exceeds the limit; what is rendered until then is
/// bounded too.
fn pieces(plan: &RoutePlan, renderings: &Renderings, limit: usize) -> Option<Vec<Bytes>> {
    let shell = Bytes::from(render::route::shell(plan).encode_to_vec());
    let mut room = limit.checked_sub(shell.len())?;
    let mut pieces = vec![shell];
    for group in groups(&plan.virtual_hosts) {
        let hosts = || group.iter().map(|host| &**host);
        let rendered = renderings.get(fingerprint(group), || Resource::encoded("", render::route::piece(hosts())));
        room = room.checked_sub(rendered.body.len())?;
        pieces.push(rendered.body.joined());
    }
    Some(pieces)
}

/// Virtual hosts of one piece each: four on average. A group ends at hosts that their names decide, so that other hosts
/// before them, in another table or after a change, do not move the ends.
fn groups(hosts: &[Hashed<VirtualHostPlan>]) -> impl Iterator<Item = &[Hashed<VirtualHostPlan>]> {
    const MEAN: u64 = 4;
    const MOST: usize = 16;
    let mut size = 0;
    hosts.chunk_by(move |host, _| {
        size += 1;
        let ends = size == MOST || xxh3_64(host.name.as_bytes()).is_multiple_of(MEAN);
        if ends {
            size = 0;
        }
        !ends
    })
}

/// The virtual hosts of a table, each with or without its routes.
struct Hosts<'a> {
    plan: &'a RoutePlan,
    /// Virtual hosts without routes.
    emptied: BTreeSet<usize>,
}

impl<'a> Hosts<'a> {
    fn new(plan: &'a RoutePlan, knobs: &Knobs) -> Hosts<'a> {
        let mut hosts = Hosts { plan, emptied: BTreeSet::new() };
        let (sizes, limit) = (hosts.sizes(), knobs.resource_bytes as usize);
        if sizes.iter().sum::<usize>() <= limit {
            return hosts;
        }
        // All hosts keep their names.
        let names = plan.virtual_hosts.iter().map(|host| emptied_host(host)).map(|host| encoded(&host).len() + FRAME);
        let room = limit.saturating_sub(names.sum::<usize>() + FRAME + plan.name.len());
        let mut bounded = Bounded::new(room, room);
        for (host, size) in plan.virtual_hosts.iter().zip(sizes) {
            bounded.add(host.name.clone().into(), size, ());
        }
        hosts.emptied = bounded.finish().1.into_iter().map(|found| found.index).collect();
        hosts
    }

    /// Approximate size of each host. Hosts that share routes count as large as the first of them: of a thousand hosts
    /// with a thousand routes only those that will be sent are rendered.
    fn sizes(&self) -> Vec<usize> {
        let mut known: HashMap<u128, usize> = HashMap::new();
        let hosts = self.plan.virtual_hosts.iter();
        hosts.map(|host| *known.entry(host.routes.fingerprint()).or_insert_with(|| encoded(host).len())).collect()
    }

    fn plans(&self) -> Vec<Hashed<VirtualHostPlan>> {
        let mut hosts = self.plan.virtual_hosts.clone();
        for index in &self.emptied {
            hosts[*index] = Hashed::new(emptied_host(&hosts[*index]));
        }
        hosts
    }

    fn problems(&self, namespace: &str, knobs: &Knobs) -> Vec<Problem> {
        let named = self.emptied.iter().take(MOST_NAMED).map(|index| {
            let host = &self.plan.virtual_hosts[*index];
            let message = format!(
                "requests of proxies of namespace {namespace} to {} fail: with its {} routes, route table {} exceeds {} \
                 bytes (PILOTAGE_RESOURCE_BYTES), and the largest hosts are left without routes ({} of {}); let fewer \
                 hosts share so many routes, or raise the limit",
                host.name,
                host.routes.len(),
                self.plan.name,
                knobs.resource_bytes,
                self.emptied.len(),
                self.plan.virtual_hosts.len(),
            );
            Problem::error(object_of(host), message).coded(ProblemCode::Limit)
        });
        named.collect()
    }
}

fn encoded(host: &VirtualHostPlan) -> Vec<u8> {
    render::route::virtual_host(host).encode_to_vec()
}

fn emptied_host(host: &VirtualHostPlan) -> VirtualHostPlan {
    VirtualHostPlan { routes: Hashed::new(Vec::new()), ..host.clone() }
}

/// The object that a host's routes come from.
fn object_of(host: &VirtualHostPlan) -> Subject {
    let rule = host.routes.iter().find_map(|route| match route {
        RouteEntry::Rule(rule) => Some(rule),
        _ => None,
    });
    match rule {
        Some(rule) => Subject::Object(Key {
            kind: Kind::VirtualService,
            namespace: rule.namespace.clone(),
            name: rule.object.clone(),
        }),
        None => Subject::VirtualHost(host.name.clone()),
    }
}
