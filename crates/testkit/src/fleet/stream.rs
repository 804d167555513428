//! One stream of a simulated proxy, delta or state of the world: it asks for clusters, their endpoints, listeners and
//! their routes, as an Envoy does, and accepts everything.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use api::{Any, TypeUrl};
use hyper_util::rt::TokioIo;
use prost::Message;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use xds::client::{DeltaClient, Held, SotwClient};

use super::decoded::{name_of, route_names};
use super::proxy::{Delivered, Delivery, Pace, Profile, Received, TYPES};
use super::throttled::ThrottledStream;
use crate::envoy::XdsTransport;

/// Flow-control windows like those of an Envoy that reads quickly.
const WINDOW: u32 = 1 << 20;
/// The window of a proxy that reads slowly: the server sees each few kilobytes that it reads.
const SLOW_WINDOW: u32 = 4096;
/// Wait of a slow proxy before it connects again.
const BACK_OFF: Duration = Duration::from_secs(1);

pub(super) struct ProxyStream {
    pub(super) server: SocketAddr,
    pub(super) profile: Profile,
    pub(super) received: Arc<Received>,
}

impl ProxyStream {
    /// Runs one stream; a slow proxy connects again whenever its stream ends.
    pub(super) async fn run(self) {
        loop {
            let open = Open(&self.received.is_open);
            let ended = self.exchange().await;
            drop(open);
            self.received.ended.fetch_add(1, Ordering::Relaxed);
            if self.profile.pace == Pace::Full {
                if let Err(status) = ended {
                    eprintln!("the stream of {} ended: {status}", self.profile.node.id);
                }
                return;
            }
            tokio::time::sleep(BACK_OFF).await;
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
            Pace::Slow { bytes_a_second } => {
                let taken = self.received.taken.clone();
                let connect = move |_| {
                    let taken = taken.clone();
                    async move { ThrottledStream::connect(server, bytes_a_second, taken).await.map(TokioIo::new) }
                };
                let endpoint = endpoint.initial_stream_window_size(SLOW_WINDOW);
                endpoint.connect_with_connector(tower::service_fn(connect)).await
            }
        };
        connected.map_err(|error| Status::unavailable(error.to_string()))
    }

    async fn exchange(&self) -> Result<(), Status> {
        let held = self.received.held();
        let returns = !held.is_empty();
        let names: Vec<Vec<String>> = TYPES.iter().map(|kind| returning_names(&held, kind)).collect();
        let mut client = Client::open(self.channel().await?, &self.profile, held).await?;
        self.received.is_open.store(true, Ordering::Relaxed);
        if returns {
            // An Envoy that returns asks for all that it holds at once.
            for (kind, names) in TYPES.iter().zip(&names).skip(1) {
                if *kind == TypeUrl::LISTENER || !names.is_empty() {
                    client.subscribe(kind, names.iter().map(String::as_str));
                }
            }
            self.received.note_synced();
        }
        client.forget_held();
        let mut progress = Progress::default();
        while let Some(delivery) = client.next().await? {
            if !returns && progress.seen.insert(delivery.kind.clone()) {
                progress.subscribe_further(&mut client, &delivery);
            }
            self.received.note(&delivery);
            if progress.is_synced() {
                self.received.note_synced();
            }
        }
        Ok(())
    }
}

/// Marks a stream as closed when it ends, also by being aborted.
struct Open<'a>(&'a AtomicBool);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The names of a type that a proxy subscribes to when it returns; none for types of which it wants everything.
fn returning_names(held: &Held, kind: &TypeUrl) -> Vec<String> {
    match *kind == TypeUrl::ENDPOINT || *kind == TypeUrl::ROUTE {
        true => held.get(kind).into_iter().flat_map(|held| held.keys().cloned()).collect(),
        false => Vec::new(),
    }
}

/// Which types a stream has received, and which it waits for.
struct Progress {
    seen: HashSet<TypeUrl>,
    awaited: BTreeSet<TypeUrl>,
}

impl Default for Progress {
    fn default() -> Self {
        Progress { seen: HashSet::new(), awaited: BTreeSet::from([TypeUrl::CLUSTER, TypeUrl::LISTENER]) }
    }
}

impl Progress {
    fn is_synced(&self) -> bool {
        self.awaited.iter().all(|kind| self.seen.contains(kind))
    }

    /// Clusters are followed by their endpoints and by listeners, listeners by their routes.
    fn subscribe_further(&mut self, client: &mut Client, delivery: &Delivery) {
        if delivery.kind == TypeUrl::CLUSTER {
            let names = delivery.resources.iter().map(|resource| &*resource.name);
            let outbound = names.filter(|name| name.starts_with("outbound|"));
            if outbound.clone().next().is_some() {
                client.subscribe(&TypeUrl::ENDPOINT, outbound);
                self.awaited.insert(TypeUrl::ENDPOINT);
            }
            client.subscribe(&TypeUrl::LISTENER, [].into_iter());
        }
        if delivery.kind == TypeUrl::LISTENER {
            let names = route_names(delivery.resources.iter().map(|resource| &*resource.body));
            if !names.is_empty() {
                client.subscribe(&TypeUrl::ROUTE, names.iter().map(String::as_str));
                self.awaited.insert(TypeUrl::ROUTE);
            }
        }
    }
}

/// A client of either transport.
enum Client {
    Delta(DeltaClient),
    Sotw(SotwClient),
}

impl Client {
    async fn open(channel: Channel, profile: &Profile, held: Held) -> Result<Client, Status> {
        let node = profile.node.clone();
        Ok(match profile.transport {
            XdsTransport::Delta => Client::Delta(DeltaClient::open(channel, node, held, &TypeUrl::CLUSTER, &[]).await?),
            XdsTransport::Sotw => Client::Sotw(SotwClient::open(channel, node, &TypeUrl::CLUSTER, &[]).await?),
        })
    }

    /// Frees the versions of the stream before, which have been sent. `Received` keeps what comes next.
    fn forget_held(&mut self) {
        if let Client::Delta(client) = self {
            client.held = Held::default();
        }
    }

    fn subscribe<'a>(&mut self, kind: &TypeUrl, names: impl Iterator<Item = &'a str>) {
        let names: Vec<&str> = names.collect();
        match self {
            Client::Delta(client) => client.subscribe(kind, &names),
            Client::Sotw(client) => client.subscribe(kind, &names),
        }
    }

    /// The next response, accepted.
    async fn next(&mut self) -> Result<Option<Delivery>, Status> {
        let body = |resource: Option<Any>| resource.unwrap_or_default().value;
        Ok(match self {
            Client::Delta(client) => client.next().await?.map(|response| {
                client.send(DeltaDiscoveryRequest {
                    type_url: response.type_url.clone(),
                    response_nonce: response.nonce.clone(),
                    ..Default::default()
                });
                let bytes = response.encoded_len();
                let resources = response.resources.into_iter();
                let resources = resources.map(|resource| Delivered {
                    name: resource.name,
                    version: resource.version,
                    body: body(resource.resource),
                });
                let (kind, resources) = (response.type_url.into(), resources.collect());
                Delivery { kind, resources, removed: response.removed_resources, bytes }
            }),
            Client::Sotw(client) => client.next().await?.map(|response| {
                client.ack(&response);
                let bytes = response.encoded_len();
                let resources = response.resources.into_iter().map(|resource| Delivered {
                    name: name_of(&resource.value),
                    version: response.version_info.clone(),
                    body: resource.value,
                });
                let (kind, resources) = (response.type_url.clone().into(), resources.collect());
                Delivery { kind, resources, removed: Vec::new(), bytes }
            }),
        })
    }
}
