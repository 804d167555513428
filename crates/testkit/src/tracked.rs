//! A simulated Envoy that keeps what it accepts: it asks for the load assignments of discovered clusters and for the route
//! tables of its listeners, drops those that are no longer referred to, and takes its time to answer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use api::envoy::config::core::v3::Node;
use api::envoy::config::listener::v3::Listener;
use api::envoy::service::discovery::v3::DeltaDiscoveryResponse;
use api::{Struct, TypeUrl, Value, value};
use parking_lot::Mutex;
use prost::Message;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::Endpoint;
use xds::client::{DeltaClient, Held, HeldResource};

use crate::fleet::decoded::routes_of;

/// How a tracked proxy behaves.
#[derive(Clone, Debug, Default)]
pub struct TrackedOptions {
    /// `TYPE~ADDRESS~NAME.NAMESPACE~DOMAIN`.
    pub node: String,
    pub labels: Vec<(String, String)>,
    /// The service account in its metadata; empty for none.
    pub account: String,
    /// Milliseconds before it applies and acknowledges a response.
    pub delay: Range<u64>,
    /// Rejects route tables that contain this text.
    pub rejects: Option<String>,
}

/// A proxy that is connected until it is dropped.
pub struct TrackedProxy {
    state: Arc<Mutex<TrackedState>>,
    stream: JoinHandle<()>,
}

#[derive(Default)]
struct TrackedState {
    held: Held,
    applied: Option<Instant>,
}

/// Versions by type and name.
pub type HeldVersionsByType = BTreeMap<String, BTreeMap<String, String>>;

impl TrackedProxy {
    pub fn connect(server: SocketAddr, options: TrackedOptions) -> TrackedProxy {
        let state = Arc::<Mutex<TrackedState>>::default();
        let shared = state.clone();
        let stream = tokio::spawn(async move {
            if let Err(status) = run(server, &options, &shared).await {
                eprintln!("the stream of {} ended: {status}", options.node);
            }
        });
        TrackedProxy { state, stream }
    }

    /// Versions of everything that it has.
    pub fn versions(&self) -> HeldVersionsByType {
        let version = |(name, held): (&String, &HeldResource)| (name.clone(), held.version.clone());
        let state = self.state.lock();
        let types = state.held.iter().filter(|(_, of)| !of.is_empty());
        types.map(|(kind, of)| (kind.short().to_owned(), of.iter().map(version).collect())).collect()
    }

    /// Whether a resource of a type contains this text.
    pub fn contains(&self, kind: &TypeUrl, text: &str) -> bool {
        let state = self.state.lock();
        let bodies = state.held.get(kind).into_iter().flat_map(|of| of.values());
        let text = text.as_bytes();
        bodies.into_iter().any(|held| held.resource.value.windows(text.len()).any(|part| part == text))
    }

    /// When it last applied something.
    pub fn applied(&self) -> Option<Instant> {
        self.state.lock().applied
    }
}

impl Drop for TrackedProxy {
    fn drop(&mut self) {
        self.stream.abort();
    }
}

