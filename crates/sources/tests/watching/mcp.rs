//! The sink of MCP v1alpha1 against a server of this test's own, written from the protocol.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use api::istio::mcp::v1alpha1::Resource;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use model::config::{envelope, parse};
use sources::health::State;
use sources::store::mcp::wire::{RequestResources, Resources};
use sources::store::mcp::{McpSink, Options};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;

use crate::follower::Follower;

const RULES: &str = "istio/networking/v1alpha3/destinationrules";

/// A server whose streams are handed to the test.
struct Server {
    address: SocketAddr,
    streams: UnboundedReceiver<Conversation>,
}

/// One stream: what the sink says, and what the test answers. The stream ends with it.
struct Conversation {
    requests: UnboundedReceiver<RequestResources>,
    answers: UnboundedSender<Result<Resources, Status>>,
}

impl Server {
    async fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (hand_over, streams) = unbounded_channel();
        let server = tonic::transport::Server::builder().add_service(Establish(hand_over));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Server { address, streams }
    }

    async fn stream(&mut self) -> Conversation {
        self.streams.recv().await.unwrap()
    }

    fn sink(&self, query: &str) -> McpSink {
        McpSink::new(Options::parse(&format!("mcp://{}{query}", self.address), "pilot").unwrap())
    }
}

impl Conversation {
    async fn request(&mut self) -> RequestResources {
        self.requests.recv().await.unwrap()
    }

    /// Answers every first request, with these rules and nothing else. Gives the request for rules.
    async fn begin(&mut self, rules: Vec<Resource>, collections: usize) -> RequestResources {
        let mut of_rules = None;
        for number in 0..collections {
            let request = self.request().await;
            assert_eq!(request.sink_node.as_ref().map(|node| node.id.as_str()), Some("pilot"));
            assert_eq!(request.response_nonce, "");
            let resources = if request.collection == RULES { rules.clone() } else { Vec::new() };
            self.answer(Resources { resources, ..answer(&request.collection, &format!("first-{number}")) });
            of_rules = of_rules.or(Some(request).filter(|request| request.collection == RULES));
        }
        for _ in 0..collections {
            let verdict = self.request().await;
            assert!(verdict.response_nonce.starts_with("first-") && verdict.error_detail.is_none(), "{verdict:?}");
        }
        of_rules.unwrap()
    }

    fn answer(&self, answer: Resources) {
        self.answers.send(Ok(answer)).unwrap();
    }
}

fn answer(collection: &str, nonce: &str) -> Resources {
    Resources { collection: collection.to_owned(), nonce: nonce.to_owned(), ..Resources::default() }
}

fn rule(name: &str, version: &str) -> Resource {
    let text = format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
         metadata: {{name: {name}, namespace: shop, resourceVersion: {version:?}}}\nspec: {{host: {name}-{version}}}\n"
    );
    envelope::seal(&parse::documents(&text, "").objects[0]).unwrap()
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
        let (tell, requests) = unbounded_channel();
        let (answers, outgoing) = unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(request)) = incoming.message().await {
                if tell.send(request).is_err() {
                    return;
                }
            }
        });
        // A test that has ended wants no more streams.
        let _ = self.0.send(Conversation { requests, answers });
        ready(Ok(Response::new(UnboundedReceiverStream::new(outgoing))))
    }
}

const ALL: usize = 11;

#[tokio::test]
async fn whole_collections_replace_each_other_and_outlive_the_stream() {
    let mut server = Server::start().await;
    let mut sink = Follower::new(server.sink(""));
    let mut stream = server.stream().await;
    let request = stream.begin(vec![rule("a", "1"), rule("b", "1")], ALL).await;
    assert!(!request.incremental && request.initial_resource_versions.is_empty());
    sink.until("the first rules", |sink| sink.synced == 1 && sink.objects.len() == 2).await;

    stream.answer(Resources { resources: vec![rule("b", "2")], ..answer(RULES, "second") });
    sink.until("one rule", |sink| sink.objects.len() == 1).await;
    assert_eq!(stream.request().await.response_nonce, "second");

    stream.answer(Resources { ..answer("istio/unknown/v1/things", "third") });
    let refusal = stream.request().await;
    assert_eq!(refusal.response_nonce, "third");
    assert!(refusal.error_detail.is_some_and(|error| error.message.contains("istio/unknown/v1/things")));
    stream.answer(Resources { incremental: true, ..answer(RULES, "fourth") });
    assert!(stream.request().await.error_detail.is_some(), "changes were not asked for");

    drop(stream);
    let mut stream = server.stream().await;
    assert_eq!(sink.names().len(), 1, "what was told stays");
    stream.begin(vec![rule("c", "1")], ALL).await;
    sink.until("the rule of the new stream", |sink| sink.objects.keys().any(|key| key.contains("/c"))).await;
    sink.until("the old rule to go", |sink| sink.objects.len() == 1).await;
    assert_eq!(sink.report().state, State::Live);
}

#[tokio::test]
async fn changes_are_applied_and_a_new_stream_begins_with_what_is_held() {
    let mut server = Server::start().await;
    let mut sink = Follower::new(server.sink("?incremental=true"));
    let mut stream = server.stream().await;
    let request = stream.begin(vec![rule("a", "1"), rule("b", "1")], ALL).await;
    assert!(request.incremental);
    sink.until("the first rules", |sink| sink.objects.len() == 2).await;

    let removed_resources = vec!["shop/a".to_owned()];
    let resources = vec![rule("c", "7")];
    stream.answer(Resources { resources, removed_resources, incremental: true, ..answer(RULES, "second") });
    assert_eq!(stream.request().await.response_nonce, "second");
    sink.until("the change", |sink| sink.objects.keys().any(|key| key.contains("/c"))).await;
    sink.until("the removal", |sink| sink.objects.len() == 2).await;

    drop(stream);
    let mut stream = server.stream().await;
    loop {
        let request = stream.request().await;
        if request.collection == RULES {
            let held: Vec<(&str, &str)> =
                request.initial_resource_versions.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            assert_eq!(held, [("shop/b", "1"), ("shop/c", "7")]);
            break;
        }
    }
}

#[tokio::test]
async fn an_object_that_is_no_good_is_named_and_the_last_good_one_stays() {
    let mut server = Server::start().await;
    let mut sink = Follower::new(server.sink(""));
    let mut stream = server.stream().await;
    stream.begin(vec![rule("a", "1")], ALL).await;
    sink.until("the rule", |sink| sink.objects.len() == 1).await;
    let mut bad = rule("a", "2");
    bad.body.as_mut().unwrap().value = vec![255];
    stream.answer(Resources { resources: vec![bad, rule("b", "1")], ..answer(RULES, "second") });
    assert!(stream.request().await.error_detail.is_none(), "the rest of the answer is good");
    sink.until("the good one", |sink| sink.objects.len() == 2).await;
    assert!(sink.problems.iter().any(|p| p.contains("shop/a") && p.contains("last good")), "{:?}", sink.problems);
}
