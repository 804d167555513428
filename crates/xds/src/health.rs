//! gRPC's health protocol (`grpc.health.v1`), for load balancers and probes.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use http::{Request, Response};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Status, Streaming};
use tower::Service;

use crate::body::{Sender, message};
use crate::call;

/// Says of the server as a whole, or of one of its services, whether it serves.
#[derive(Clone, Debug)]
pub struct Health {
    serving: watch::Receiver<bool>,
    services: &'static [&'static str],
}

impl Health {
    /// Health that follows `serving`; of services other than those named nothing is known.
    pub fn new(serving: watch::Receiver<bool>, services: &'static [&'static str]) -> Self {
        Self { serving, services }
    }

    fn knows(&self, service: &str) -> bool {
        service.is_empty() || self.services.contains(&service)
    }

    async fn check(self, mut requests: Streaming<HealthCheckRequest>, responses: Sender) -> Status {
        let request = match requests.message().await {
            Ok(Some(request)) => request,
            Ok(None) => return Status::invalid_argument("no request"),
            Err(status) => return status,
        };
        if !self.knows(&request.service) {
            return Status::not_found(format!("no service {}", request.service));
        }
        let answer = HealthCheckResponse::of(*self.serving.borrow());
        let _ = responses.send(Ok(message(&answer))).await;
        Status::ok("")
    }

    /// Tells the state now and whenever it changes, until the client leaves.
    async fn watch(mut self, mut requests: Streaming<HealthCheckRequest>, responses: Sender) -> Status {
        let request = match requests.message().await {
            Ok(Some(request)) => request,
            Ok(None) => return Status::invalid_argument("no request"),
            Err(status) => return status,
        };
        let known = self.knows(&request.service);
        loop {
            let serving = *self.serving.borrow_and_update();
            let answer =
                if known { HealthCheckResponse::of(serving) } else { HealthCheckResponse { status: SERVICE_UNKNOWN } };
            if responses.send(Ok(message(&answer))).await.is_err() {
                return Status::cancelled("the client left");
            }
            tokio::select! {
                changed = self.serving.changed(), if known => if changed.is_err() {
                    return Status::unavailable("the server is shutting down");
                },
                () = responses.closed() => return Status::cancelled("the client left"),
            }
        }
    }
}

impl NamedService for Health {
    const NAME: &'static str = "grpc.health.v1.Health";
}

impl Service<Request<Body>> for Health {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        const MOST_BYTES: usize = 4096;
        let health = self.clone();
        ready(Ok(match request.uri().path() {
            "/grpc.health.v1.Health/Check" => call::spawn(request, MOST_BYTES, |r, s| health.check(r, s)),
            "/grpc.health.v1.Health/Watch" => call::spawn(request, MOST_BYTES, |r, s| health.watch(r, s)),
            _ => Status::unimplemented("").into_http(),
        }))
    }
}

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

impl HealthCheckResponse {
    fn of(serving: bool) -> Self {
        Self { status: if serving { SERVING } else { NOT_SERVING } }
    }
}
