//! Config stores whose ServiceEntries are services: MCP v1alpha1 and MCP over xDS, each in both variants.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use api::envoy::config::core::v3::Node;
use api::istio::mcp::v1alpha1::{Metadata, Resource as Envelope};
use api::istio::networking::v1alpha3::{ServiceEntry, ServicePort, WorkloadEntry, service_entry};
use api::{Resource, TypeUrl};
use prost::Name;
use sources::source::Source;
use sources::store::mcp::{McpSink, schema};
use sources::store::{mcp, xds as store};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use xds::{Client, Control, Event, Options, Peer, ResourceSet};

use crate::conformance::{Edit, Instances, RegistryServer, conforms};
use crate::mcp_server::{Conversation, Server, answer};
use crate::serving::Serving;

const ENTRIES: &str = "networking.istio.io/v1/ServiceEntry";
const COLLECTION: &str = "istio/networking/v1alpha3/serviceentries";

/// Envelopes by name.
type World = Arc<BTreeMap<String, Envelope>>;

/// The protocol and its variant.
#[derive(Clone, Copy, Debug)]
enum Protocol {
    Mcp { incremental: bool },
    Xds(store::XdsVariant),
}

/// A running server; it stops when dropped.
enum Running {
    Mcp { talking: AbortHandle },
    Xds { _serving: Serving },
}

struct Store {
    protocol: Protocol,
    instances: Instances,
    /// The version of the last update.
    version: u64,
    world: watch::Sender<World>,
    address: SocketAddr,
    running: Option<Running>,
}

impl Store {
    async fn start(protocol: Protocol) -> Store {
        let (world, address) = (watch::Sender::new(World::default()), (Ipv4Addr::LOCALHOST, 0).into());
        let mut store = Store { protocol, instances: Instances::default(), version: 0, world, address, running: None };
        store.start_again().await;
        store
    }

    /// Publishes an entry for each service. Entries have no health, so they contain healthy instances only.
    fn publish(&mut self) {
        self.version += 1;
        let before = self.world.borrow().clone();
        let entry = |(service, addresses): (&str, Vec<&str>)| {
            let fresh = sealed(service, &addresses, self.version);
            let same = before.get(&format!("shop/{service}")).filter(|known| known.body == fresh.body);
            (format!("shop/{service}"), same.cloned().unwrap_or(fresh))
        };
        let world = self.instances.serving().into_iter().map(entry).collect();
        self.world.send_replace(Arc::new(world));
    }
}

fn sealed(service: &str, addresses: &[&str], version: u64) -> Envelope {
    let workload = |address: &&str| WorkloadEntry { address: (*address).to_owned(), ..WorkloadEntry::default() };
    let [name, protocol] = ["http", "HTTP"].map(str::to_owned);
    let mut entry = ServiceEntry {
        hosts: vec![format!("{service}.store")],
        ports: vec![ServicePort { number: 8080, name, protocol, ..ServicePort::default() }],
        endpoints: addresses.iter().map(workload).collect(),
        ..ServiceEntry::default()
    };
    entry.set_location(service_entry::Location::MeshInternal);
    entry.set_resolution(service_entry::Resolution::Static);
    let (name, version) = (format!("shop/{service}"), version.to_string());
    Envelope { metadata: Some(Metadata { name, version, ..Metadata::default() }), body: Some(api::any(&entry)) }
}

impl RegistryServer for Store {
    fn source(&self) -> impl Source {
        match self.protocol {
            Protocol::Mcp { incremental } => {
                let url = format!("mcp://{}?incremental={incremental}", self.address);
                Either::Mcp(McpSink::new(mcp::McpOptions::parse(&url, "pilot").unwrap()))
            }
            Protocol::Xds(variant) => Either::Xds(store::XdsStore::new(store::XdsStoreOptions {
                address: self.address.to_string(),
                variant,
                tls: None,
                node: "pilot.shop".to_owned(),
                namespace: "shop".to_owned(),
            })),
        }
    }

    fn host(&self, service: &str) -> String {
        format!("{service}.store")
    }

    async fn edit(&mut self, edit: Edit<'_>) {
        self.instances.take(edit);
        self.publish();
    }

    async fn stop(&mut self) {
        self.running = None;
    }

