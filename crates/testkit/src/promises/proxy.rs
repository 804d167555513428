//! A simulated proxy that records everything: it subscribes as an Envoy does, over either transport, returns after its
//! stream ends with the versions it holds, and rejects some responses on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use api::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use xds::client::{DeltaClient, Held, SotwClient};
use xxhash_rust::xxh3::xxh3_64;

use super::content::{self, ResourceKind, ResponseContent};
use super::history::{Event, HeldHashes, History, ProxyName};
use super::planted::Planted;
use crate::envoy::XdsTransport;
use crate::fleet::decoded::route_names_in;

/// Wait before a new stream.
const BACK_OFF: Duration = Duration::from_millis(100);
/// A connection that answers no ping for this long is given up, as Envoy's bootstrap has it.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// Where a proxy connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyTarget {
    pub address: SocketAddr,
    pub replica: usize,
}

pub struct ProxyOptions {
    pub name: ProxyName,
    pub node: Node,
    pub transport: XdsTransport,
    /// Of 100 responses, how many it rejects.
    pub rejects: u8,
    /// Names of secrets that it asks for.
    pub secrets: Vec<String>,
    pub seed: u64,
    pub planted: Option<Planted>,
}

impl ProxyOptions {
    /// An honest sidecar.
    pub fn sidecar(name: &str, number: usize, transport: XdsTransport) -> ProxyOptions {
        let node = crate::fleet::node("sidecar", number, name);
        let (rejects, secrets, seed, planted) = Default::default();
        ProxyOptions { name: name.into(), node, transport, rejects, secrets, seed, planted }
    }
}

/// Opens connections for a proxy: a channel, and the number of the replica at its other end.
pub type Dial = Box<dyn Fn() -> DialedChannel + Send + Sync>;

/// A connection under way.
pub type DialedChannel = Pin<Box<dyn Future<Output = Result<(Channel, usize), Status>> + Send>>;

/// A running proxy; disconnected on drop.
pub struct RecordedProxy {
    name: ProxyName,
    state: Arc<ProxyTask>,
    task: JoinHandle<()>,
}

struct ProxyTask {
    history: History,
    options: Mutex<ProxyOptions>,
    name: ProxyName,
    /// Held by a delta proxy between streams.
    held: Mutex<Held>,
    /// Hashes of everything that was accepted.
    hashes: Mutex<HeldHashes>,
    /// Endpoints of each cluster that was accepted.
    endpoints: Mutex<BTreeMap<String, BTreeSet<String>>>,
    random: Mutex<fastrand::Rng>,
}

impl RecordedProxy {
    /// Connects to a target, and returns after each end of its stream.
    pub fn start(history: &History, options: ProxyOptions, target: watch::Receiver<ProxyTarget>) -> RecordedProxy {
        let dial = move || {
            let target = *target.borrow();
            let connected: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(connect(target));
            connected
        };
        Self::start_with(history, options, Box::new(dial))
    }

    /// The same, with connections of another kind.
    pub fn start_with(history: &History, options: ProxyOptions, dial: Dial) -> RecordedProxy {
        let name = options.name.clone();
        let random = Mutex::new(fastrand::Rng::with_seed(options.seed));
        let state = Arc::new(ProxyTask {
            history: history.clone(),
            name: name.clone(),
            options: Mutex::new(options),
            held: Mutex::default(),
            hashes: Mutex::default(),
            endpoints: Mutex::default(),
            random,
        });
        let task = tokio::spawn(run(state.clone(), dial));
        RecordedProxy { name, state, task }
    }

    pub fn name(&self) -> &ProxyName {
        &self.name
    }

    /// Hashes of everything that it holds.
    pub fn held(&self) -> HeldHashes {
        self.state.hashes.lock().clone()
    }

    /// The endpoints that it uses for a cluster.
    pub fn endpoints(&self, cluster: &str) -> BTreeSet<String> {
        self.state.endpoints.lock().get(cluster).cloned().unwrap_or_default()
    }

    /// Of 100 responses, rejects this many from now on.
    pub fn reject(&self, share: u8) {
        self.state.options.lock().rejects = share;
    }
}

