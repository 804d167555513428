//! gRPC services of the plain-text and the TLS port: xDS, the Mesh Configuration Protocol, health and reflection.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower::Service;
use xds::{Budget, Charge, Limits, Options};

use crate::serve::mcp::McpService;
use crate::serve::session::ControlPlane;
use crate::trust::service::CertificateService;

/// Proto files of the xDS services: ADS and the services of single types.
const FILES: &[&str] = &[
    "envoy/service/discovery/v3/ads.proto",
    "envoy/service/cluster/v3/cds.proto",
    "envoy/service/endpoint/v3/eds.proto",
    "envoy/service/listener/v3/lds.proto",
    "envoy/service/route/v3/rds.proto",
    "envoy/service/secret/v3/sds.proto",
    "envoy/service/extension/v3/config_discovery.proto",
];
/// Services that reflection lists.
const SERVED: &[&str] = &[
    ADS,
    "envoy.service.cluster.v3.ClusterDiscoveryService",
    "envoy.service.endpoint.v3.EndpointDiscoveryService",
    "envoy.service.listener.v3.ListenerDiscoveryService",
    "envoy.service.route.v3.RouteDiscoveryService",
    "envoy.service.secret.v3.SecretDiscoveryService",
    "envoy.service.extension.v3.ExtensionConfigDiscoveryService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];
const COMPLETE: &str = "the committed descriptor set is complete; a test decodes it";
const ADS: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";

/// All gRPC services. Cancelling `stop` ends every stream, so that clients reconnect elsewhere.
pub(crate) fn routes(
    pilot: Arc<ControlPlane>,
    identifier: String,
    budget: Budget,
    stop: CancellationToken,
) -> ChargedRoutes {
    let (reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(report(reporter, pilot.clone(), stop.clone()));
    let newer = LazyService::new(|| reflection().build_v1().expect(COMPLETE));
    // For tools from before 2023, such as old versions of grpcurl.
    let older = LazyService::new(|| reflection().build_v1alpha().expect(COMPLETE));
    let send_time = Duration::from_millis(pilot.world().now().snapshot.settings.knobs.send_timeout.0);
    let limits = Limits { send_time, ..Limits::default() };
    let mcp = McpService::new(pilot.clone(), stop.clone());
    let options = Options { limits, budget: budget.clone(), identifier, stop };
    let routes = xds::routes(pilot, options).add_service(mcp).add_service(health).add_service(newer).add_service(older);
    ChargedRoutes { routes, budget }
}

impl ChargedRoutes {
    /// These services and the certificate service, which must never be served in plain text.
    pub(crate) fn with_certificates(self, service: Option<CertificateService>) -> ChargedRoutes {
        match service {
            Some(service) => ChargedRoutes { routes: self.routes.add_service(service), budget: self.budget },
            None => self,
        }
    }
}

/// Memory that the transport holds for a request in flight.
const REQUEST_BYTES: usize = 4 * 1024;

/// The services. Each request is charged to the budget of its client until its response is sent.
#[derive(Clone, Debug)]
pub(crate) struct ChargedRoutes {
    routes: Routes,
    budget: Budget,
}

impl Service<Request<Incoming>> for ChargedRoutes {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    /// Tonic services are always ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let peer = request.extensions().get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        match self.budget.share(peer.map(|peer| peer.ip())).charge(REQUEST_BYTES) {
            Ok(charge) => {
                let answer = self.routes.call(request);
                Box::pin(async move { Ok(answer.await?.map(|body| Body::new(charged(body, charge)))) })
            }
            Err(exhausted) => Box::pin(ready(Ok(Status::from(exhausted).into_http()))),
        }
    }
}

/// Keeps the charge until the body is dropped.
fn charged(body: Body, charge: Charge) -> impl http_body::Body<Data = Bytes, Error = Status> {
    body.map_frame(move |frame| {
        let _ = &charge;
        frame
    })
}

/// A service that is built on its first request: reflection needs megabytes and is rarely used.
#[derive(Clone)]
struct LazyService<S> {
    make: fn() -> S,
    made: Arc<OnceLock<S>>,
}

impl<S> LazyService<S> {
    fn new(make: fn() -> S) -> LazyService<S> {
        LazyService { make, made: Arc::default() }
    }
}

impl<S: NamedService> NamedService for LazyService<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<Request<Body>> + Clone> Service<Request<Body>> for LazyService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    /// Tonic services are always ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        self.made.get_or_init(self.make).clone().call(request)
    }
}

/// Reflection for all services whose proto files are in the descriptor set.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    let mut builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    for file in FILES {
        builder = builder.register_file_descriptor_set(api::reflect::envoy_files(file));
    }
    SERVED.iter().fold(builder, |builder, service| builder.with_service_name(*service))
}

/// Reports readiness through the gRPC health service.
async fn report(reporter: HealthReporter, pilot: Arc<ControlPlane>, stop: CancellationToken) {
    let mut snapshots = pilot.world().snapshots();
    let mut reported = None;
    loop {
        let is_ready = pilot.missing_sources().is_empty() && !stop.is_cancelled();
        if reported.replace(is_ready) != Some(is_ready) {
            let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
            for service in ["", ADS] {
                reporter.set_service_status(service, status).await;
            }
        }
        tokio::select! {
            () = stop.cancelled(), if !stop.is_cancelled() => {}
            changed = snapshots.changed() => if changed.is_err() { return },
        }
    }
}
