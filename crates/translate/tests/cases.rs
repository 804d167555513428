//! The recorded cases, run in process: documents, snapshot, view, recipes, resources.
//! `PILOTAGE_CASES=routing/timeout cargo test -p translate --test cases` shows the differences of one case.

use std::process::ExitCode;
use std::sync::Arc;

use api::{Resource, TypeUrl};
use model::change::{Batch, Change, SourceId};
use model::config::mesh::{parse_mesh, parse_networks};
use model::config::parse::documents;
use model::config::{Key, Kind};
use model::proxy::Proxy;
use model::settings::{Knobs, Settings};
use model::snapshot::Snapshot;
use scope::{View, identity, inbound};
use serde_json::Value;
use sources::kubernetes::join::{ClusterOptions, ClusterState};
use sources::kubernetes::schema::ClusterObject;
use sources::status::{Controllers, merged};
use testkit::cases::{self, Case, CaseInput, CaseServer, StatusLookup};
use translate::{Recipe, recipe, recipes};

fn main() -> ExitCode {
    cases::run(load)
}

fn load(case: &Case) -> CaseServer {
    let (mut knobs, _) = Knobs::read(|name| case.env.get(name).cloned());
    // The cases were recorded from an istiod that deploys no gateways.
    knobs.deploy_gateways = false;
    let settings = Settings {
        mesh: parse_mesh(case.mesh.as_deref().unwrap_or_default(), "mesh.yaml").0,
        networks: parse_networks(case.networks.as_deref().unwrap_or_default(), "networks.yaml").0,
        knobs,
        ..Settings::default()
    };
    let changes = match &case.world {
        CaseInput::Files(text) => documents(text, "config.yaml").objects.into_iter().map(Change::Applied).collect(),
        CaseInput::Kubernetes(text) => cluster_changes(case, &settings, text),
    };
    let batch = Batch { source: SourceId("source".into()), changes };
    let (world, _) = Snapshot::empty(settings).apply(vec![batch]);
    let world = Arc::new(world);
    let of_cluster = matches!(case.world, CaseInput::Kubernetes(_)).then(|| world.clone());
    CaseServer {
        answers: Box::new(move |proxy, kind, names| answer(&world, proxy, kind, names)),
        statuses: of_cluster.map(|world| -> StatusLookup { Box::new(move |object| status(&world, object)) }),
    }
}

/// The status that is written to an object, over the one that it has.
fn status(world: &Snapshot, object: &Value) -> Option<Value> {
    let word = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let kind = Kind::of(word("/apiVersion"), word("/kind"))?;
    let key = Key { kind, namespace: word("/metadata/namespace").into(), name: word("/metadata/name").into() };
    let wanted = world.converted.statuses.get(&key)?;
    let controllers = Controllers::new(&world.settings.knobs.gateway_controller);
    Some(merged(object.get("status"), wanted, &controllers, "now"))
}

/// The changes that the Kubernetes source sends for the case's objects. They are applied in reverse: order must not matter.
fn cluster_changes(case: &Case, settings: &Settings, text: &str) -> Vec<Change> {
    let revision = case.env.get("REVISION").map_or("", String::as_str).into();
    let options = ClusterOptions { revision, ..ClusterOptions::own(settings) };
    let mut cluster = ClusterState::new(options, settings.clone());
    for object in cases::objects(text).into_iter().rev() {
        cluster.apply(ClusterObject::read(object).unwrap_or_else(|e| panic!("{}: {e}", case.label())));
    }
    cluster.changes()
}

fn answer(world: &Snapshot, proxy: &cases::CaseProxy, kind: &TypeUrl, names: &[String]) -> Vec<Resource> {
    let proxy = Proxy::from_node(&proxy.node()).expect("recorded nodes are good");
    let proxy = Arc::new(identity::resolved(world, &proxy).into_owned());
    let view = View::new(world, &proxy, inbound::targets(world, &proxy));
    let problems = &mut Vec::new();
    let recipes: Vec<Recipe> = if [TypeUrl::ENDPOINT, TypeUrl::ROUTE].contains(kind) {
        names.iter().filter_map(|name| recipe(&view, kind, name, problems)).collect()
    } else {
        let is_wildcard = *kind != TypeUrl::EXTENSION;
        let all = recipes(&view, kind, problems).into_iter();
        all.filter(|recipe| is_wildcard || names.iter().any(|name| **name == *recipe.name)).collect()
    };
    recipes.iter().map(Recipe::render).collect()
}