impl Drop for RecordedProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(state: Arc<ProxyTask>, dial: Dial) {
    loop {
        // The reason of the end does not matter: an Envoy returns after any.
        if let Ok((channel, replica)) = dial().await {
            let _ = state.exchange(channel, replica).await;
        }
        state.history.record(Event::Disconnected { proxy: state.name.clone() });
        tokio::time::sleep(BACK_OFF).await;
    }
}

async fn connect(target: ProxyTarget) -> Result<(Channel, usize), Status> {
    let endpoint = Endpoint::from_shared(format!("http://{}", target.address));
    let endpoint = endpoint.unwrap_or_else(|e| panic!("{} is no address: {e}", target.address));
    let endpoint = endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
    let endpoint = endpoint.keep_alive_while_idle(true).connect_timeout(PING_TIMEOUT);
    let channel = endpoint.connect().await.map_err(|error| Status::unavailable(error.to_string()))?;
    Ok((channel, target.replica))
}

impl ProxyTask {
    async fn exchange(&self, channel: Channel, replica: usize) -> Result<(), Status> {
        let (node, transport) = {
            let options = self.options.lock();
            (options.node.clone(), options.transport)
        };
        match transport {
            XdsTransport::Delta => self.delta(channel, node, replica).await,
            XdsTransport::Sotw => self.sotw(channel, node, replica).await,
        }
    }

    async fn delta(&self, channel: Channel, node: Node, replica: usize) -> Result<(), Status> {
        let held = self.held.lock().clone();
        let (endpoints, routes) = (endpoint_names(&held), route_names(&held));
        let returns = !held.is_empty();
        let mut client = DeltaClient::open(channel, node, held, &TypeUrl::CLUSTER, &[]).await?;
        self.history.record(Event::Connected { proxy: self.name.clone(), replica });
        let mut asked = DeltaAsked::default();
        if returns {
            let _ = asked.endpoints(&mut client, endpoints);
            client.subscribe(&TypeUrl::LISTENER, &[]);
            asked.has_listeners = true;
            let _ = asked.routes(&mut client, routes);
        }
        let secrets = self.options.lock().secrets.clone();
        if !secrets.is_empty() {
            client.subscribe(&TypeUrl::SECRET, &secrets.iter().map(String::as_str).collect::<Vec<_>>());
        }
        while let Some(response) = client.next().await? {
            let accepts = self.receive(content::of_delta(&response, self.history.markers()));
            if accepts {
                client.ack(&response);
                if let Some((kind, names)) = asked.follow(&mut client, &response) {
                    self.drop_resources(kind, names);
                }
                // Sent before the server knew that they are no longer needed.
                if let Some((kind, names)) = asked.not_asked_for(&mut client, &response) {
                    self.drop_resources(kind, names);
                }
                *self.held.lock() = client.held.clone();
            } else {
                client.nack(&response, "rejected by the test");
            }
        }
        Ok(())
    }

