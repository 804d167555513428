//! The gRPC services: the aggregated one and those of a single type, as tower services for tonic's router.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use api::TypeUrl;
use api::envoy::service::discovery::v3::DiscoveryRequest;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request as HttpRequest, Response as HttpResponse};
use tokio_util::sync::CancellationToken;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Status, body::Body};
use tower::Service;

use crate::body::MessageBody;
use crate::budget::Budget;
use crate::control::{Control, Peer};
use crate::decode::DeltaRequest;
use crate::limits::Limits;
use crate::payload::Protocol;
use crate::requests::Requests;
use crate::session::Terms;
use crate::stream::{self, Request};

/// Options of the server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub limits: Limits,
    /// Limits for all clients together.
    pub budget: Budget,
    /// Sent to clients as the control plane's identifier.
    pub identifier: String,
    /// Ends every stream with `Unavailable`, so that clients reconnect to another server.
    pub stop: CancellationToken,
}

/// All services of the protocol, for a tonic server.
pub fn routes<C: Control>(control: Arc<C>, options: Options) -> Routes {
    let shared = Arc::new(Shared {
        control,
        limits: Arc::new(options.limits),
        budget: options.budget,
        identifier: options.identifier.into(),
        stop: options.stop,
        seed: RandomState::new(),
        streams: AtomicU64::new(0),
    });
    Routes::new(Discovery::<C, Aggregated>::new(&shared))
        .add_service(Discovery::<C, Clusters>::new(&shared))
        .add_service(Discovery::<C, Endpoints>::new(&shared))
        .add_service(Discovery::<C, Listeners>::new(&shared))
        .add_service(Discovery::<C, RouteConfigurations>::new(&shared))
        .add_service(Discovery::<C, Secrets>::new(&shared))
        .add_service(Discovery::<C, Extensions>::new(&shared))
}

/// The method paths of one service.
trait Family: Send + Sync + 'static {
    const NAME: &'static str;
    const STREAM: &'static str;
    const DELTA: &'static str;
    /// The only type served; None for all.
    const ONLY: Option<TypeUrl>;
}

macro_rules! family {
    ($marker:ident, $name:literal, $stream:literal, $delta:literal, $only:expr) => {
        struct $marker;

        impl Family for $marker {
            const NAME: &'static str = $name;
            const STREAM: &'static str = concat!("/", $name, "/", $stream);
            const DELTA: &'static str = concat!("/", $name, "/", $delta);
            const ONLY: Option<TypeUrl> = $only;
        }
    };
}

family!(
    Aggregated,
    "envoy.service.discovery.v3.AggregatedDiscoveryService",
    "StreamAggregatedResources",
    "DeltaAggregatedResources",
    None
);
family!(
    Clusters,
    "envoy.service.cluster.v3.ClusterDiscoveryService",
    "StreamClusters",
    "DeltaClusters",
    Some(TypeUrl::CLUSTER)
);
family!(
    Endpoints,
    "envoy.service.endpoint.v3.EndpointDiscoveryService",
    "StreamEndpoints",
    "DeltaEndpoints",
    Some(TypeUrl::ENDPOINT)
);
family!(
    Listeners,
    "envoy.service.listener.v3.ListenerDiscoveryService",
    "StreamListeners",
    "DeltaListeners",
    Some(TypeUrl::LISTENER)
);
family!(
    RouteConfigurations,
    "envoy.service.route.v3.RouteDiscoveryService",
    "StreamRoutes",
    "DeltaRoutes",
    Some(TypeUrl::ROUTE)
);
family!(
    Secrets,
    "envoy.service.secret.v3.SecretDiscoveryService",
    "StreamSecrets",
    "DeltaSecrets",
    Some(TypeUrl::SECRET)
);
family!(
    Extensions,
    "envoy.service.extension.v3.ExtensionConfigDiscoveryService",
    "StreamExtensionConfigs",
    "DeltaExtensionConfigs",
    Some(TypeUrl::EXTENSION)
);

/// State shared by all services.
struct Shared<C> {
    control: Arc<C>,
    limits: Arc<Limits>,
    budget: Budget,
    identifier: Arc<str>,
    stop: CancellationToken,
    /// Random per process, so that a nonce of one server is unknown to the next.
    seed: RandomState,
    streams: AtomicU64,
}

/// One gRPC service.
struct Discovery<C, F> {
    shared: Arc<Shared<C>>,
    family: PhantomData<fn() -> F>,
}

impl<C, F> Discovery<C, F> {
    fn new(shared: &Arc<Shared<C>>) -> Self {
        Self { shared: Arc::clone(shared), family: PhantomData }
    }
}

impl<C, F> Clone for Discovery<C, F> {
    fn clone(&self) -> Self {
        Self::new(&self.shared)
    }
}

impl<C, F: Family> NamedService for Discovery<C, F> {
    const NAME: &'static str = F::NAME;
}

impl<C: Control, F: Family> Service<HttpRequest<Body>> for Discovery<C, F> {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        let path = request.uri().path();
        let response = if path == F::STREAM {
            self.shared.open::<DiscoveryRequest>(request, Protocol::Sotw, F::ONLY)
        } else if path == F::DELTA {
            self.shared.open::<DeltaRequest>(request, Protocol::Delta, F::ONLY)
        } else {
            Status::unimplemented("").into_http()
        };
        ready(Ok(response))
    }
}

impl<C: Control> Shared<C> {
    /// Starts a stream's task and responds with the body that it feeds.
    fn open<R: Request>(
        &self,
        mut request: HttpRequest<Body>,
        protocol: Protocol,
        only: Option<TypeUrl>,
    ) -> HttpResponse<Body> {
        let headers = std::mem::take(request.headers_mut());
        let extensions = std::mem::take(request.extensions_mut());
        let address = extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        let peer = Peer { address, headers, extensions };
        let terms = Terms {
            protocol,
            only,
            limits: Arc::clone(&self.limits),
            identifier: Arc::clone(&self.identifier),
            stream: self.seed.hash_one(self.streams.fetch_add(1, Ordering::Relaxed)),
            share: self.budget.share(peer.address.map(|address| address.ip())),
        };
        let requests = Requests::new(request.into_body(), Arc::clone(&self.limits), &terms.share);
        let (responses, body) = MessageBody::new();
        let control = Arc::clone(&self.control);
        let stream = stream::run::<C, R>(control, requests, responses, peer, terms, self.stop.clone());
        tokio::spawn(stream);
        let mut response = HttpResponse::new(Body::new(body));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }
}
