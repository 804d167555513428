//! One simulated proxy: a delta stream that asks for clusters, their endpoints, listeners and their routes, acknowledges
//! everything, and keeps names and versions but no bodies.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use api::envoy::config::core::v3::Node;
use api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use api::envoy::config::listener::v3::Listener;
use api::envoy::config::listener::v3::filter::ConfigType;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use api::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use api::{Struct, TypeUrl, Value, value};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use xds::client::{DeltaClient, Held, HeldResource};

use super::mesh::{NAMESPACES, service_of};
use super::staleness::{Staleness, change_in};
use super::throttled::ThrottledStream;

const TYPE_COUNT: usize = 4;
/// The types that an Envoy asks for, in its order.
const TYPES: [TypeUrl; TYPE_COUNT] = [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER, TypeUrl::ROUTE];
/// Flow-control windows like those of an Envoy that reads quickly.
const WINDOW: u32 = 1 << 20;

/// How a proxy introduces itself, and how fast it reads.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) node: Node,
    pub(crate) pace: Pace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Full,
    Slow,
}

impl Profile {
    /// A sidecar with its own address, and this label `app`.
    pub(crate) fn sidecar(number: usize, app: String) -> Profile {
        Profile { node: node("sidecar", number, &app), pace: Pace::Full }
    }

    pub(crate) fn gateway(number: usize) -> Profile {
        Profile { node: node("router", number, "gateway"), pace: Pace::Full }
    }
}

