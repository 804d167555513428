//! The recorded cases, answered in process: documents, snapshot, view, plans, renderings.
//! `PILOTAGE_CASES=routing/timeout cargo test -p translate --test cases` shows the differences of one case.

use std::process::ExitCode;
use std::sync::Arc;

use api::envoy::config::core::v3::{Locality, Node};
use api::{Resource, Struct, TypeUrl};
use model::change::{Batch, Change, SourceId};
use model::config::mesh::{parse_mesh, parse_networks};
use model::config::parse::documents;
use model::proxy::Proxy;
use model::settings::{Knobs, Settings};
use model::snapshot::Snapshot;
use scope::{View, inbound};
use testkit::cases::{self, Answers, Case, World};
use translate::client::sidecar;
use translate::render;

fn main() -> ExitCode {
    cases::run(load)
}

fn load(case: &Case) -> Answers {
    let World::Files(text) = &case.world else { return Box::new(|_, _, _| Vec::new()) };
    let (knobs, _) = Knobs::read(|name| case.env.get(name).cloned());
    let settings = Settings {
        mesh: parse_mesh(case.mesh.as_deref().unwrap_or_default(), "mesh.yaml").0,
        networks: parse_networks(case.networks.as_deref().unwrap_or_default(), "networks.yaml").0,
        knobs,
        domain: "cluster.local".into(),
        cluster: "Kubernetes".into(),
    };
    let changes = documents(text, "config.yaml").objects.into_iter().map(Change::Applied).collect();
    let batch = Batch { source: SourceId("files".into()), changes };
    let (world, _) = Snapshot::empty(settings).apply(vec![batch]);
    Box::new(move |proxy, kind, names| answer(&world, proxy, kind, names))
}

fn answer(world: &Snapshot, proxy: &cases::Proxy, kind: &TypeUrl, names: &[String]) -> Vec<Resource> {
    let proxy = Arc::new(Proxy::from_node(&node(proxy)).expect("recorded nodes are good"));
    let view = View::new(world, &proxy, inbound::targets(world, &proxy));
    match kind {
        k if *k == TypeUrl::CLUSTER => sidecar::clusters(&view)
            .iter()
            .map(|p| Resource::new(p.name.clone(), &render::cluster::cluster(p)))
            .collect(),
        k if *k == TypeUrl::LISTENER => sidecar::listeners(&view)
            .iter()
            .map(|p| Resource::new(p.name.clone(), &render::listener::listener(p)))
            .collect(),
        k if *k == TypeUrl::ENDPOINT => names
            .iter()
            .filter_map(|name| sidecar::endpoints(&view, name))
            .map(|p| Resource::new(p.name.clone(), &render::endpoints::endpoints(&p)))
            .collect(),
        k if *k == TypeUrl::ROUTE => names
            .iter()
            .filter_map(|name| sidecar::route(&view, name))
            .map(|p| Resource::new(p.name.clone(), &render::route::route(&p)))
            .collect(),
        k if *k == TypeUrl::NAME_TABLE => {
            vec![Resource::new("", &render::names::name_table(&sidecar::name_table(&view)))]
        }
        _ => Vec::new(),
    }
}

fn node(proxy: &cases::Proxy) -> Node {
    let l = &proxy.locality;
    Node {
        id: proxy.id.clone(),
        metadata: Some(fields(&proxy.metadata)),
        locality: Some(Locality { region: l.region.clone(), zone: l.zone.clone(), sub_zone: l.sub_zone.clone() }),
        ..Node::default()
    }
}

fn fields(json: &serde_json::Value) -> Struct {
    let entries = json.as_object().into_iter().flatten();
    Struct { fields: entries.map(|(k, v)| (k.clone(), value(v))).collect() }
}

fn value(json: &serde_json::Value) -> api::Value {
    use api::value::Kind;
    let kind = match json {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(b) => Kind::BoolValue(*b),
        serde_json::Value::Number(n) => Kind::NumberValue(n.as_f64().unwrap_or_default()),
        serde_json::Value::String(s) => Kind::StringValue(s.clone()),
        serde_json::Value::Array(items) => {
            Kind::ListValue(prost_types::ListValue { values: items.iter().map(value).collect() })
        }
        serde_json::Value::Object(_) => Kind::StructValue(fields(json)),
    };
    api::Value { kind: Some(kind) }
}
