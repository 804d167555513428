//! An MCP v1alpha1 server, written from the protocol description, whose responses the test sends.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sources::store::mcp::schema::{RequestResources, Resources};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;

use crate::serving::Serving;

/// A server that passes its streams to the test.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    streams: UnboundedReceiver<Conversation>,
    _serving: Serving,
}

/// One stream: requests of the sink, and responses. Dropping it ends the stream.
pub(crate) struct Conversation {
    requests: UnboundedReceiver<RequestResources>,
    answers: UnboundedSender<Result<Resources, Status>>,
}

impl Server {
    pub(crate) async fn start() -> Server {
        Server::start_at((Ipv4Addr::LOCALHOST, 0).into()).await
    }

    pub(crate) async fn start_at(address: SocketAddr) -> Server {
        let (hand_over, streams) = unbounded_channel();
        let serving = Serving::start(address, Routes::new(Establish(hand_over))).await;
        Server { address: serving.address, streams, _serving: serving }
    }

    pub(crate) async fn stream(&mut self) -> Conversation {
        self.streams.recv().await.unwrap()
    }
}

impl Conversation {
    /// The next request.
    pub(crate) async fn request(&mut self) -> RequestResources {
        self.try_request().await.unwrap()
    }

    /// The next request; `None` if the stream has ended.
    pub(crate) async fn try_request(&mut self) -> Option<RequestResources> {
        self.requests.recv().await
    }

    pub(crate) fn answer(&self, answer: Resources) {
        // If the sink is gone, waiting for its acknowledgement fails.
        let _ = self.answers.send(Ok(answer));
    }
}

pub(crate) fn answer(collection: &str, nonce: &str) -> Resources {
    Resources { collection: collection.to_owned(), nonce: nonce.to_owned(), ..Resources::default() }
}

#[derive(Clone)]
struct Establish(UnboundedSender<Conversation>);

impl NamedService for Establish {
    const NAME: &'static str = "istio.mcp.v1alpha1.ResourceSource";
}

impl Service<http::Request<Body>> for Establish {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        assert_eq!(request.uri().path(), "/istio.mcp.v1alpha1.ResourceSource/EstablishResourceStream");
        let service = self.clone();
        async move {
            let codec = ProstCodec::<Resources, RequestResources>::default();
            Ok(Grpc::new(codec).streaming(service, request).await)
        }
        .boxed()
    }
}

impl StreamingService<RequestResources> for Establish {
    type Response = Resources;
    type ResponseStream = UnboundedReceiverStream<Result<Resources, Status>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<RequestResources>>) -> Self::Future {
        let mut incoming = request.into_inner();
        let (sender, requests) = unbounded_channel();
        let (answers, outgoing) = unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(request)) = incoming.message().await {
                if sender.send(request).is_err() {
                    return;
                }
            }
        });
        // The test may have ended.
        let _ = self.0.send(Conversation { requests, answers });
        ready(Ok(Response::new(UnboundedReceiverStream::new(outgoing))))
    }
}
