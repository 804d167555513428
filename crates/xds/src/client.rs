//! An xDS client for the aggregated service, state of the world and delta: it subscribes, and acknowledges or rejects
//! responses; a delta client keeps accepted resources. For tests, configuration over xDS and the agent's relay.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

use api::envoy::config::core::v3::Node;
use api::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use api::wire::google::rpc::Status as Rejection;
use api::{Any, TypeUrl};
use bytes::BufMut;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use crate::body::Reader;

const STREAM: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const DELTA: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// Larger responses are errors, so that a faulty server cannot exhaust memory.
const LARGEST_RESPONSE: usize = 128 << 20;

/// A bidirectional stream. Sending does not wait: a client sends few and small messages.
struct Conversation<Q, A> {
    requests: mpsc::UnboundedSender<Q>,
    responses: Streaming<A>,
}

impl<Q: Message + 'static, A: Message + Default + 'static> Conversation<Q, A> {
    async fn open(channel: Channel, path: &'static str, first: Q) -> Result<Self, Status> {
        let mut grpc = Grpc::new(channel).max_decoding_message_size(LARGEST_RESPONSE);
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let (requests, queue) = mpsc::unbounded_channel();
        // Some servers send response headers only after they have read a request.
        let _ = requests.send(first);
        let outgoing = Request::new(UnboundedReceiverStream::new(queue));
        let codec = Protobuf::<Q, A>(PhantomData);
        let responses = grpc.streaming(outgoing, PathAndQuery::from_static(path), codec).await?.into_inner();
        Ok(Self { requests, responses })
    }

    fn send(&self, request: Q) {
        // If the stream is closed, reading the next response returns the error.
        let _ = self.requests.send(request);
    }
}

/// A state-of-the-world stream.
pub struct SotwClient {
    conversation: Conversation<DiscoveryRequest, DiscoveryResponse>,
    watches: BTreeMap<TypeUrl, SotwWatch>,
}

#[derive(Default)]
struct SotwWatch {
    names: Vec<String>,
    nonce: String,
    version: String,
}

impl SotwClient {
    /// Opens a stream with its first subscription. No names means all resources.
    pub async fn open(channel: Channel, node: Node, kind: &TypeUrl, names: &[&str]) -> Result<Self, Status> {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let first = DiscoveryRequest {
            node: Some(node),
            type_url: kind.to_string(),
            resource_names: names.clone(),
            ..Default::default()
        };
        let conversation = Conversation::open(channel, STREAM, first).await?;
        let watches = BTreeMap::from([(kind.clone(), SotwWatch { names, ..Default::default() })]);
        Ok(Self { conversation, watches })
    }

    /// Replaces the names subscribed to; for a wildcard type an empty list means all resources.
    pub fn subscribe(&mut self, kind: &TypeUrl, names: &[&str]) {
        self.watches.entry(kind.clone()).or_default().names = names.iter().map(|name| name.to_string()).collect();
        self.request(kind, None);
    }

    /// The next response. The caller answers it with `ack` or `nack`.
    pub async fn next(&mut self) -> Result<Option<DiscoveryResponse>, Status> {
        self.conversation.responses.message().await
    }

    /// Accepts a response.
    pub fn ack(&mut self, response: &DiscoveryResponse) {
        let kind = TypeUrl::from(response.type_url.clone());
        let watch = self.watches.entry(kind.clone()).or_default();
        watch.nonce.clone_from(&response.nonce);
        watch.version.clone_from(&response.version_info);
        self.request(&kind, None);
    }

    /// Rejects a response; the previously accepted version remains in use.
    pub fn nack(&mut self, response: &DiscoveryResponse, reason: &str) {
        let kind = TypeUrl::from(response.type_url.clone());
        self.watches.entry(kind.clone()).or_default().nonce.clone_from(&response.nonce);
        self.request(&kind, Some(rejection(reason)));
    }

    /// Sends a request unchanged, for cases that the methods above do not cover.
    pub fn send(&self, request: DiscoveryRequest) {
        self.conversation.send(request);
    }

    fn request(&self, kind: &TypeUrl, error_detail: Option<Rejection>) {
        let Some(watch) = self.watches.get(kind) else { return };
        self.conversation.send(DiscoveryRequest {
            type_url: kind.to_string(),
            resource_names: watch.names.clone(),
            response_nonce: watch.nonce.clone(),
            version_info: watch.version.clone(),
            error_detail,
            ..Default::default()
        });
    }
}

/// Resources that a delta client holds, by type. Kept between streams: a new stream starts with their versions.
pub type Held = BTreeMap<TypeUrl, BTreeMap<String, HeldResource>>;

/// One resource that a delta client holds.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldResource {
    pub version: String,
    pub resource: Any,
}

