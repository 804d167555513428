//! Recorded cases over a real API server: the served resources equal the in-process result, which translate's test
//! compares with the recording.

use std::fs;
use std::time::Duration;

use discovery::offline::Offline;
use discovery::startup::Server;
use model::config::mesh::{parse_mesh, parse_networks};
use model::settings::{Knobs, Settings};
use sources::kubernetes::join::{ClusterOptions, ClusterState};
use sources::kubernetes::schema::ClusterObject;
use testkit::cases::{Case, CaseInput, ResourceLookup, disagreements, objects, over_stream};
use testkit::envoy::XdsTransport;
use testkit::kubernetes::ApiServer;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::MutexGuard;

use crate::cluster::{cluster, create, is_left_out};
use crate::serving::serve;

/// Cases whose objects all have the same creation time; others would need a second between two objects.
fn is_wanted(case: &Case) -> bool {
    let topics = ["kube-services", "kube-endpoints"];
    let CaseInput::Kubernetes(text) = &case.world else { return false };
    // Two of three cases: each takes a second or two.
    let chosen = case.name.bytes().map(usize::from).sum::<usize>() % 3 != 0;
    topics.contains(&case.topic.as_str()) && chosen && !text.contains("later")
}

#[test]
fn a_real_api_server_gives_the_in_process_result() {
    if is_left_out(&[]) {
        return;
    }
    let runtime = Runtime::new().unwrap();
    let count = std::sync::atomic::AtomicUsize::new(0);
    let live = |case: &Case| {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        live(case, runtime.handle())
    };
    let found = disagreements(is_wanted, in_process, live);
    let count = count.into_inner();
    println!("{count} cases on a real API server");
    assert!(found.is_empty(), "{} disagree, among them:\n{}", found.len(), found[..found.len().min(20)].join("\n"));
    assert!(count >= 40, "only {count} cases");
}

fn in_process(case: &Case) -> ResourceLookup {
    let CaseInput::Kubernetes(text) = &case.world else { panic!("{} is no Kubernetes case", case.label()) };
    let (knobs, _) = Knobs::read(|name| case.env.get(name).cloned());
    let settings = Settings {
        mesh: parse_mesh(case.mesh.as_deref().unwrap_or_default(), "mesh.yaml").0,
        networks: parse_networks(case.networks.as_deref().unwrap_or_default(), "networks.yaml").0,
        knobs,
        ..Settings::default()
    };
    let options = ClusterOptions::own(&settings);
    let mut cluster = ClusterState::new(options, settings.clone());
    for object in objects(text) {
        cluster.apply(ClusterObject::read(object).unwrap());
    }
    let mesh = Offline::from_changes(settings, cluster.changes());
    Box::new(move |proxy, kind, names| mesh.resources(&proxy.node(), kind, names).unwrap())
}

fn live(case: &Case, runtime: &Handle) -> ResourceLookup {
    let CaseInput::Kubernetes(text) = &case.world else { panic!("{} is no Kubernetes case", case.label()) };
    let (api_server, server) = runtime.block_on(async {
        let mut api_server = cluster().await;
        // Creation time decides conflicts, so all objects must be created in the same second.
        for tries in 1.. {
            let made = create(&api_server, &objects(text)).await;
            if made.windows(2).all(|pair| pair[0] == pair[1]) {
                break;
            }
            assert!(tries < 50, "{}: its objects cannot be made in one second", case.label());
            drop(api_server);
            api_server = cluster().await;
        }
        let put = |name: &str, text: &str| {
            let path = api_server.folder().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let mesh = put("mesh.yaml", case.mesh.as_deref().unwrap_or("{}\n"));
        let networks = put("networks.yaml", case.networks.as_deref().unwrap_or("networks: {}\n"));
        let env: Vec<(String, String)> = case.env.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let server = serve(api_server.kubeconfig(), Some((&mesh, &networks)), &env).await;
        (api_server, server)
    });
    let answers = over_stream(runtime.clone(), server.addresses.grpc.unwrap(), XdsTransport::Delta);
    let guard = Guard { server: Some(server), runtime: runtime.clone(), _api_server: api_server };
    Box::new(move |proxy, kind, names| {
        let _alive = &guard;
        answers(proxy, kind, names)
    })
}

struct Guard {
    server: Option<Server>,
    runtime: Handle,
    _api_server: MutexGuard<'static, ApiServer>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop(Duration::ZERO));
        }
    }
}
