//! The Mock registry publishes exactly the two services of upstream.

use model::change::SourceId;
use model::endpoint::Endpoint;
use sources::registry::adapter::SourcePlace;
use sources::registry::diff::MassLossGuard;
use sources::registry::mock::{MockOptions, MockRegistry};

use crate::follower::Follower;

fn line(endpoint: &Endpoint) -> String {
    let version = endpoint.labels.get("version").map_or("", |v| v);
    format!("{} {}:{} {version}", endpoint.service_port, endpoint.address(), endpoint.port)
}

#[tokio::test]
async fn hello_and_world_have_two_versions_each() {
    let place =
        SourcePlace { id: SourceId("Mock".into()), cluster: "Kubernetes".into(), guard: MassLossGuard::default() };
    let options = MockOptions { domain: "cluster.local".to_owned() };
    let follower = Follower::synced(MockRegistry::new(options, place)).await;
    let services: Vec<(&str, &str)> = follower.services.values().map(|s| (s.hostname.as_str(), &*s.address)).collect();
    assert_eq!(
        services,
        [("hello.default.svc.cluster.local", "10.1.0.0"), ("world.default.svc.cluster.local", "10.2.0.0")]
    );
    for service in follower.services.values() {
        let ports: Vec<String> =
            service.ports.iter().map(|p| format!("{} {} {}", p.name, p.number, p.protocol.as_str())).collect();
        let expected = [
            "http 80 HTTP",
            "http-status 81 HTTP",
            "custom 90 TCP",
            "mongo 100 Mongo",
            "redis 110 Redis",
            "mysql 120 MySQL",
        ];
        assert_eq!(ports, expected);
    }
    let world: Vec<String> = follower.endpoints.values().nth(1).into_iter().flatten().map(line).collect();
    let expected = ["v0", "v1"].map(|version| {
        let address = format!("10.2.1.{}", &version[1..]);
        [("http", 80), ("http-status", 1081), ("custom", 1090), ("mongo", 1100), ("redis", 1110), ("mysql", 1120)]
            .map(|(name, port)| format!("{name} {address}:{port} {version}"))
    });
    assert_eq!(world, expected.concat());
}
