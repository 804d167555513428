//! Cloud Foundry: mapped routes, scaling, paths and weights, internal routes, outage.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use testkit::backend::{HttpBackend, TcpBackend};
use testkit::copilot::{Copilot, CopilotInternalRoute, CopilotRoute};
use testkit::{client, ports, wait};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::fixture::{MeshFixture, backends};

const HOST: &str = "cart.example.com";

async fn start(copilot: &Copilot, service_port: u16) -> MeshFixture {
    let file = copilot.file("cf.yaml");
    fs::write(&file, copilot.config("100ms", service_port)).expect("a file");
    let args = ["--registries=CloudFoundry".to_owned(), format!("--cfConfig={}", file.display())];
    MeshFixture::start(&args, "").await
}

fn route(process: &str, backends: &[&HttpBackend]) -> CopilotRoute {
    CopilotRoute::new(HOST, process, backends.iter().map(|b| (b.address().ip().to_string(), b.port())))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_reach_the_backends_of_copilots_routes() {
    let mut copilot = Copilot::start().await;
    let (port, all) = backends(["one", "two"]).await;
    copilot.edit(|state| state.routes = vec![route("first", &[&all[0]])]);
    let fixture = start(&copilot, port).await;
    fixture.answered_by(HOST, port, &["one"]).await;

    // One application, scaled out, then unmapped.
    copilot.edit(|state| state.routes = vec![route("first", &[&all[0], &all[1]])]);
    fixture.answered_by(HOST, port, &["one", "two"]).await;
    copilot.edit(|state| state.routes = vec![route("first", &[])]);
    fixture.answered_by(HOST, port, &[]).await;

    // Two applications share a host by weight, and one has its own path.
    copilot.edit(|state| {
        let (first, second) = (route("first", &[&all[0]]), route("second", &[&all[1]]));
        state.routes = vec![first.weighing(100), second.clone().weighing(0), second.below("/two")];
    });
    fixture.answered_by(HOST, port, &["one"]).await;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    for (path, backend) in [("/two", "two"), ("/two/more", "two"), ("/twofold", "one")] {
        assert_eq!(client::get(address, HOST, path).await.unwrap().backend(), backend, "{path}");
    }

    // Another control plane gets the same services over xDS, without a registry.
    let source = format!("configSources: [{{address: 'xds://{}?protocol=delta'}}]\n", fixture.discovery.grpc());
    let other = MeshFixture::start_on(&source, &[], "").await;
    for routes in [vec![route("first", &[&all[0], &all[1]])], vec![route("first", &[&all[0]])]] {
        let count = routes[0].backends();
        copilot.edit(|state| state.routes = routes);
        wait::until(&format!("{count} endpoints"), async || {
            let found = other.endpoints_of(HOST).await?;
            if found.len() == count { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }

    // The registry is down: the last known endpoints are served.
    copilot.kill();
    fixture.until_state("CloudFoundry", "stale").await;
    fixture.answered_by(HOST, port, &["one"]).await;
    assert_eq!(fixture.envoy.admin().rejected().await, Ok(0), "updates that Envoy refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_internal_route_carries_tcp() {
    let (copilot, database, port) = (Copilot::start().await, TcpBackend::start("database").await, ports::free());
    let backend = (database.address().ip().to_string(), database.port());
    let route = CopilotInternalRoute::new("db.apps.internal", "127.128.0.7", [backend]);
    copilot.edit(|state| state.internal = vec![route]);
    let fixture = start(&copilot, port).await;
    let greeting = wait::until("the database", async || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.map_err(|e| e.to_string())?;
        let mut greeting = [0; 8];
        stream.read_exact(&mut greeting).await.map_err(|e| e.to_string())?;
        Ok(greeting)
    })
    .await;
    assert_eq!(&greeting, b"database");
    assert_eq!(fixture.envoy.admin().rejected().await, Ok(0), "updates that Envoy refused");
}