    async fn sotw(&self, channel: Channel, node: Node, replica: usize) -> Result<(), Status> {
        let mut client = SotwClient::open(channel, node, &TypeUrl::CLUSTER, &[]).await?;
        self.history.record(Event::Connected { proxy: self.name.clone(), replica });
        let secrets = self.options.lock().secrets.clone();
        if !secrets.is_empty() {
            client.subscribe(&TypeUrl::SECRET, &secrets.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let mut asked: BTreeMap<ResourceKind, BTreeSet<String>> = BTreeMap::new();
        while let Some(response) = client.next().await? {
            let accepts = self.receive(content::of_sotw(&response, self.history.markers()));
            if accepts {
                client.ack(&response);
                asked.extend(follow_sotw(&mut client, &response));
                // Also what was sent before the server knew that it is no longer needed.
                for (kind, names) in &asked {
                    let held = self.hashes.lock().get(kind).cloned().unwrap_or_default();
                    self.drop_resources(*kind, held.into_keys().filter(|name| !names.contains(name)).collect());
                }
            } else {
                client.nack(&response, "rejected by the test");
            }
        }
        Ok(())
    }

    /// Records a response and the answer to it. Returns whether it is accepted.
    fn receive(&self, response: Option<ResponseContent>) -> bool {
        let Some(response) = response else { return true };
        let mut options = self.options.lock();
        let accepts = self.random.lock().u8(..100) >= options.rejects;
        if accepts {
            self.hold(&response);
        }
        let (kind, nonce) = (response.kind, response.nonce.clone());
        let altered = match &mut options.planted {
            Some(planted) => planted.alter(response),
            None => vec![response],
        };
        for response in altered {
            self.history.record(Event::Received { proxy: self.name.clone(), response });
        }
        let accepted = options.planted.as_ref().map_or(accepts, |planted| planted.answer(accepts));
        // The record precedes the message, so the server cannot know of an answer that is not recorded.
        self.history.record(Event::Answered { proxy: self.name.clone(), kind, nonce, accepted });
        accepts
    }

    /// Forgets resources that are no longer subscribed to.
    fn drop_resources(&self, kind: ResourceKind, names: Vec<String>) {
        if names.is_empty() {
            return;
        }
        if let Some(held) = self.hashes.lock().get_mut(&kind) {
            held.retain(|name, _| !names.contains(name));
        }
        self.history.record(Event::Dropped { proxy: self.name.clone(), kind, names });
    }

    fn hold(&self, response: &ResponseContent) {
        let mut hashes = self.hashes.lock();
        let held = hashes.entry(response.kind).or_default();
        if response.is_complete {
            held.clear();
        }
        held.extend(response.resources.iter().map(|resource| (resource.name.clone(), resource.hash)));
        held.retain(|name, _| !response.removed.contains(name));
        let mut endpoints = self.endpoints.lock();
        match response.kind {
            ResourceKind::Endpoints => {
                let all = response.resources.iter();
                endpoints.extend(all.map(|resource| (resource.name.clone(), resource.endpoints.clone())));
            }
            ResourceKind::Clusters => endpoints.retain(|name, _| held.contains_key(name)),
            _ => {}
        }
        endpoints.retain(|name, _| !response.removed.contains(name));
    }
}

/// Endpoints that the held clusters need, whether they are held or not.
fn endpoint_names(held: &Held) -> BTreeSet<String> {
    let clusters = held.get(&TypeUrl::CLUSTER).into_iter().flatten();
    clusters.map(|(name, _)| name).filter(|name| name.starts_with("outbound|")).cloned().collect()
}

/// Route tables that the held listeners need.
fn route_names(held: &Held) -> BTreeSet<String> {
    let listeners = held.get(&TypeUrl::LISTENER).into_iter().flatten();
    listeners.flat_map(|(_, held)| route_names_in(&held.resource.value)).collect()
}

/// What a delta stream has asked for.
#[derive(Default)]
struct DeltaAsked {
    endpoints: BTreeSet<String>,
    routes: BTreeSet<String>,
    has_listeners: bool,
}

impl DeltaAsked {
    /// Clusters are followed by their endpoints and by listeners, listeners by their routes. Returns what is no longer
    /// subscribed to.
    fn follow(&mut self, client: &mut DeltaClient, response: &DeltaDiscoveryResponse) -> Option<DroppedNames> {
        match ResourceKind::of(&response.type_url)? {
            ResourceKind::Clusters => {
                let names = endpoint_names(&client.held);
                let dropped = self.endpoints(client, names);
                if !self.has_listeners {
                    self.has_listeners = true;
                    client.subscribe(&TypeUrl::LISTENER, &[]);
                }
                Some((ResourceKind::Endpoints, dropped))
            }
            ResourceKind::Listeners => {
                let names = route_names(&client.held);
                Some((ResourceKind::Routes, self.routes(client, names)))
            }
            _ => None,
        }
    }

    /// Forgets resources of a response that are not subscribed to, and returns their names.
    fn not_asked_for(&self, client: &mut DeltaClient, response: &DeltaDiscoveryResponse) -> Option<DroppedNames> {
        let kind = ResourceKind::of(&response.type_url)?;
        let asked = match kind {
            ResourceKind::Endpoints => &self.endpoints,
            ResourceKind::Routes => &self.routes,
            _ => return None,
        };
        let held = client.held.get_mut(&TypeUrl::from(response.type_url.clone()))?;
        held.retain(|name, _| asked.contains(name));
        let names = response.resources.iter().map(|resource| resource.name.clone());
        Some((kind, names.filter(|name| !asked.contains(name)).collect()))
    }

    fn endpoints(&mut self, client: &mut DeltaClient, names: BTreeSet<String>) -> Vec<String> {
        change(client, &TypeUrl::ENDPOINT, &mut self.endpoints, names)
    }

    fn routes(&mut self, client: &mut DeltaClient, names: BTreeSet<String>) -> Vec<String> {
        change(client, &TypeUrl::ROUTE, &mut self.routes, names)
    }
}

/// Names of a type that are no longer subscribed to.
type DroppedNames = (ResourceKind, Vec<String>);

/// Changes the names that are subscribed to, and returns those that are no longer. Without any name nothing is subscribed:
/// it would mean everything.
fn change(
    client: &mut DeltaClient,
    kind: &TypeUrl,
    asked: &mut BTreeSet<String>,
    names: BTreeSet<String>,
) -> Vec<String> {
    let added: Vec<&str> = names.difference(asked).map(String::as_str).collect();
    if !added.is_empty() {
        client.subscribe(kind, &added);
    }
    let dropped: Vec<String> = asked.difference(&names).cloned().collect();
    if !dropped.is_empty() {
        client.unsubscribe(kind, &dropped.iter().map(String::as_str).collect::<Vec<_>>());
    }
    *asked = names;
    dropped
}

/// Subscribes to what a response refers to. Returns all names of the type that are subscribed to now.
fn follow_sotw(client: &mut SotwClient, response: &DiscoveryResponse) -> Option<(ResourceKind, BTreeSet<String>)> {
    match ResourceKind::of(&response.type_url)? {
        ResourceKind::Clusters => {
            let names = response.resources.iter().map(|any| content::name_in(&any.value));
            let names: BTreeSet<String> = names.filter(|name| name.starts_with("outbound|")).collect();
            client.subscribe(&TypeUrl::ENDPOINT, &names.iter().map(String::as_str).collect::<Vec<_>>());
            client.subscribe(&TypeUrl::LISTENER, &[]);
            Some((ResourceKind::Endpoints, names))
        }
        ResourceKind::Listeners => {
            let names: BTreeSet<String> =
                response.resources.iter().flat_map(|any| route_names_in(&any.value)).collect();
            client.subscribe(&TypeUrl::ROUTE, &names.iter().map(String::as_str).collect::<Vec<_>>());
            Some((ResourceKind::Routes, names))
        }
        _ => None,
    }
}

/// What a proxy holds in the end, if `resources` has everything: names and contents of a type, all or those named.
pub fn held_of(resources: impl Fn(&TypeUrl, &[String]) -> Vec<(String, Bytes)>) -> HeldHashes {
    let (clusters, listeners) = (resources(&TypeUrl::CLUSTER, &[]), resources(&TypeUrl::LISTENER, &[]));
    let endpoints: Vec<String> =
        clusters.iter().map(|(name, _)| name.clone()).filter(|name| name.starts_with("outbound|")).collect();
    let routes: BTreeSet<String> = listeners.iter().flat_map(|(_, body)| route_names_in(body)).collect();
    let routes: Vec<String> = routes.into_iter().collect();
    let named = |kind: &TypeUrl, names: &[String]| if names.is_empty() { Vec::new() } else { resources(kind, names) };
    let hashes = |all: Vec<(String, Bytes)>| all.into_iter().map(|(name, body)| (name, xxh3_64(&body))).collect();
    BTreeMap::from([
        (ResourceKind::Endpoints, hashes(named(&TypeUrl::ENDPOINT, &endpoints))),
        (ResourceKind::Routes, hashes(named(&TypeUrl::ROUTE, &routes))),
        (ResourceKind::Clusters, hashes(clusters)),
        (ResourceKind::Listeners, hashes(listeners)),
    ])
}
