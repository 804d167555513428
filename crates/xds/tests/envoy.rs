//! A real Envoy connected to this server: it warms, follows changes without losing a request, and reconnects
//! without being sent anything twice.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::{Resource, TypeUrl};
use prost::Message;
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};
use testkit::backend::HttpBackend;
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::{client, servers, wait};

use support::{Mesh, Server, World};

/// A small world: clusters by name, one listener, one route table that points at one of the clusters.
#[derive(Clone)]
struct Shop {
    clusters: Vec<(&'static str, u16)>,
    route: &'static str,
    connect_timeout: &'static str,
    stat_prefix: &'static str,
}

impl Shop {
    fn world(&self) -> World {
        let clusters = self.clusters.iter().map(|(name, _)| self.cluster(name)).collect();
        let endpoints = self.clusters.iter().map(|(name, port)| assignment(name, *port)).collect();
        vec![
            (TypeUrl::CLUSTER, clusters),
            (TypeUrl::ENDPOINT, endpoints),
            (TypeUrl::LISTENER, vec![self.listener()]),
            (TypeUrl::ROUTE, vec![self.routes()]),
        ]
    }

    fn cluster(&self, name: &str) -> Resource {
        let eds = json!({"eds_config": {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"}});
        let timeout = self.connect_timeout;
        resource(
            &TypeUrl::CLUSTER,
            name,
            json!({"name": name, "type": "EDS", "connect_timeout": timeout, "eds_cluster_config": eds}),
        )
    }

    fn listener(&self) -> Resource {
        let router = json!({"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"});
        let manager = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": self.stat_prefix,
            "rds": {
                "route_config_name": "shop",
                "config_source": {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"},
            },
            "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
        });
        let filter = json!({"name": "envoy.filters.network.http_connection_manager", "typed_config": manager});
        let address = json!({"socket_address": {"address": "127.0.0.1", "port_value": 0}});
        resource(
            &TypeUrl::LISTENER,
            "front",
            json!({"name": "front", "address": address, "filter_chains": [{"filters": [filter]}]}),
        )
    }

    fn routes(&self) -> Resource {
        let route = json!({"match": {"prefix": "/"}, "route": {"cluster": self.route}});
        let host = json!({"name": "all", "domains": ["*"], "routes": [route]});
        resource(&TypeUrl::ROUTE, "shop", json!({"name": "shop", "virtual_hosts": [host]}))
    }
}

fn assignment(name: &str, port: u16) -> Resource {
    let address = json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
    let endpoints = json!([{"lb_endpoints": [{"endpoint": {"address": address}}]}]);
    resource(&TypeUrl::ENDPOINT, name, json!({"cluster_name": name, "endpoints": endpoints}))
}

fn resource(kind: &TypeUrl, name: &str, message: Value) -> Resource {
    let message_name = kind.as_str().rsplit('/').next().unwrap_or_default();
    let message_type = api::reflect::envoy().get_message_by_name(message_name).expect("a type of Envoy's");
    let message = DynamicMessage::deserialize(message_type, message).expect("a valid message");
    Resource::encoded(name, message.encode_to_vec())
}

/// Holds after every step: nothing warming, nothing rejected.
async fn is_settled(envoy: &Envoy) -> Result<(), String> {
    let admin = envoy.admin();
    let waiting = admin.warming().await?;
    let stats = admin.stats("warming").await?;
    match admin.rejected().await? {
        0 if waiting.is_empty() && stats.values().all(|count| *count == 0) => Ok(()),
        rejected => Err(format!("{rejected} rejected, waiting for {waiting:?}, {stats:?}")),
    }
}

async fn stat(envoy: &Envoy, name: &str) -> Result<u64, String> {
    Ok(envoy.admin().stats(name).await?.values().sum())
}

async fn answered_by(address: SocketAddr, backend: &str) -> Result<(), String> {
    let reply = client::get(address, "shop", "/").await?;
    if reply.backend() == backend { Ok(()) } else { Err(format!("{reply:?}")) }
}

/// Sends requests one after the other until `stop`; returns the number and the failures.
async fn requests(address: SocketAddr, stop: Arc<AtomicBool>) -> (usize, Vec<String>) {
    let (mut count, mut failed) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        match client::get(address, "shop", "/").await {
            Ok(reply) if reply.status.is_success() => {}
            other => failed.push(format!("{other:?}")),
        }
    }
    (count, failed)
}

async fn follow(transport: XdsTransport) {
    if servers::without("envoy") {
        return;
    }
    let (one, two) = (HttpBackend::start("one").await, HttpBackend::start("two").await);
    let mut shop = Shop { clusters: vec![("a", one.port())], route: "a", connect_timeout: "1s", stat_prefix: "first" };
    let mut server = Server::start(Mesh::of(shop.world())).await;
    let bootstrap = Bootstrap::sidecar(server.port(), transport, "front", "shop", json!({}));
    let mut envoy = Envoy::start(&bootstrap).await;
    envoy.ready().await;
    let front = envoy.listener("front").await;
    wait::until("the first answer", async || answered_by(front, "one").await).await;
    wait::until("a settled start", async || is_settled(&envoy).await).await;

    let stop = Arc::new(AtomicBool::new(false));
    let traffic = tokio::spawn(requests(front, stop.clone()));

    // Envoy warms a changed cluster again; its endpoints are the same.
    shop.connect_timeout = "2s";
    server.mesh.replace(shop.world());
    wait::until("the changed cluster", async || match stat(&envoy, "cluster_modified").await? {
        0 => Err("not modified".into()),
        _ => is_settled(&envoy).await,
    })
    .await;

    // A changed listener uses an unchanged route table, which is not sent again.
    shop.stat_prefix = "second";
    server.mesh.sent();
    server.mesh.replace(shop.world());
    wait::until("the changed listener", async || match stat(&envoy, "listener_modified").await? {
        0 => Err("not modified".into()),
        _ => is_settled(&envoy).await,
    })
    .await;
    assert_eq!(server.mesh.sent().into_keys().collect::<Vec<_>>(), [TypeUrl::LISTENER]);

    // The only cluster is replaced by another together with the route to it.
    shop.clusters = vec![("b", two.port())];
    shop.route = "b";
    server.mesh.replace(shop.world());
    wait::until("the removed cluster", async || match stat(&envoy, "cluster_removed").await? {
        0 => Err("not removed".into()),
        _ => is_settled(&envoy).await,
    })
    .await;
    wait::until("the other backend", async || answered_by(front, "two").await).await;

    // Another server with the same world.
    server.mesh.sent();
    let connections = stat(&envoy, "control_plane.connected_state").await;
    assert_eq!(connections, Ok(1));
    server = server.restart().await;
    let mut connected = server.mesh.connected();
    connected.wait_for(|count| *count == 1).await.expect("the mesh lives");
    // One change, so that the test can wait for its arrival.
    shop.connect_timeout = "3s";
    server.mesh.replace(shop.world());
    wait::until("a change from the other server", async || match stat(&envoy, "cluster_modified").await? {
        0 | 1 => Err("not modified".into()),
        _ => is_settled(&envoy).await,
    })
    .await;
    let sent = server.mesh.sent();
    if transport == XdsTransport::Delta {
        let count = |kind: TypeUrl| sent.get(&kind).copied().unwrap_or_default();
        assert_eq!([TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER, TypeUrl::ROUTE].map(count), [1, 1, 0, 0]);
    }

    stop.store(true, Ordering::Relaxed);
    let (count, failed) = traffic.await.expect("requests end");
    assert!(count > 0 && failed.is_empty(), "{} of {count} failed: {failed:?}", failed.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn sotw_envoy_follows_without_losing_a_request() {
    follow(XdsTransport::Sotw).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delta_envoy_follows_without_losing_a_request_or_being_sent_anything_twice() {
    follow(XdsTransport::Delta).await;
}

/// Envoy before 1.21 used its stack up when many clusters were removed at once.
#[tokio::test(flavor = "multi_thread")]
async fn cve_2022_23606_ten_thousand_clusters_are_removed_at_once() {
    if servers::without("envoy") {
        return;
    }
    let static_cluster = |name: &str| {
        let endpoints = json!([{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1",
            "port_value": 1}}}}]}]);
        let assignment = json!({"cluster_name": name, "endpoints": endpoints});
        resource(&TypeUrl::CLUSTER, name, json!({"name": name, "type": "STATIC", "load_assignment": assignment}))
    };
    let many = (0..10_000).map(|number| static_cluster(&format!("many-{number}")));
    let few = || vec![static_cluster("one")];
    let server = Server::start(Mesh::of(vec![(TypeUrl::CLUSTER, many.chain(few()).collect())])).await;
    let bootstrap = Bootstrap::sidecar(server.port(), XdsTransport::Delta, "front", "shop", json!({}));
    let mut envoy = Envoy::start(&bootstrap).await;
    let limit = std::time::Duration::from_secs(300);
    let active = async |expected: u64| match stat(&envoy, "cluster_manager.active_clusters").await? {
        // The bootstrap has further ones.
        count if (expected..expected + 100).contains(&count) => Ok(()),
        count => Err(format!("{count} clusters")),
    };
    wait::until_within(limit, "all clusters", async || active(10_001).await).await;
    server.mesh.replace(vec![(TypeUrl::CLUSTER, few())]);
    wait::until_within(limit, "one cluster", async || active(1).await).await;
    envoy.process().check_alive();
}
