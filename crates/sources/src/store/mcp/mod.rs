//! `--mcpServerAddrs`: config objects over the Mesh Configuration Protocol of Istio 1.1 to 1.8, as its sink (client).
//! One stream carries all collections. When the server cannot be reached, its last objects are kept.

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

/// The folder where Istio 1.1 mounted certificates.
const CERTIFICATES: &str = "/etc/certs";

/// Collections by their names in the protocol, with their kinds.
pub const COLLECTIONS: &[(&str, Kind)] = &[
    ("istio/networking/v1alpha3/virtualservices", Kind::VirtualService),
    ("istio/networking/v1alpha3/destinationrules", Kind::DestinationRule),
    ("istio/networking/v1alpha3/gateways", Kind::Gateway),
    ("istio/networking/v1alpha3/serviceentries", Kind::ServiceEntry),
    (SYNTHETIC_ENTRIES, Kind::ServiceEntry),
    ("istio/networking/v1alpha3/workloadentries", Kind::WorkloadEntry),
    ("istio/networking/v1alpha3/sidecars", Kind::Sidecar),
    ("istio/networking/v1alpha3/envoyfilters", Kind::EnvoyFilter),
    ("istio/security/v1beta1/authorizationpolicies", Kind::AuthorizationPolicy),
    ("istio/security/v1beta1/requestauthentications", Kind::RequestAuthentication),
    ("istio/security/v1beta1/peerauthentications", Kind::PeerAuthentication),
    ("istio/authentication/v1alpha1/policies", Kind::AuthenticationPolicy),
    ("istio/authentication/v1alpha1/meshpolicies", Kind::AuthenticationMeshPolicy),
    ("istio/rbac/v1alpha1/serviceroles", Kind::ServiceRole),
    ("istio/rbac/v1alpha1/servicerolebindings", Kind::ServiceRoleBinding),
    ("istio/rbac/v1alpha1/rbacconfigs", Kind::RbacConfig),
    ("istio/rbac/v1alpha1/clusterrbacconfigs", Kind::ClusterRbacConfig),
    ("istio/config/v1alpha2/httpapispecs", Kind::HttpApiSpec),
    ("istio/config/v1alpha2/httpapispecbindings", Kind::HttpApiSpecBinding),
    ("istio/mixer/v1/config/client/quotaspecs", Kind::QuotaSpec),
    ("istio/mixer/v1/config/client/quotaspecbindings", Kind::QuotaSpecBinding),
];

/// ServiceEntries that were made from services of a registry.
pub const SYNTHETIC_ENTRIES: &str = "istio/networking/v1alpha3/synthetic/serviceentries";

/// The address of the server, and how this client identifies itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpOptions {
    /// `host:port`.
    pub address: String,
    /// Request changes instead of whole collections.
    pub incremental: bool,
    pub tls: Option<GrpcTls>,
    /// The id of this client.
    pub node: String,
}

/// Why an MCP address is not valid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum McpAddressError {
    #[error("{0:?} is not an address such as mcp://host:port")]
    Malformed(String),
    #[error("{address:?} has the unknown option {option:?}")]
    UnknownOption { address: String, option: String },
    #[error("{address:?} has the unknown scheme {scheme:?}")]
    UnknownScheme { address: String, scheme: String },
}

/// Why a response is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    #[error("collection {0:?} was not requested")]
    Collection(String),
    #[error("changes of collection {0:?} were not requested")]
    Incremental(String),
}

impl McpOptions {
    /// The id of the source.
    pub fn id(&self) -> SourceId {
        SourceId(format!("mcp://{}", self.address).into())
    }

    /// Parses `mcp://HOST:PORT`, `mcps://HOST:PORT` (TLS with the certificates that Istio mounted) or `HOST:PORT`.
    /// `?incremental=true` requests changes.
    pub fn parse(url: &str, node: &str) -> Result<McpOptions, McpAddressError> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("mcp", url));
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let address = address.trim_end_matches('/');
        let has_port =
            address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !has_port || address.contains('/') {
            return Err(McpAddressError::Malformed(url.to_owned()));
        }
        let incremental = match query {
            "" | "incremental=false" => false,
            "incremental=true" => true,
            other => {
                return Err(McpAddressError::UnknownOption { address: url.to_owned(), option: other.to_owned() });
            }
        };
        let tls = match scheme {
            "mcp" => None,
            "mcps" => Some(mounted(Path::new(CERTIFICATES))),
            other => {
                return Err(McpAddressError::UnknownScheme { address: url.to_owned(), scheme: other.to_owned() });
            }
        };
        Ok(McpOptions { address: address.to_owned(), incremental, tls, node: node.to_owned() })
    }
}

