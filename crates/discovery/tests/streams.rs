//! The recorded cases over real streams: a server on a folder of files sends, in both variants, the same resources as the
//! same objects give in process. Translate's test compares those with the recording.

// Clippy recognizes tests by their attribute, but not the helper functions.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use discovery::args::{Cli, DiscoveryCommand};
use discovery::offline::Offline;
use discovery::startup;
use model::config::mesh::{parse_mesh, parse_networks};
use model::config::parse::documents;
use model::settings::{Knobs, Settings};
use tempfile::TempDir;
use testkit::cases::{Case, CaseInput, ResourceLookup, disagreements, over_stream};
use testkit::envoy::XdsTransport;
use testkit::wait;
use tokio::runtime::{Handle, Runtime};

fn check(transport: XdsTransport) {
    let runtime = Runtime::new().unwrap();
    let streamed = |case: &Case| served(case, runtime.handle(), transport);
    let found = disagreements(|case| matches!(case.world, CaseInput::Files(_)), in_process, streamed);
    assert!(found.is_empty(), "{} disagree, among them:\n{}", found.len(), found[..found.len().min(20)].join("\n"));
}

#[test]
fn state_of_the_world_streams_equal_the_in_process_result() {
    check(XdsTransport::Sotw);
}

#[test]
fn delta_streams_equal_the_in_process_result() {
    check(XdsTransport::Delta);
}

fn config(case: &Case) -> &str {
    match &case.world {
        CaseInput::Files(text) | CaseInput::Kubernetes(text) => text,
    }
}

fn in_process(case: &Case) -> ResourceLookup {
    let (knobs, _) = Knobs::read(|name| case.env.get(name).cloned());
    let settings = Settings {
        mesh: parse_mesh(case.mesh.as_deref().unwrap_or_default(), "mesh.yaml").0,
        networks: parse_networks(case.networks.as_deref().unwrap_or_default(), "networks.yaml").0,
        knobs,
        ..Settings::default()
    };
    let mesh = Offline::new(settings, documents(config(case), "config.yaml").objects);
    Box::new(move |proxy, kind, names| mesh.resources(&proxy.node(), kind, names).unwrap())
}

/// A separate server for the case, stopped after the last response.
fn served(case: &Case, runtime: &Handle, transport: XdsTransport) -> ResourceLookup {
    let folder = folder(case);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let line = [
        "pilot-discovery".to_owned(),
        "discovery".to_owned(),
        "--registries=".to_owned(),
        format!("--configDir={}", path("config")),
        format!("--meshConfig={}", path("mesh.yaml")),
        format!("--networksConfig={}", path("networks.yaml")),
        "--grpcAddr=127.0.0.1:0".to_owned(),
        "--httpAddr=".to_owned(),
        "--monitoringAddr=".to_owned(),
        "--secureGRPCAddr=".to_owned(),
        "--httpsAddr=".to_owned(),
    ];
    let DiscoveryCommand::Discovery(args) = Cli::read(line).unwrap().command else { panic!("the line says discovery") };
    let server = runtime.block_on(startup::start(&args, &|name| case.env.get(name).cloned(), None)).unwrap();
    runtime.block_on(wait::until("a server in sync", async || match server.pilot.missing_sources() {
        missing if missing.is_empty() => Ok(()),
        missing => Err(format!("{missing:?} are not")),
    }));
    let answers = over_stream(runtime.clone(), server.addresses.grpc.unwrap(), transport);
    let guard = Guard { server: Some(server), runtime: runtime.clone(), _folder: folder };
    Box::new(move |proxy, kind, names| {
        let _alive = &guard;
        answers(proxy, kind, names)
    })
}

fn folder(case: &Case) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("config")).unwrap();
    fs::write(folder.path().join("config/config.yaml"), config(case)).unwrap();
    fs::write(folder.path().join("mesh.yaml"), case.mesh.as_deref().unwrap_or("{}\n")).unwrap();
    fs::write(folder.path().join("networks.yaml"), case.networks.as_deref().unwrap_or("networks: {}\n")).unwrap();
    folder
}

struct Guard {
    server: Option<startup::Server>,
    runtime: Handle,
    _folder: TempDir,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop(Duration::ZERO));
        }
    }
}
