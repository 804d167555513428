//! Cloud Foundry: mapped, scaled, divided by path and weight, inside the platform, unreadable.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use testkit::backend::{HttpBackend, TcpBackend};
use testkit::copilot::{Copilot, CopilotInternalRoute, CopilotRoute};
use testkit::{client, ports, wait};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::stage::{Stage, backends};

const HOST: &str = "cart.example.com";

async fn start(copilot: &Copilot, service_port: u16) -> Stage {
    let file = copilot.file("cf.yaml");
    fs::write(&file, copilot.config("100ms", service_port)).expect("a file");
    let args = ["--registries=CloudFoundry".to_owned(), format!("--cfConfig={}", file.display())];
    Stage::start(&args, "").await
}

fn route(process: &str, backends: &[&HttpBackend]) -> CopilotRoute {
    CopilotRoute::new(HOST, process, backends.iter().map(|b| (b.address().ip().to_string(), b.port())))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_reach_what_copilot_says_is_mapped() {
    let mut copilot = Copilot::start().await;
    let (port, all) = backends(["one", "two"]).await;
    copilot.edit(|state| state.routes = vec![route("first", &[&all[0]])]);
    let stage = start(&copilot, port).await;
    stage.answered_by(HOST, port, &["one"]).await;

    // One application, scaled out; then all of it away.
    copilot.edit(|state| state.routes = vec![route("first", &[&all[0], &all[1]])]);
    stage.answered_by(HOST, port, &["one", "two"]).await;
    copilot.edit(|state| state.routes = vec![route("first", &[])]);
    stage.answered_by(HOST, port, &[]).await;

    // Two applications share a host by weight, and one has a path alone.
    copilot.edit(|state| {
        let (first, second) = (route("first", &[&all[0]]), route("second", &[&all[1]]));
        state.routes = vec![first.weighing(100), second.clone().weighing(0), second.below("/two")];
    });
    stage.answered_by(HOST, port, &["one"]).await;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    for (path, backend) in [("/two", "two"), ("/two/more", "two"), ("/twofold", "one")] {
        assert_eq!(client::get(address, HOST, path).await.unwrap().backend(), backend, "{path}");
    }

    // Another control plane needs no registry of its own to know the same.
    let source = format!("configSources: [{{address: 'xds://{}?protocol=delta'}}]\n", stage.discovery.grpc());
    let other = Stage::start_on(&source, &[], "").await;
    for routes in [vec![route("first", &[&all[0], &all[1]])], vec![route("first", &[&all[0]])]] {
        let count = routes[0].backends();
        copilot.edit(|state| state.routes = routes);
        wait::until(&format!("{count} endpoints"), async || {
            let found = other.endpoints_of(HOST).await?;
            if found.len() == count { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }

    // Nobody can be asked: what was known last is served.
    copilot.kill();
    stage.until_state("CloudFoundry", "stale").await;
    stage.answered_by(HOST, port, &["one"]).await;
    assert_eq!(stage.envoy.admin().rejected().await, Ok(0), "updates that Envoy refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_internal_route_carries_bytes() {
    let (copilot, database, port) = (Copilot::start().await, TcpBackend::start("database").await, ports::free());
    let backend = (database.address().ip().to_string(), database.port());
    let route = CopilotInternalRoute::new("db.apps.internal", "127.128.0.7", [backend]);
    copilot.edit(|state| state.internal = vec![route]);
    let stage = start(&copilot, port).await;
    let greeting = wait::until("the database", async || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.map_err(|e| e.to_string())?;
        let mut greeting = [0; 8];
        stream.read_exact(&mut greeting).await.map_err(|e| e.to_string())?;
        Ok(greeting)
    })
    .await;
    assert_eq!(&greeting, b"database");
    assert_eq!(stage.envoy.admin().rejected().await, Ok(0), "updates that Envoy refused");
}