/// The node of a proxy with its own address.
pub(crate) fn node(kind: &str, number: usize, app: &str) -> Node {
    let namespace = format!("ns{}", number % NAMESPACES);
    let ip = format!("10.{}.{}.{}", 200 + number / 62_500, number / 250 % 250, number % 250 + 1);
    let text = |text: &str| Value { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let labels = Struct { fields: BTreeMap::from([("app".to_owned(), text(app))]) };
    let metadata = BTreeMap::from([
        ("NAMESPACE".to_owned(), text(&namespace)),
        ("CLUSTER_ID".to_owned(), text("Kubernetes")),
        ("INSTANCE_IPS".to_owned(), text(&ip)),
        ("ISTIO_VERSION".to_owned(), text("1.31.0")),
        ("LABELS".to_owned(), Value { kind: Some(value::Kind::StructValue(labels)) }),
    ]);
    Node {
        id: format!("{kind}~{ip}~p{number}.{namespace}~{namespace}.svc.cluster.local"),
        metadata: Some(Struct { fields: metadata }),
        ..Node::default()
    }
}

/// A proxy, connected or not.
pub(crate) struct SimulatedProxy {
    server: SocketAddr,
    profile: Profile,
    received: Arc<Received>,
    stream: Option<JoinHandle<()>>,
}

/// What a proxy has received so far.
struct Received {
    bytes: AtomicU64,
    held: Mutex<HeldVersions>,
    latest: watch::Sender<Latest>,
    staleness: Arc<Staleness>,
}

/// Names and versions by type.
type HeldVersions = HashMap<TypeUrl, BTreeMap<Arc<str>, Arc<str>>>;

/// When a proxy last received each type.
#[derive(Clone, Debug, Default)]
struct Latest {
    times: [Option<Instant>; TYPE_COUNT],
    is_synced: bool,
}

impl SimulatedProxy {
    pub(crate) fn new(server: SocketAddr, profile: Profile, staleness: Arc<Staleness>) -> SimulatedProxy {
        let (bytes, held) = Default::default();
        let received = Received { bytes, held, latest: watch::Sender::default(), staleness };
        SimulatedProxy { server, profile, received: Arc::new(received), stream: None }
    }

    /// Opens a stream. A proxy that was connected before returns with the versions it holds.
    pub(crate) fn connect(&mut self) {
        let stream = Stream { server: self.server, profile: self.profile.clone(), received: self.received.clone() };
        self.stream = Some(tokio::spawn(stream.run()));
    }

    pub(crate) fn disconnect(&mut self) {
        self.stream.take().inspect(JoinHandle::abort);
        self.received.latest.send_modify(|latest| latest.is_synced = false);
    }

    /// Ends when the proxy has resources of all types.
    pub(crate) fn synced(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut latest = self.received.latest.subscribe();
        async move {
            latest.wait_for(|latest| latest.is_synced).await.unwrap_or_else(|e| panic!("a proxy is gone: {e}"));
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.received.bytes.load(Ordering::Relaxed)
    }

    /// The first time after `begun` at which the proxy received this type.
    pub(crate) async fn received(&self, kind: &TypeUrl, begun: Instant) -> Instant {
        let at = TYPES.iter().position(|known| known == kind).unwrap_or_else(|| panic!("{kind} is not simulated"));
        let mut latest = self.received.latest.subscribe();
        let is_new = |latest: &Latest| latest.times[at].is_some_and(|time| time > begun);
        let latest = latest.wait_for(is_new).await.unwrap_or_else(|e| panic!("a proxy is gone: {e}"));
        latest.times[at].unwrap_or(begun)
    }
}

impl Drop for SimulatedProxy {
    fn drop(&mut self) {
        self.disconnect();
    }
}

/// One stream of a proxy.
struct Stream {
    server: SocketAddr,
    profile: Profile,
    received: Arc<Received>,
}

impl Stream {
    async fn run(self) {
        if let Err(status) = self.exchange().await {
            eprintln!("the stream of {} ended: {status}", self.profile.node.id);
        }
    }

    async fn channel(&self) -> Result<Channel, Status> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.server));
        let endpoint = endpoint.unwrap_or_else(|e| panic!("{} is no address: {e}", self.server));
        let server = self.server;
        let connected = match self.profile.pace {
            Pace::Full => {
                endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW).connect().await
            }
            Pace::Slow => {
                let connect = move |_| async move { ThrottledStream::connect(server).await.map(TokioIo::new) };
                endpoint.connect_with_connector(tower::service_fn(connect)).await
            }
        };
        connected.map_err(|error| Status::unavailable(error.to_string()))
    }

    async fn exchange(&self) -> Result<(), Status> {
        let held = self.held();
        let returns = !held.is_empty();
        let names = |kind: &TypeUrl| match *kind == TypeUrl::ENDPOINT || *kind == TypeUrl::ROUTE {
            true => held.get(kind).into_iter().flat_map(|held| held.keys().cloned()).collect(),
            false => Vec::new(),
        };
        let names: Vec<Vec<String>> = TYPES.iter().map(names).collect();
        let channel = self.channel().await?;
        let mut client = DeltaClient::open(channel, self.profile.node.clone(), held, &TypeUrl::CLUSTER, &[]).await?;
        if returns {
            // An Envoy that returns asks for all that it holds at once.
            for (kind, names) in TYPES.iter().zip(&names).skip(1) {
                client.subscribe(kind, &names.iter().map(String::as_str).collect::<Vec<_>>());
            }
            self.received.latest.send_modify(|latest| latest.is_synced = true);
        }
        client.held = Held::default();
        let mut seen = HashSet::new();
        let mut changes = HashMap::new();
        while let Some(response) = client.next().await? {
            client.send(DeltaDiscoveryRequest {
                type_url: response.type_url.clone(),
                response_nonce: response.nonce.clone(),
                ..Default::default()
            });
            let kind = TypeUrl::from(response.type_url.clone());
            if !returns && seen.insert(kind.clone()) {
                subscribe_further(&mut client, &kind, &response.resources);
            }
            self.note(&kind, &response, seen.len() == TYPE_COUNT, &mut changes);
        }
        Ok(())
    }

    /// The held versions, as a stream begins with them.
    fn held(&self) -> Held {
        let held = self.received.held.lock();
        let of = |versions: &BTreeMap<Arc<str>, Arc<str>>| {
            let entry = |(name, version): (&Arc<str>, &Arc<str>)| {
                (name.to_string(), HeldResource { version: version.to_string(), resource: api::Any::default() })
            };
            versions.iter().map(entry).collect()
        };
        held.iter().map(|(kind, versions)| (kind.clone(), of(versions))).collect()
    }

    fn note(&self, kind: &TypeUrl, response: &DeltaDiscoveryResponse, is_synced: bool, changes: &mut Changes) {
        let Received { bytes, held, latest, staleness } = &*self.received;
        bytes.fetch_add(response.encoded_len() as u64, Ordering::Relaxed);
        {
            let mut held = held.lock();
            let held = held.entry(kind.clone()).or_default();
            held.extend(response.resources.iter().map(|r| (interned(&r.name), interned(&r.version))));
            response.removed_resources.iter().for_each(|name| drop(held.remove(&**name)));
        }
        if *kind == TypeUrl::ENDPOINT {
            for (service, change) in response.resources.iter().filter_map(change_of) {
                let before = changes.insert(service, change).unwrap_or_default();
                staleness.arrived(service, before, change);
            }
        }
        latest.send_modify(|latest| {
            if let Some(at) = TYPES.iter().position(|known| known == kind) {
                latest.times[at] = Some(Instant::now());
            }
            latest.is_synced |= is_synced;
        });
    }
}

