//! `--mcpServerAddrs`: configuration over the Mesh Configuration Protocol as Istio 1.1 to 1.8 spoke it, sink side.
//! One stream carries all collections; each has its own state, and what was told last stays when the server goes.

pub mod schema;

use std::path::Path;

use api::wire::google::rpc::Status as Rejection;
use http::uri::PathAndQuery;
use model::change::{Change, SourceId};
use model::config::Kind;
use model::names::Str;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::{Code, Request, Streaming};
use tonic_prost::ProstCodec;
use tracing::warn;

use super::collections::Collections;
use super::streams::{self, StreamSource, ended, failed};
use crate::backoff::Backoff;
use crate::grpc::{self, GrpcTls};
use crate::http::{ClientIdentity, TrustRoots};
use crate::source::{ChangeSender, Source, SourceError};
use schema::{RequestResources, Resources, SinkNode};

/// Where Istio 1.1 mounted certificates.
const CERTIFICATES: &str = "/etc/certs";

/// Collections by their names in the protocol, with the kind of their objects.
const COLLECTIONS: &[(&str, Kind)] = &[
    ("istio/networking/v1alpha3/virtualservices", Kind::VirtualService),
    ("istio/networking/v1alpha3/destinationrules", Kind::DestinationRule),
    ("istio/networking/v1alpha3/gateways", Kind::Gateway),
    ("istio/networking/v1alpha3/serviceentries", Kind::ServiceEntry),
    ("istio/networking/v1alpha3/synthetic/serviceentries", Kind::ServiceEntry),
    ("istio/networking/v1alpha3/workloadentries", Kind::WorkloadEntry),
    ("istio/networking/v1alpha3/sidecars", Kind::Sidecar),
    ("istio/networking/v1alpha3/envoyfilters", Kind::EnvoyFilter),
    ("istio/security/v1beta1/authorizationpolicies", Kind::AuthorizationPolicy),
    ("istio/security/v1beta1/requestauthentications", Kind::RequestAuthentication),
    ("istio/security/v1beta1/peerauthentications", Kind::PeerAuthentication),
];

/// Where configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpOptions {
    /// `host:port`.
    pub address: String,
    /// Ask for changes rather than whole collections.
    pub incremental: bool,
    pub tls: Option<GrpcTls>,
    /// Who asks.
    pub node: String,
}

impl McpOptions {
    /// The name of the source that this makes.
    pub fn id(&self) -> SourceId {
        SourceId(format!("mcp://{}", self.address).into())
    }

    /// Reads `mcp://HOST:PORT`, `mcps://HOST:PORT` (certificates where Istio mounted them) or `HOST:PORT`;
    /// `?incremental=true` asks for changes.
    pub fn parse(url: &str, node: &str) -> Result<McpOptions, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("mcp", url));
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let address = address.trim_end_matches('/');
        let has_port =
            address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !has_port || address.contains('/') {
            return Err(format!("{url:?} is not an address such as mcp://host:port"));
        }
        let incremental = match query {
            "" | "incremental=false" => false,
            "incremental=true" => true,
            other => return Err(format!("{url:?} asks for {other:?}, which is unknown")),
        };
        let tls = match scheme {
            "mcp" => None,
            "mcps" => Some(mounted(Path::new(CERTIFICATES))),
            other => return Err(format!("{url:?} has the unknown scheme {other:?}")),
        };
        Ok(McpOptions { address: address.to_owned(), incremental, tls, node: node.to_owned() })
    }
}

fn mounted(folder: &Path) -> GrpcTls {
    let identity = ClientIdentity { chain: folder.join("cert-chain.pem"), key: folder.join("key.pem") };
    GrpcTls { roots: TrustRoots::File(folder.join("root-cert.pem")), identity: Some(identity), server_name: None }
}

/// A sink of one source of configuration.
#[derive(Debug)]
pub struct McpSink {
    id: SourceId,
    options: McpOptions,
    collections: Collections,
}

/// Requests that wait for the server to read them. One that sends and never reads must not fill memory.
const UNREAD: usize = 1024;

/// The two directions of a stream.
struct McpStream {
    requests: mpsc::Sender<RequestResources>,
    answers: Streaming<Resources>,
}

impl McpSink {
    pub fn new(options: McpOptions) -> McpSink {
        let id = options.id();
        let names = COLLECTIONS.iter().map(|(name, kind)| (Str::from(*name), *kind));
        let collections = Collections::new(id.0.clone(), names);
        McpSink { id, options, collections }
    }