    async fn start_again(&mut self) {
        self.running = Some(match self.protocol {
            Protocol::Mcp { .. } => {
                let server = Server::start_at(self.address).await;
                self.address = server.address;
                Running::Mcp { talking: tokio::spawn(converse(server, self.world.subscribe())).abort_handle() }
            }
            Protocol::Xds(_) => {
                let options =
                    Options { identifier: "test".into(), stop: CancellationToken::new(), ..Options::default() };
                let routes = xds::routes(Arc::new(Configuration(self.world.clone())), options);
                let serving = Serving::start(self.address, routes).await;
                self.address = serving.address;
                Running::Xds { _serving: serving }
            }
        });
    }

    /// A store counts neither services nor endpoints.
    fn held(&self) -> (usize, usize) {
        (0, 0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Running::Mcp { talking } = self {
            talking.abort();
        }
    }
}

/// One of two sources.
enum Either {
    Mcp(McpSink),
    Xds(store::XdsStore),
}

impl Source for Either {
    fn id(&self) -> model::change::SourceId {
        match self {
            Either::Mcp(source) => source.id(),
            Either::Xds(source) => source.id(),
        }
    }

    async fn run(&mut self, sender: sources::source::ChangeSender) -> Result<(), sources::source::SourceError> {
        match self {
            Either::Mcp(source) => source.run(sender).await,
            Either::Xds(source) => source.run(sender).await,
        }
    }
}

/// Serves MCP v1alpha1 to all clients.
async fn converse(mut server: Server, world: watch::Receiver<World>) {
    let mut streams = JoinSet::new();
    loop {
        streams.spawn(serve(server.stream().await, world.clone()));
    }
}

/// Responds to the first requests, then sends changes.
async fn serve(mut stream: Conversation, mut world: watch::Receiver<World>) {
    let (mut sent, mut is_requested, mut incremental) = (BTreeMap::new(), false, false);
    let mut number = 0;
    loop {
        tokio::select! {
            request = stream.try_request() => {
                let Some(request) = request else { return };
                assert_eq!(request.error_detail, None);
                if !request.response_nonce.is_empty() {
                    continue;
                }
                if request.collection != COLLECTION {
                    stream.answer(answer(&request.collection, "none"));
                    continue;
                }
                (is_requested, incremental) = (true, request.incremental);
                sent = request.initial_resource_versions;
            }
            changed = world.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
        if !is_requested {
            continue;
        }
        let now = world.borrow_and_update().clone();
        let versions = versions(&now);
        let fresh = now.iter().filter(|(name, _)| !incremental || sent.get(*name) != versions.get(*name));
        let resources = fresh.map(|(_, envelope)| envelope.clone()).collect();
        let removed_resources = sent.keys().filter(|name| incremental && !now.contains_key(*name)).cloned().collect();
        number += 1;
        let nonce = number.to_string();
        stream.answer(schema::Resources { resources, removed_resources, incremental, ..answer(COLLECTION, &nonce) });
        sent = versions;
    }
}

fn versions(world: &World) -> BTreeMap<String, String> {
    let version = |envelope: &Envelope| envelope.metadata.as_ref().map(|m| m.version.clone()).unwrap_or_default();
    world.iter().map(|(name, envelope)| (name.clone(), version(envelope))).collect()
}

/// Serves MCP over xDS.
struct Configuration(watch::Sender<World>);

impl Control for Configuration {
    type Client = Reader;

    async fn connect(&self, node: Node, _: Peer) -> Result<Reader, Status> {
        let generator = node.metadata.and_then(|metadata| metadata.fields.get("GENERATOR").cloned());
        assert!(generator.is_some_and(|value| format!("{value:?}").contains("api")));
        Ok(Reader(self.0.subscribe()))
    }
}

struct Reader(watch::Receiver<World>);

impl Client for Reader {
    async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        let world = self.0.borrow().clone();
        let entries = world.iter().filter(|_| kind.as_str() == ENTRIES);
        let resources = entries.map(|(name, envelope)| Resource::new(name.as_str(), envelope));
        let content = TypeUrl::from(Envelope::type_url());
        Some(Arc::new(ResourceSet::new(kind.clone(), resources).with_content(content)))
    }

    fn observe(&mut self, event: &Event<'_>) {
        assert!(!matches!(event, Event::Nacked { .. }), "{event:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_conforms() {
    conforms(&mut Store::start(Protocol::Mcp { incremental: false }).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn incremental_mcp_conforms() {
    conforms(&mut Store::start(Protocol::Mcp { incremental: true }).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_over_xds_conforms() {
    conforms(&mut Store::start(Protocol::Xds(store::XdsVariant::StateOfTheWorld)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_over_delta_xds_conforms() {
    conforms(&mut Store::start(Protocol::Xds(store::XdsVariant::Delta)).await).await;
}
