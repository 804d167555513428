//! The source (server) of the Mesh Configuration Protocol v1alpha1, of Istio 1.1 to 1.8: config objects of all stores and
//! services of registries, by collection. The client of other servers is `sources/store/mcp`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use api::TypeUrl;
use api::istio::mcp::v1alpha1::Resource as Envelope;
use http::{Request as HttpRequest, Response as HttpResponse};
use model::config::Kind;
use model::config::legacy::SOURCE;
use prost::Message;
use sources::store::mcp::schema::{ESTABLISH, RequestResources, Resources, SERVICE};
use sources::store::mcp::{COLLECTIONS, SYNTHETIC_ENTRIES};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::server::TcpConnectInfo;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;
use tracing::{info, warn};
use xds::Peer;

use crate::serve::configs::Configs;
use crate::serve::session::ControlPlane;
use crate::serve::snapshot_writer::PublishedSnapshot;

/// Further collections of Istio 1.1, which have no objects here: those of Mixer, and Kubernetes' own.
const EMPTY: &[&str] = &[
    "istio/policy/v1beta1/rules",
    "istio/policy/v1beta1/handlers",
    "istio/policy/v1beta1/instances",
    "istio/policy/v1beta1/attributemanifests",
    "istio/config/v1alpha2/adapters",
    "istio/config/v1alpha2/templates",
    "istio/mesh/v1alpha1/MeshConfig",
    "k8s/core/v1/endpoints",
    "k8s/core/v1/namespaces",
    "k8s/core/v1/nodes",
    "k8s/core/v1/pods",
    "k8s/core/v1/services",
    "k8s/extensions/v1beta1/ingresses",
];
/// Names of ServiceEntries that were made from services of registries begin with this.
const SYNTHETIC: &str = "synthetic-";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The gRPC service. Clones share everything.
#[derive(Clone)]
pub(crate) struct McpService {
    pilot: Arc<ControlPlane>,
    stop: CancellationToken,
}

impl McpService {
    pub(crate) fn new(pilot: Arc<ControlPlane>, stop: CancellationToken) -> McpService {
        McpService { pilot, stop }
    }
}

impl NamedService for McpService {
    const NAME: &'static str = SERVICE;
}

impl Service<HttpRequest<Body>> for McpService {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<HttpResponse<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != ESTABLISH {
                return Ok(Status::unimplemented("").into_http());
            }
            let codec = ProstCodec::<Resources, RequestResources>::default();
            Ok(Grpc::new(codec).streaming(service, request).await)
        })
    }
}

impl StreamingService<RequestResources> for McpService {
    type Response = Resources;
    type ResponseStream = ReceiverStream<Result<Resources, Status>>;
    type Future = BoxFuture<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<RequestResources>>) -> Self::Future {
        let service = self.clone();
        Box::pin(service.open(request))
    }
}