fn node(options: &TrackedOptions) -> Node {
    let text = |text: &str| Value { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let labels = options.labels.iter().map(|(key, value)| (key.clone(), text(value))).collect();
    let namespace = options.node.split('~').nth(2).and_then(|id| id.rsplit('.').next()).unwrap_or_default();
    let mut fields = BTreeMap::from([
        ("NAMESPACE".to_owned(), text(namespace)),
        ("LABELS".to_owned(), Value { kind: Some(value::Kind::StructValue(Struct { fields: labels })) }),
    ]);
    if !options.account.is_empty() {
        fields.insert("SERVICE_ACCOUNT".to_owned(), text(&options.account));
    }
    Node { id: options.node.clone(), metadata: Some(Struct { fields }), ..Node::default() }
}

async fn run(server: SocketAddr, options: &TrackedOptions, state: &Mutex<TrackedState>) -> Result<(), Status> {
    let endpoint = Endpoint::from_shared(format!("http://{server}"));
    let endpoint = endpoint.unwrap_or_else(|e| panic!("{server} is no address: {e}"));
    let channel = endpoint.connect().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut client = DeltaClient::open(channel, node(options), Held::default(), &TypeUrl::CLUSTER, &[]).await?;
    client.subscribe(&TypeUrl::LISTENER, &[]);
    let mut names: BTreeMap<TypeUrl, BTreeSet<String>> = BTreeMap::new();
    while let Some(response) = client.next().await? {
        if !options.delay.is_empty() {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(options.delay.clone()))).await;
        }
        let is_bad = |text: &String| {
            let bodies = response.resources.iter().filter_map(|resource| resource.resource.as_ref());
            let mut bodies = bodies.filter(|any| any.type_url == TypeUrl::ROUTE.as_str());
            bodies.any(|any| any.value.windows(text.len()).any(|part| part == text.as_bytes()))
        };
        if options.rejects.as_ref().is_some_and(is_bad) {
            client.nack(&response, "this route is not wanted");
            continue;
        }
        // Recorded before the server can know: an acknowledgement follows.
        let kind = TypeUrl::from(response.type_url.clone());
        let is_named = kind == TypeUrl::ENDPOINT || kind == TypeUrl::ROUTE;
        // An Envoy ignores resources that it no longer subscribes to.
        let wanted = if is_named { Some(names.get(&kind).cloned().unwrap_or_default()) } else { None };
        apply(state, &response, wanted.as_ref());
        client.ack(&response);
        let of_kind = client.held.get(&kind).cloned().unwrap_or_default();
        if kind == TypeUrl::CLUSTER {
            let discovered = of_kind.iter().filter(|(_, held)| is_discovered(held)).map(|(name, _)| name.clone());
            follow(&mut client, state, &mut names, TypeUrl::ENDPOINT, discovered.collect());
        }
        if kind == TypeUrl::LISTENER {
            let tables = of_kind
                .values()
                .flat_map(|held| routes_of(&Listener::decode(&*held.resource.value).unwrap_or_default()));
            follow(&mut client, state, &mut names, TypeUrl::ROUTE, tables.collect());
        }
    }
    Ok(())
}

fn apply(state: &Mutex<TrackedState>, response: &DeltaDiscoveryResponse, wanted: Option<&BTreeSet<String>>) {
    let mut state = state.lock();
    let held = state.held.entry(TypeUrl::from(response.type_url.clone())).or_default();
    let is_wanted = |name: &String| wanted.is_none_or(|wanted| wanted.contains(name));
    for resource in response.resources.iter().filter(|resource| is_wanted(&resource.name)) {
        let body = resource.resource.clone().unwrap_or_default();
        held.insert(resource.name.clone(), HeldResource { version: resource.version.clone(), resource: body });
    }
    response.removed_resources.iter().for_each(|name| drop(held.remove(name)));
    state.applied = Some(Instant::now());
}

/// Subscribes to what is referred to, and drops the rest.
fn follow(
    client: &mut DeltaClient,
    state: &Mutex<TrackedState>,
    names: &mut BTreeMap<TypeUrl, BTreeSet<String>>,
    kind: TypeUrl,
    wanted: BTreeSet<String>,
) {
    let known = names.entry(kind.clone()).or_default();
    let new: Vec<&str> = wanted.difference(known).map(String::as_str).collect();
    let old: Vec<&str> = known.difference(&wanted).map(String::as_str).collect();
    if !new.is_empty() {
        client.subscribe(&kind, &new);
    }
    if !old.is_empty() {
        client.unsubscribe(&kind, &old);
        if let Some(held) = state.lock().held.get_mut(&kind) {
            held.retain(|name, _| !old.contains(&name.as_str()));
        }
    }
    *known = wanted;
}

fn is_discovered(held: &HeldResource) -> bool {
    let cluster = Cluster::decode(&*held.resource.value).unwrap_or_default();
    matches!(cluster.cluster_discovery_type, Some(ClusterDiscoveryType::Type(kind)) if kind == DiscoveryType::Eds as i32)
}