/// The last change of each service that a stream has received.
type Changes = HashMap<usize, u32>;

/// Clusters are followed by their endpoints and by listeners, listeners by their routes.
fn subscribe_further(client: &mut DeltaClient, kind: &TypeUrl, resources: &[Resource]) {
    if *kind == TypeUrl::CLUSTER {
        let outbound = resources.iter().map(|r| &*r.name).filter(|name| name.starts_with("outbound|"));
        client.subscribe(&TypeUrl::ENDPOINT, &outbound.collect::<Vec<_>>());
        client.subscribe(&TypeUrl::LISTENER, &[]);
    }
    if *kind == TypeUrl::LISTENER {
        let names = route_names(resources);
        client.subscribe(&TypeUrl::ROUTE, &names.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

/// The route tables that listeners refer to. Decoding costs the simulator more than sending costs the server, so equal
/// responses are decoded once.
fn route_names(listeners: &[Resource]) -> Arc<BTreeSet<String>> {
    type BySize = HashMap<(usize, usize), Arc<BTreeSet<String>>>;
    static DECODED: LazyLock<Mutex<BySize>> = LazyLock::new(Mutex::default);
    let bodies = || listeners.iter().filter_map(|r| Some(&r.resource.as_ref()?.value));
    let key = (bodies().map(Vec::len).sum(), listeners.len());
    if let Some(known) = DECODED.lock().get(&key) {
        return known.clone();
    }
    let names = bodies().flat_map(|body| route_names_in(body)).collect();
    DECODED.lock().entry(key).or_insert(Arc::new(names)).clone()
}

/// The route tables that an encoded listener refers to.
pub(crate) fn route_names_in(body: &[u8]) -> Vec<String> {
    routes_of(&Listener::decode(body).unwrap_or_default())
}

pub(crate) fn routes_of(listener: &Listener) -> Vec<String> {
    let chains = listener.filter_chains.iter().chain(&listener.default_filter_chain);
    let configs = chains.flat_map(|chain| &chain.filters).filter_map(|filter| match &filter.config_type {
        Some(ConfigType::TypedConfig(any)) if any.type_url.ends_with("HttpConnectionManager") => Some(&any.value),
        _ => None,
    });
    let name = |body: &Vec<u8>| match HttpConnectionManager::decode(&**body).unwrap_or_default().route_specifier {
        Some(RouteSpecifier::Rds(rds)) => Some(rds.route_config_name),
        _ => None,
    };
    configs.filter_map(name).collect()
}

/// The service of a load assignment and the change that its first endpoint carries.
fn change_of(resource: &Resource) -> Option<(usize, u32)> {
    use api::envoy::config::core::v3::address::Address;
    use api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
    let service = service_of(&resource.name)?;
    let assignment = ClusterLoadAssignment::decode(&*resource.resource.as_ref()?.value).ok()?;
    let endpoints = assignment.endpoints.into_iter().flat_map(|locality| locality.lb_endpoints);
    let addresses = endpoints.filter_map(|endpoint| match endpoint.host_identifier? {
        HostIdentifier::Endpoint(endpoint) => endpoint.address?.address,
        HostIdentifier::EndpointName(_) => None,
    });
    let mut changes = addresses.filter_map(|address| match address {
        Address::SocketAddress(socket) => change_in(&socket.address),
        _ => None,
    });
    Some((service, changes.next()?))
}

/// One allocation for each text, shared by all proxies.
fn interned(text: &str) -> Arc<str> {
    static TEXTS: LazyLock<Mutex<HashSet<Arc<str>>>> = LazyLock::new(Mutex::default);
    let mut texts = TEXTS.lock();
    if let Some(known) = texts.get(text) {
        return known.clone();
    }
    let new: Arc<str> = text.into();
    texts.insert(new.clone());
    new
}