impl McpService {
    /// Authenticates the client and starts the task of its stream.
    async fn open(
        self,
        request: Request<Streaming<RequestResources>>,
    ) -> Result<Response<ReceiverStream<Result<Resources, Status>>>, Status> {
        let (metadata, extensions, incoming) = request.into_parts();
        let address = extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        let mut peer = Peer { address, headers: metadata.into_headers(), extensions };
        let checked = self.pilot.authenticated(&mut peer).await?;
        if let Some(first) = self.pilot.missing_sources().first() {
            return Err(Status::unavailable(format!("waiting for source {} to sync", first.0)));
        }
        let configs = self.pilot.readable_configs(&peer)?;
        let snapshots = self.pilot.world().snapshots();
        let send_time = Duration::from_millis(self.pilot.world().now().snapshot.settings.knobs.send_timeout.0);
        let (responses, outgoing) = mpsc::channel(1);
        let session =
            McpSession { incoming, responses, snapshots, configs, collections: BTreeMap::new(), nonces: 0, send_time };
        let ended: BoxFuture<Status> = match checked {
            Some(checked) => Box::pin(checked.ended()),
            None => Box::pin(pending()),
        };
        info!(peer = ?address, "MCP client connected");
        tokio::spawn(async move {
            let reason = session.run(self.stop, ended).await;
            info!(peer = ?address, reason, "MCP client disconnected");
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}

/// One stream.
struct McpSession {
    incoming: Streaming<RequestResources>,
    responses: mpsc::Sender<Result<Resources, Status>>,
    snapshots: watch::Receiver<Arc<PublishedSnapshot>>,
    configs: Arc<Configs>,
    collections: BTreeMap<&'static str, SubscribedCollection>,
    nonces: u64,
    send_time: Duration,
}

/// A collection that the client has requested.
#[derive(Default)]
struct SubscribedCollection {
    incremental: bool,
    /// Names and versions that the client has.
    held: BTreeMap<String, String>,
    /// The nonce of the response that is not acknowledged yet.
    awaited: Option<String>,
    /// The snapshot that was compared last; `None` before the first response.
    compared: Option<u64>,
}

impl McpSession {
    /// Serves the client until either side ends the stream. Returns the reason.
    async fn run(mut self, stop: CancellationToken, mut ended: BoxFuture<Status>) -> String {
        loop {
            let step = tokio::select! {
                () = stop.cancelled() => Err(Status::unavailable("the server is shutting down")),
                status = &mut ended => Err(status),
                changed = self.snapshots.changed() => match changed {
                    Ok(()) => Ok(()),
                    Err(_) => Err(Status::unavailable("the server is shutting down")),
                },
                request = self.incoming.message() => match request {
                    Ok(Some(request)) => self.receive(&request),
                    Ok(None) => return "the client closed the stream".to_owned(),
                    Err(status) => return status.message().to_owned(),
                },
            };
            let step = match step {
                Ok(()) => self.push().await,
                Err(status) => Err(status),
            };
            if let Err(status) = step {
                let reason = status.message().to_owned();
                // If the client reads nothing, it does not get the reason either.
                let _ = self.responses.try_send(Err(status));
                return reason;
            }
        }
    }

    fn receive(&mut self, request: &RequestResources) -> Result<(), Status> {
        let mut known = COLLECTIONS.iter().map(|(name, _)| *name).chain(EMPTY.iter().copied());
        let Some(name) = known.find(|name| *name == request.collection) else {
            let shown: String = request.collection.chars().take(100).collect();
            return Err(Status::invalid_argument(format!("unsupported collection {shown:?}")));
        };
        if request.response_nonce.is_empty() {
            let held = if request.incremental { request.initial_resource_versions.clone() } else { BTreeMap::new() };
            let fresh = SubscribedCollection { incremental: request.incremental, held, ..Default::default() };
            self.collections.insert(name, fresh);
            return Ok(());
        }
        let Some(collection) = self.collections.get_mut(name) else { return Ok(()) };
        if collection.awaited.as_ref() == Some(&request.response_nonce) {
            collection.awaited = None;
            if let Some(error) = &request.error_detail {
                let message: String = error.message.chars().take(300).collect();
                warn!(collection = name, message, "MCP client rejected a collection; sending its next change");
            }
        }
        Ok(())
    }

    /// Sends every collection that the client lacks.
    async fn push(&mut self) -> Result<(), Status> {
        let published = self.snapshots.borrow_and_update().clone();
        let names: Vec<&'static str> = self.collections.keys().copied().collect();
        for name in names {
            let Some(collection) = self.collections.get_mut(name) else { continue };
            if collection.awaited.is_some() || collection.compared == Some(published.number) {
                continue;
            }
            let resources = resources(&self.configs, &published, name);
            let Some(mut response) = collection.response(&published, name, resources) else { continue };
            self.nonces += 1;
            response.nonce = self.nonces.to_string();
            collection.awaited = Some(response.nonce.clone());
            match timeout(self.send_time, self.responses.send(Ok(response))).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Status::cancelled("the client closed the stream")),
                Err(_) => return Err(Status::deadline_exceeded("the client does not read responses")),
            }
        }
        Ok(())
    }
}

impl SubscribedCollection {
    /// The response that updates the client; `None` if it is.
    fn response(&mut self, published: &PublishedSnapshot, name: &str, found: Vec<Envelope>) -> Option<Resources> {
        let versions: BTreeMap<String, String> = found.iter().filter_map(identity).collect();
        let is_first = self.compared.replace(published.number).is_none();
        if !is_first && versions == self.held {
            return None;
        }
        let is_new = |resource: &Envelope| {
            identity(resource).is_some_and(|(name, version)| self.held.get(&name) != Some(&version))
        };
        let mut response = Resources {
            system_version_info: published.number.to_string(),
            collection: name.to_owned(),
            incremental: self.incremental,
            ..Resources::default()
        };
        if self.incremental {
            response.removed_resources =
                self.held.keys().filter(|name| !versions.contains_key(*name)).cloned().collect();
            response.resources = found.into_iter().filter(is_new).collect();
        } else {
            response.resources = found;
        }
        self.held = versions;
        Some(response)
    }
}

/// Name and version of a resource.
fn identity(resource: &Envelope) -> Option<(String, String)> {
    resource.metadata.as_ref().map(|metadata| (metadata.name.clone(), metadata.version.clone()))
}

/// The resources of a collection. Their versions are hashes, because objects of files have none.
fn resources(configs: &Configs, published: &PublishedSnapshot, collection: &str) -> Vec<Envelope> {
    let Some((_, kind)) = COLLECTIONS.iter().find(|(name, _)| *name == collection) else { return Vec::new() };
    let version = kind.versions().first().copied().unwrap_or("v1");
    let set = configs.set(published, &TypeUrl::from(format!("{}/{version}/{kind}", kind.group())));
    let of_set = set.iter().flat_map(|set| set.resources());
    let opened = of_set.filter_map(|resource| {
        let mut envelope = Envelope::decode(resource.body.joined()).ok()?;
        envelope.metadata.as_mut()?.version = resource.version.to_string();
        Some(envelope)
    });
    opened.filter(|envelope| is_of_collection(envelope, collection, *kind)).collect()
}

/// Services of registries have their own collection. What policies of old kinds became is left out, because the policies
/// themselves are in a collection.
fn is_of_collection(envelope: &Envelope, collection: &str, kind: Kind) -> bool {
    let Some(metadata) = &envelope.metadata else { return false };
    match kind {
        Kind::ServiceEntry => {
            let name = metadata.name.rsplit('/').next().unwrap_or_default();
            name.starts_with(SYNTHETIC) == (collection == SYNTHETIC_ENTRIES)
        }
        Kind::PeerAuthentication | Kind::RequestAuthentication | Kind::AuthorizationPolicy => {
            !metadata.annotations.contains_key(SOURCE)
        }
        _ => true,
    }
}