fn mounted(folder: &Path) -> GrpcTls {
    let identity = ClientIdentity { chain: folder.join("cert-chain.pem"), key: folder.join("key.pem") };
    GrpcTls { roots: TrustRoots::File(folder.join("root-cert.pem")), identity: Some(identity), server_name: None }
}

/// The source of config objects from one MCP server.
#[derive(Debug)]
pub struct McpSink {
    id: SourceId,
    options: McpOptions,
    collections: Collections,
}

/// The most requests that wait for the server to read them, which bounds the memory for a server that never reads.
const UNREAD: usize = 1024;

/// The two directions of a stream.
struct McpStream {
    requests: mpsc::Sender<RequestResources>,
    responses: Streaming<Resources>,
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
        let channel = grpc::connect(&self.options.address, self.options.tls.as_ref())
            .await
            .map_err(|e| SourceError::Failed(e.to_string()))?;
        let mut client = Grpc::new(channel).max_decoding_message_size(grpc::LARGEST_MESSAGE);
        client.ready().await.map_err(|e| SourceError::Failed(e.to_string()))?;
        let (requests, queue) = mpsc::channel(UNREAD);
        for collection in self.collections.names() {
            let initial_resource_versions =
                if self.options.incremental { self.collections.versions(collection) } else { Default::default() };
            // Cannot fail: the queue is open, and larger than the number of collections.
            let _ = requests.try_send(RequestResources { initial_resource_versions, ..self.request(collection) });
        }
        let outgoing = Request::new(ReceiverStream::new(queue));
        let codec = ProstCodec::<RequestResources, Resources>::default();
        let path = PathAndQuery::from_static(schema::ESTABLISH);
        let responses = client.streaming(outgoing, path, codec).await.map_err(failed)?.into_inner();
        Ok(McpStream { requests, responses })
    }

    /// Applies a response and returns the changes.
    pub fn apply(&mut self, response: &Resources) -> Result<Vec<Change>, ResponseError> {
        let name = &response.collection;
        if !self.collections.names().any(|known| **known == **name) {
            return Err(ResponseError::Collection(name.clone()));
        }
        if !response.incremental {
            return Ok(self.collections.replace(name, &response.resources));
        }
        if !self.options.incremental {
            return Err(ResponseError::Incremental(name.clone()));
        }
        let removed = response.removed_resources.iter().map(String::as_str);
        Ok(self.collections.update(name, &response.resources, removed))
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
            let response = self.collections.next(stream.responses.message(), sender).await?;
            let resources = response.map_err(failed)?.ok_or_else(ended)?;
            self.collections.responded(sender, backoff);
            let applied = self.apply(&resources);
            let error_detail = applied.as_ref().err().map(|error| rejection(&error.to_string()));
            let acknowledgement = RequestResources {
                response_nonce: resources.nonce.clone(),
                error_detail,
                ..self.request(&resources.collection)
            };
            // If the stream is closed, reading the next response fails.
            if let Err(TrySendError::Full(_)) = stream.requests.try_send(acknowledgement) {
                let message = format!("the server does not read: {UNREAD} acknowledgements are queued");
                return Err(SourceError::Failed(message));
            }
            match applied {
                Ok(changes) => self.collections.publish(changes, sender).await?,
                Err(error) => {
                    let collection = resources.collection;
                    warn!(source = &*self.id.0, collection, %error, "rejected a response; keeping known objects");
                }
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
    fn valid_addresses_are_parsed_and_others_named_in_the_error() {
        let read = |url: &str| McpOptions::parse(url, "pilot");
        for (url, has_tls, incremental) in
            [("mcp://a:1", false, false), ("a:1", false, false), ("mcps://a:1?incremental=true", true, true)]
        {
            let options = read(url).unwrap();
            let found = (options.address.as_str(), options.tls.is_some(), options.incremental);
            assert_eq!(found, ("a:1", has_tls, incremental), "{url}");
        }
        for bad in ["mcp://a", "http://a:1", "mcp://:1", "mcp://a:1/x", "mcp://a:1?x=y"] {
            assert!(read(bad).is_err_and(|e| e.to_string().contains(bad)), "{bad}");
        }
    }
}
