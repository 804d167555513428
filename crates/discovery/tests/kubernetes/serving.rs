//! A server that watches an API server, and a client that records endpoints.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use discovery::args::{Cli, DiscoveryCommand};
use discovery::startup::{self, Server};
use prost::Message;
use serde_json::{Value, json};
use testkit::wait;
use tonic::transport::Endpoint;
use xds::client::SotwClient;

/// Starts a server and waits until it is synced.
pub(crate) async fn serve(kubeconfig: &Path, mesh: Option<(&Path, &Path)>, env: &[(String, String)]) -> Server {
    serve_with(kubeconfig, mesh, env, &[]).await
}

/// The same with additional flags.
pub(crate) async fn serve_with(
    kubeconfig: &Path,
    mesh: Option<(&Path, &Path)>,
    env: &[(String, String)],
    flags: &[&str],
) -> Server {
    let mut line: Vec<String> = ["pilot-discovery", "discovery", "--registries=Kubernetes"].map(String::from).to_vec();
    line.push(format!("--kubeconfig={}", kubeconfig.display()));
    if let Some((mesh, networks)) = mesh {
        line.push(format!("--meshConfig={}", mesh.display()));
        line.push(format!("--networksConfig={}", networks.display()));
    }
    line.push("--grpcAddr=127.0.0.1:0".to_owned());
    line.extend(["--httpAddr=", "--monitoringAddr=", "--secureGRPCAddr=", "--httpsAddr="].map(String::from));
    line.extend(flags.iter().map(|flag| flag.to_string()));
    let DiscoveryCommand::Discovery(args) = Cli::read(line).unwrap().command else { panic!("the line says discovery") };
    let server =
        startup::start(&args, &|name| env.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()), None).await.unwrap();
    wait::until_within(Duration::from_secs(90), "a server in sync", async || match server.pilot.missing_sources() {
        missing if missing.is_empty() => Ok(()),
        missing => Err(format!("{missing:?} are not")),
    })
    .await;
    server
}

/// A duration in seconds that an environment variable can override.
pub(crate) fn seconds(variable: &str, usual: u64) -> Duration {
    let pushed = std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")));
    Duration::from_secs(pushed.unwrap_or(usual))
}

/// Endpoints of one service as a client received them, in order.
#[derive(Clone, Default)]
pub(crate) struct EndpointPushes(Arc<Mutex<Vec<Vec<String>>>>);

impl EndpointPushes {
    pub(crate) fn all(&self) -> Vec<Vec<String>> {
        self.0.lock().unwrap().clone()
    }

    /// Waits until the last received endpoints equal these.
    pub(crate) async fn until(&self, addresses: &[&str]) {
        wait::until_within(Duration::from_secs(60), "the endpoints", async || {
            let last = self.all().last().cloned().unwrap_or_default();
            if last == addresses { Ok(()) } else { Err(format!("{last:?}")) }
        })
        .await;
    }
}

/// Subscribes to the endpoints of a cluster.
pub(crate) async fn follow(server: SocketAddr, cluster: &str) -> EndpointPushes {
    let pushed = EndpointPushes::default();
    let node = Node { id: "sidecar~10.9.9.9~client.shop~shop.svc.cluster.local".to_owned(), ..Node::default() };
    let channel = Endpoint::from_shared(format!("http://{server}")).unwrap().connect_lazy();
    let mut client = SotwClient::open(channel, node, &TypeUrl::ENDPOINT, &[cluster]).await.unwrap();
    let (remembered, cluster) = (pushed.clone(), cluster.to_owned());
    tokio::spawn(async move {
        while let Ok(Some(response)) = client.next().await {
            client.ack(&response);
            for any in &response.resources {
                let assignment = ClusterLoadAssignment::decode(any.value.as_slice()).unwrap();
                if assignment.cluster_name == cluster {
                    remembered.0.lock().unwrap().push(addresses(&assignment));
                }
            }
        }
    });
    pushed
}

/// All addresses of an assignment, in order.
pub(crate) fn addresses(assignment: &ClusterLoadAssignment) -> Vec<String> {
    use api::envoy::config::core::v3::address::Address;
    use api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
    let endpoints = assignment.endpoints.iter().flat_map(|locality| &locality.lb_endpoints);
    let mut found: Vec<String> = endpoints
        .filter_map(|e| match e.host_identifier.as_ref()? {
            HostIdentifier::Endpoint(endpoint) => match endpoint.address.as_ref()?.address.as_ref()? {
                Address::SocketAddress(socket) => Some(socket.address.clone()),
                _ => None,
            },
            HostIdentifier::EndpointName(_) => None,
        })
        .collect();
    found.sort();
    found
}

pub(crate) const CLUSTER: &str = "outbound|80||web.shop.svc.cluster.local";

/// A service `web` of namespace `shop` with a slice of these addresses.
pub(crate) fn web(addresses: &[&str]) -> Vec<Value> {
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}),
        slice("web-1", addresses),
    ]
}

pub(crate) fn slice(name: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> =
        addresses.iter().map(|a| json!({"addresses": [a], "conditions": {"ready": true}})).collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints})
}

pub(crate) const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/web-1";

/// The endpoints part of a slice with these addresses.
pub(crate) fn endpoints(addresses: &[&str]) -> Value {
    json!({"endpoints": slice("web-1", addresses)["endpoints"]})
}
