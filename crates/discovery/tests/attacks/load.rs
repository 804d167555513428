//! Load on a running server: a folder of services, proxies that acknowledge like an Envoy, and edits whose application is
//! verified.

use std::fmt::Write as _;
use std::time::Duration;

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use testkit::discovery::DiscoveryProcess;
use testkit::{client, wait};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Endpoint;
use xds::client::{DeltaClient, Held};

/// An edit of a large object takes seconds in a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A service with one endpoint, and a VirtualService of about this many bytes.
pub(crate) fn service(number: usize, bytes: usize, revision: usize) -> String {
    let (high, low, namespace) = (number / 250, number % 250 + 1, number % 20);
    let meta = format!("{{name: s{number}, namespace: n{namespace}}}");
    let host = format!("s{number}.n{namespace}.svc.cluster.local");
    let mut text = format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {meta}\nspec:\n  hosts: [{host}]\n  \
         addresses: [10.96.{high}.{low}]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http, number: 80, targetPort: 8080, protocol: HTTP}}]\n  endpoints:\n  \
         - {{address: 10.0.{high}.{low}, labels: {{app: s{number}, version: v{revision}}}}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {meta}\n\
         spec:\n  hosts: [{host}]\n  http:\n"
    );
    for number in 0.. {
        if text.len() >= bytes {
            break;
        }
        let _ = writeln!(
            text,
            "  - match: [{{uri: {{prefix: /v{revision}/r{number}}}}}]\n    route: [{{destination: {{host: {host}}}}}]"
        );
    }
    text
}

/// Replaces a file with a VirtualService, and waits until the server has applied it.
pub(crate) async fn edit(server: &DiscoveryProcess, file: &str, text: &str) {
    let before = edits(server).await.expect("metrics");
    server.write(file, text);
    wait::until_within(PATIENCE, "the edit", async || match edits(server).await {
        Ok(now) if now > before => Ok(()),
        Ok(now) => Err(format!("{now} edits")),
        Err(error) => Err(error),
    })
    .await;
}

/// Number of VirtualService changes that the server has applied.
async fn edits(server: &DiscoveryProcess) -> Result<u64, String> {
    const SERIES: &str = r#"pilot_k8s_cfg_events{type="VirtualService",event="update"} "#;
    let page = client::get(server.monitoring(), "pilot", "/metrics").await?;
    let line = page.body.lines().find_map(|line| line.strip_prefix(SERIES));
    Ok(line.and_then(|count| count.parse().ok()).unwrap_or_default())
}

/// Whether a proxy acknowledges responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    Always,
    Never,
}

/// A proxy that subscribes to clusters, endpoints, listeners and the routes of port 80 until it is dropped.
pub(crate) struct Proxy {
    /// Responses with routes so far.
    routes: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Connects the proxy of a service, and waits for its first routes.
    pub(crate) async fn start(server: &DiscoveryProcess, number: usize, answers: Answers) -> Proxy {
        let (high, low, namespace) = (number / 250, number % 250 + 1, number % 20);
        let id = format!("sidecar~10.0.{high}.{low}~s{number}-0.n{namespace}~n{namespace}.svc.cluster.local");
        let node = Node { id, ..Node::default() };
        let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).expect("an address");
        let channel = endpoint.connect().await.expect("a connection");
        let client = DeltaClient::open(channel, node, Held::default(), &TypeUrl::CLUSTER, &[]).await.expect("a stream");
        let (seen, mut routes) = watch::channel(0);
        let task = tokio::spawn(read(client, answers, seen));
        let first = routes.wait_for(|seen| *seen > 0);
        tokio::time::timeout(PATIENCE, first).await.expect("routes in time").expect("an open stream");
        Proxy { routes, task }
    }

    /// Responses with routes so far.
    pub(crate) fn routes(&self) -> u64 {
        *self.routes.borrow()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read(mut client: DeltaClient, answers: Answers, seen: watch::Sender<u64>) {
    client.subscribe(&TypeUrl::LISTENER, &[]);
    client.subscribe(&TypeUrl::ROUTE, &["80"]);
    while let Ok(Some(response)) = client.next().await {
        if response.type_url == TypeUrl::CLUSTER.as_str() {
            let names = response.resources.iter().map(|resource| &*resource.name);
            client
                .subscribe(&TypeUrl::ENDPOINT, &names.filter(|name| name.starts_with("outbound|")).collect::<Vec<_>>());
        }
        if response.type_url == TypeUrl::ROUTE.as_str() {
            seen.send_modify(|seen| *seen += 1);
        }
        if answers == Answers::Always {
            client.ack(&response);
        }
    }
}