/// A delta stream.
pub struct DeltaClient {
    conversation: Conversation<DeltaDiscoveryRequest, DeltaDiscoveryResponse>,
    /// Resources accepted so far.
    pub held: Held,
    begun: BTreeSet<TypeUrl>,
}

impl DeltaClient {
    /// Opens a stream with its first subscription and the versions of held resources. No names means all resources.
    pub async fn open(
        channel: Channel,
        node: Node,
        held: Held,
        kind: &TypeUrl,
        names: &[&str],
    ) -> Result<Self, Status> {
        let first = DeltaDiscoveryRequest { node: Some(node), ..subscription(&held, kind, names) };
        let conversation = Conversation::open(channel, DELTA, first).await?;
        Ok(Self { conversation, held, begun: BTreeSet::from([kind.clone()]) })
    }

    /// Subscribes to further names of a type; without names, the first call for a type subscribes to all resources.
    pub fn subscribe(&mut self, kind: &TypeUrl, names: &[&str]) {
        if self.begun.insert(kind.clone()) {
            self.conversation.send(subscription(&self.held, kind, names));
        } else {
            self.conversation.send(DeltaDiscoveryRequest {
                type_url: kind.to_string(),
                resource_names_subscribe: names.iter().map(|name| name.to_string()).collect(),
                ..Default::default()
            });
        }
    }

    /// Unsubscribes from names of a type and drops their resources.
    pub fn unsubscribe(&mut self, kind: &TypeUrl, names: &[&str]) {
        if let Some(held) = self.held.get_mut(kind) {
            held.retain(|name, _| !names.contains(&name.as_str()));
        }
        self.conversation.send(DeltaDiscoveryRequest {
            type_url: kind.to_string(),
            resource_names_unsubscribe: names.iter().map(|name| name.to_string()).collect(),
            ..Default::default()
        });
    }

    /// The next response. The caller answers it with `ack` or `nack`.
    pub async fn next(&mut self) -> Result<Option<DeltaDiscoveryResponse>, Status> {
        self.conversation.responses.message().await
    }

    /// Accepts a response and applies it to the held resources.
    pub fn ack(&mut self, response: &DeltaDiscoveryResponse) {
        let held = self.held.entry(TypeUrl::from(response.type_url.clone())).or_default();
        for resource in &response.resources {
            let version = resource.version.clone();
            let body = resource.resource.clone().unwrap_or_default();
            held.insert(resource.name.clone(), HeldResource { version, resource: body });
        }
        response.removed_resources.iter().for_each(|name| drop(held.remove(name)));
        self.answer(response, None);
    }

    /// Rejects a response; held resources stay as they are.
    pub fn nack(&mut self, response: &DeltaDiscoveryResponse, reason: &str) {
        self.answer(response, Some(rejection(reason)));
    }

    /// Sends a request unchanged, for cases that the methods above do not cover.
    pub fn send(&self, request: DeltaDiscoveryRequest) {
        self.conversation.send(request);
    }

    fn answer(&self, response: &DeltaDiscoveryResponse, error_detail: Option<Rejection>) {
        self.conversation.send(DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            error_detail,
            ..Default::default()
        });
    }
}

fn subscription(held: &Held, kind: &TypeUrl, names: &[&str]) -> DeltaDiscoveryRequest {
    let versions = held.get(kind).into_iter().flatten();
    DeltaDiscoveryRequest {
        type_url: kind.to_string(),
        resource_names_subscribe: names.iter().map(|name| name.to_string()).collect(),
        initial_resource_versions: versions.map(|(name, held)| (name.clone(), held.version.clone())).collect(),
        ..Default::default()
    }
}

fn rejection(reason: &str) -> Rejection {
    Rejection { code: tonic::Code::InvalidArgument as i32, message: reason.to_owned(), details: Vec::new() }
}

/// Codec for protobuf messages in both directions.
struct Protobuf<Q, A>(PhantomData<fn() -> (Q, A)>);

impl<Q: Message + 'static, A: Message + Default + 'static> Codec for Protobuf<Q, A> {
    type Encode = Q;
    type Decode = A;
    type Encoder = Writer<Q>;
    type Decoder = Reader<A>;

    fn encoder(&mut self) -> Writer<Q> {
        Writer(PhantomData)
    }

    fn decoder(&mut self) -> Reader<A> {
        Reader::default()
    }
}

struct Writer<Q>(PhantomData<fn() -> Q>);

impl<Q: Message> Encoder for Writer<Q> {
    type Item = Q;
    type Error = Status;

    fn encode(&mut self, message: Q, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(message.encoded_len());
        debug_assert!(buffer.remaining_mut() >= message.encoded_len());
        message.encode_raw(buffer);
        Ok(())
    }
}
