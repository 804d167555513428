//! Recorded reads are complete: if a client or a snapshot differs only in what a computation did not read, its result is
//! the same. Whether it differs in what was read is decided as for layers, by the fingerprint of the recorded inputs.

use std::cell::Cell;
use std::sync::Arc;

use api::TypeUrl;
use model::endpoint::Locality;
use model::hashed::Hashed;
use model::proxy::{Interception, Proxy};
use model::snapshot::Snapshot;
use proptest::collection::vec;
use proptest::{prop_assert_eq, proptest};
use scope::outbound::OutboundScopes;
use scope::reads::ReadSet;
use scope::{View, identity, inbound};
use testkit::properties::{self, repeat};
use translate::{recipe, recipes};

use super::mesh::{SLOTS, VARIANTS, clients};
use super::{CASES, EditedMesh, Served, bytes};

const CLUSTER: &str = "outbound|80||cart.example.com";

fn view(world: &Snapshot, proxy: &Proxy, scopes: &OutboundScopes) -> Arc<View> {
    let proxy = Arc::new(identity::resolved(world, proxy).into_owned());
    Arc::new(View::shared(world, &proxy, Hashed::new(inbound::targets(world, &proxy)), scopes))
}

/// One computation, with its reads.
fn compute(view: &View, kind: &TypeUrl) -> (Served, ReadSet) {
    let (view, reads) = view.recording();
    let found = match kind {
        k if *k == TypeUrl::ROUTE => {
            ["80", "http.80"].iter().filter_map(|name| recipe(&view, kind, name, &mut Vec::new())).collect()
        }
        k if *k == TypeUrl::ENDPOINT => recipe(&view, kind, CLUSTER, &mut Vec::new()).into_iter().collect(),
        _ => recipes(&view, kind, &mut Vec::new()),
    };
    let found = found.into_iter().map(|recipe| (recipe.name.to_string(), bytes(Some(&recipe.render()))));
    (found.collect(), reads.set())
}

/// Proxies that differ from one in one field each.
pub(super) fn mutations(proxy: &Proxy) -> Vec<(&'static str, Proxy)> {
    let with = |change: &dyn Fn(&mut Proxy)| {
        let mut other = proxy.clone();
        change(&mut other);
        other
    };
    let metadata =
        |key: &'static str, value: &'static str| with(&|proxy| _ = proxy.metadata.insert(key.into(), value.into()));
    let label = |key: &'static str, value: &'static str| with(&|proxy| proxy.labels = proxy.labels.with(key, value));
    vec![
        ("id", with(&|proxy| proxy.id = format!("another.{}", proxy.namespace).as_str().into())),
        ("ips", with(&|proxy| proxy.ips = vec![[10, 77, 0, 1].into()])),
        ("family", with(&|proxy| proxy.ips = vec![[7u16; 8].into()])),
        ("namespace", with(&|proxy| proxy.namespace = "elsewhere".into())),
        ("domain", with(&|proxy| proxy.domain = "elsewhere.svc.cluster.local".into())),
        ("cluster", with(&|proxy| proxy.cluster = "elsewhere".into())),
        ("service cluster", with(&|proxy| proxy.service_cluster = "elsewhere".into())),
        ("network", with(&|proxy| proxy.network = "n2".into())),
        ("locality", with(&|proxy| proxy.locality = Locality::parse("r2/z9/s9"))),
        ("interception", with(&|proxy| proxy.interception = Interception::Tproxy)),
        ("Envoy's version", with(&|proxy| proxy.envoy_version = "1.20.0".into())),
        ("extensions", with(&|proxy| proxy.extensions = ["envoy.filters.http.cors".into()].into())),
        ("proxy config", with(&|proxy| proxy.proxy_config = r#"{"concurrency":7}"#.into())),
        ("label app", label("app", "pay")),
        ("label version", label("version", "v1")),
        ("label zone", label("topology.kubernetes.io/zone", "z9")),
        ("label unread", label("unread", "yes")),
        ("NODE_NAME", metadata("NODE_NAME", "n9")),
        ("NAME", metadata("NAME", "another")),
        ("ISTIO_VERSION", metadata("ISTIO_VERSION", "1.20.0")),
        ("WORKLOAD_NAME", metadata("WORKLOAD_NAME", "another")),
        ("UNREAD", metadata("UNREAD", "yes")),
    ]
}

const KINDS: [TypeUrl; 5] =
    [TypeUrl::CLUSTER, TypeUrl::LISTENER, TypeUrl::EXTENSION, TypeUrl::ROUTE, TypeUrl::ENDPOINT];

#[test]
fn unread_inputs_change_nothing() {
    // Comparisons in which the recorded inputs were equal; without any the property would hold for nothing.
    let compared = Cell::new(0);
    let config = properties::config(CASES);
    proptest!(config.clone(), |(edits in vec((0..SLOTS, 0..VARIANTS), 1..25), client in 0..8usize)| {
        let (mut mesh, scopes) = (EditedMesh::new(), OutboundScopes::default());
        let proxy = clients().swap_remove(client);
        let mut before = mesh.published.snapshot.clone();
        for (slot, variant) in edits {
            before = mesh.published.snapshot.clone();
            mesh.edit(slot, variant);
        }
        let world = mesh.published.snapshot.clone();
        let own = view(&world, &proxy, &scopes);
        let mut others: Vec<(&str, Arc<View>)> =
            mutations(&proxy).iter().map(|(field, other)| (*field, view(&world, other, &scopes))).collect();
        others.push(("the last edit", view(&before, &proxy, &scopes)));
        for kind in KINDS {
            let (expected, reads) = compute(&own, &kind);
            let is_same_endpoints = |field: &str| field != "the last edit" || Arc::ptr_eq(&before.endpoints, &world.endpoints);
            for (field, other) in others.iter().filter(|(field, _)| is_same_endpoints(field)) {
                // Settings are an input of everything and in no fingerprint.
                if own.fingerprint(&reads) != other.fingerprint(&reads) || !Arc::ptr_eq(&own.settings, &other.settings) {
                    continue;
                }
                compared.set(compared.get() + 1);
                let (found, _) = compute(other, &kind);
                prop_assert_eq!(&found, &expected, "{}: {} of {} differ by {}", repeat(&config), kind.short(), &proxy.id, field);
            }
        }
    });
    println!("{} comparisons, {}", compared.get(), repeat(&config));
    assert!(compared.get() > config.cases as usize, "only {} comparisons", compared.get());
}