    fn request(&self, collection: &str) -> RequestResources {
        RequestResources {
            sink_node: Some(SinkNode { id: self.options.node.clone(), ..SinkNode::default() }),
            collection: collection.to_owned(),
            incremental: self.options.incremental,
            ..RequestResources::default()
        }
    }

    async fn open(&self) -> Result<McpStream, SourceError> {
        let channel =
            grpc::connect(&self.options.address, self.options.tls.as_ref()).await.map_err(SourceError::Failed)?;
        let mut client = Grpc::new(channel).max_decoding_message_size(grpc::LARGEST_MESSAGE);
        client.ready().await.map_err(|e| SourceError::Failed(e.to_string()))?;
        let (requests, queue) = mpsc::channel(UNREAD);
        for collection in self.collections.names() {
            let initial_resource_versions =
                if self.options.incremental { self.collections.versions(collection) } else { Default::default() };
            // Sent before the stream is there: the queue cannot be closed yet, and there are fewer collections than room.
            let _ = requests.try_send(RequestResources { initial_resource_versions, ..self.request(collection) });
        }
        let outgoing = Request::new(ReceiverStream::new(queue));
        let codec = ProstCodec::<RequestResources, Resources>::default();
        let path = PathAndQuery::from_static(schema::ESTABLISH);
        let answers = client.streaming(outgoing, path, codec).await.map_err(failed)?.into_inner();
        Ok(McpStream { requests, answers })
    }

    /// What an answer changes; an error where it does not fit what was asked for.
    fn take(&mut self, answer: &Resources) -> Result<Vec<Change>, String> {
        let name = &answer.collection;
        if !self.collections.names().any(|known| **known == **name) {
            return Err(format!("collection {name:?} was not asked for"));
        }
        if !answer.incremental {
            return Ok(self.collections.replace(name, &answer.resources));
        }
        if !self.options.incremental {
            return Err(format!("changes of collection {name:?} were not asked for"));
        }
        let removed = answer.removed_resources.iter().map(String::as_str);
        Ok(self.collections.update(name, &answer.resources, removed))
    }
}

fn rejection(reason: &str) -> Rejection {
    Rejection { code: Code::InvalidArgument as i32, message: reason.to_owned(), details: Vec::new() }
}

impl StreamSource for McpSink {
    async fn follow(&mut self, sender: &ChangeSender, backoff: &mut Backoff) -> Result<(), SourceError> {
        sender.health().count_request();
        let mut stream = self.open().await?;
        loop {
            let answer = self.collections.next(stream.answers.message(), sender).await?;
            let resources = answer.map_err(failed)?.ok_or_else(ended)?;
            self.collections.heard(sender, backoff);
            let taken = self.take(&resources);
            let error_detail = taken.as_ref().err().map(|reason| rejection(reason));
            let verdict = RequestResources {
                response_nonce: resources.nonce.clone(),
                error_detail,
                ..self.request(&resources.collection)
            };
            // A closed stream shows when the next answer is read.
            if let Err(TrySendError::Full(_)) = stream.requests.try_send(verdict) {
                return Err(SourceError::Failed(format!(
                    "the server sends and does not read: {UNREAD} answers are unread"
                )));
            }
            match taken {
                Ok(changes) => self.collections.tell(changes, sender).await?,
                Err(reason) => warn!(source = &*self.id.0, collection = resources.collection, reason, "refused"),
            }
        }
    }
}

impl Source for McpSink {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        streams::run(self, &sender).await
    }
}

#[cfg(test)]
mod tests {
    use super::McpOptions;

    #[test]
    fn addresses_are_read_or_named() {
        let read = |url: &str| McpOptions::parse(url, "pilot");
        for (url, has_tls, incremental) in
            [("mcp://a:1", false, false), ("a:1", false, false), ("mcps://a:1?incremental=true", true, true)]
        {
            let options = read(url).unwrap();
            let found = (options.address.as_str(), options.tls.is_some(), options.incremental);
            assert_eq!(found, ("a:1", has_tls, incremental), "{url}");
        }
        for bad in ["mcp://a", "http://a:1", "mcp://:1", "mcp://a:1/x", "mcp://a:1?x=y"] {
            assert!(read(bad).is_err_and(|e| e.contains(bad)), "{bad}");
        }
    }
}
