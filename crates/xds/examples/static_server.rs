//! An xDS server in sixty lines: one cluster for every client, over ADS or CDS, state of the world or delta.
//!
//! ```text
//! cargo run -p xds --example static_server
//! ```
//!
//! The crate tracks subscriptions, nonces, acknowledgements and differences; a control plane decides which resources a
//! client may have and when they change.

use std::future;
use std::sync::Arc;

use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::core::v3::Node;
use api::{Resource, TypeUrl};
use tonic::Status;
use tonic::transport::Server;
use xds::{Client, Control, Event, Options, Peer, ResourceSet};

/// Serves the same set to every client.
struct StaticControl {
    clusters: Arc<ResourceSet>,
}

struct StaticClient {
    node: String,
    clusters: Arc<ResourceSet>,
}

impl Control for StaticControl {
    type Client = StaticClient;

    async fn connect(&self, node: Node, _peer: Peer) -> Result<StaticClient, Status> {
        println!("{} connected", node.id);
        Ok(StaticClient { node: node.id, clusters: self.clusters.clone() })
    }
}

impl Client for StaticClient {
    /// Never resolves: nothing changes here. Once it resolves, `current` is called again and the difference is sent.
    async fn changed(&mut self) {
        future::pending().await
    }

    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        (*kind == TypeUrl::CLUSTER).then(|| self.clusters.clone())
    }

    fn observe(&mut self, event: &Event<'_>) {
        println!("{}: {event:?}", self.node);
    }
}

#[tokio::main]
async fn main() -> Result<(), tonic::transport::Error> {
    let cluster = Cluster { name: "web".to_owned(), ..Cluster::default() };
    let resources = [Resource::new(cluster.name.clone(), &cluster)];
    let clusters = Arc::new(ResourceSet::new(TypeUrl::CLUSTER, resources));
    let routes = xds::routes(Arc::new(StaticControl { clusters }), Options::default());
    println!("serving xDS on 127.0.0.1:15010");
    Server::builder().add_routes(routes).serve(([127, 0, 0, 1], 15010).into()).await
}
