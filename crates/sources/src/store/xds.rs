//! `xds://` config sources: another control plane, or any server of MCP over xDS, sends config objects over an xDS
//! stream. When the server cannot be reached, its last objects are kept.

use api::envoy::config::core::v3::Node;
use api::istio::mcp::v1alpha1::Resource;
use api::{Any, Struct, TypeUrl, Value, value};
use model::change::SourceId;
use model::config::Kind;
use model::names::Str;
use prost::{Message, Name};
use tracing::warn;
use xds::client::{DeltaClient, Held, SotwClient};

use super::collections::Collections;
use super::streams::{self, StreamSource, ended, failed};
use crate::backoff::Backoff;
use crate::grpc::{self, GrpcTls};
use crate::source::{ChangeSender, Source, SourceError};

/// The variant of the xDS protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdsVariant {
    /// Each response has all objects of a kind. Every server supports it.
    #[default]
    StateOfTheWorld,
    /// Responses have changes only.
    Delta,
}

/// The address of the server, and how this client identifies itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsStoreOptions {
    /// `host:port`.
    pub address: String,
    pub variant: XdsVariant,
    pub tls: Option<GrpcTls>,
    /// The name of this client, `name.namespace`.
    pub node: String,
    pub namespace: String,
}

impl XdsStoreOptions {
    /// The id of the source.
    pub fn id(&self) -> SourceId {
        SourceId(format!("xds://{}", self.address).into())
    }
}

/// The source of config objects from one xDS server.
#[derive(Debug)]
pub struct XdsStore {
    id: SourceId,
    options: XdsStoreOptions,
    collections: Collections,
    /// Names and versions to send in the first delta request of the next stream.
    held: Held,
}

impl XdsStore {
    pub fn new(options: XdsStoreOptions) -> XdsStore {
        let id = options.id();
        let kinds = Kind::ALL.iter().copied().filter(|kind| kind.message().is_some());
        let collections = Collections::new(id.0.clone(), kinds.map(|kind| (type_of(kind), kind)));
        XdsStore { id, options, collections, held: Held::new() }
    }

    fn node(&self) -> Node {
        let XdsStoreOptions { node, namespace, .. } = &self.options;
        let text = |text: &str| Value { kind: Some(value::Kind::StringValue(text.to_owned())) };
        let fields = [("GENERATOR", "api"), ("NAMESPACE", namespace)];
        let fields = fields.map(|(key, value)| (key.to_owned(), text(value))).into_iter().collect();
        let id = format!("sidecar~127.0.0.1~{node}~{namespace}.svc.cluster.local");
        Node { id, metadata: Some(Struct { fields }), ..Node::default() }
    }

    fn log_rejection(&self, kind: &str, error: &ResourceError) {
        warn!(source = &*self.id.0, kind, %error, "rejected a response; keeping known objects");
    }

    fn kinds(&self) -> Vec<TypeUrl> {
        self.collections.names().map(|name| TypeUrl::from(name.to_string())).collect()
    }

    async fn follow_sotw(
        &mut self,
        channel: tonic::transport::Channel,
        sender: &ChangeSender,
        backoff: &mut Backoff,
    ) -> Result<(), SourceError> {
        let kinds = self.kinds();
        let Some((first, others)) = kinds.split_first() else { return Ok(()) };
        let mut stream = SotwClient::open(channel, self.node(), first, &[]).await.map_err(failed)?;
        others.iter().for_each(|kind| stream.subscribe(kind, &[]));
        loop {
            let response = self.collections.next(stream.next(), sender).await?.map_err(failed)?.ok_or_else(ended)?;
            self.collections.responded(sender, backoff);
            let resources: Result<Vec<Resource>, ResourceError> = response.resources.iter().map(decode).collect();
            match resources {
                Ok(resources) => {
                    stream.ack(&response);
                    let changes = self.collections.replace(&response.type_url, &resources);
                    self.collections.publish(changes, sender).await?;
                }
                Err(error) => {
                    self.log_rejection(&response.type_url, &error);
                    stream.nack(&response, &error.to_string());
                }
            }
        }
    }

    async fn follow_delta(
        &mut self,
        channel: tonic::transport::Channel,
        sender: &ChangeSender,
        backoff: &mut Backoff,
    ) -> Result<(), SourceError> {
        let kinds = self.kinds();
        let Some((first, others)) = kinds.split_first() else { return Ok(()) };
        let opened_stream = DeltaClient::open(channel, self.node(), self.held.clone(), first, &[]).await;
        let mut stream = opened_stream.map_err(failed)?;
        others.iter().for_each(|kind| stream.subscribe(kind, &[]));
        loop {
            let response = self.collections.next(stream.next(), sender).await?.map_err(failed)?.ok_or_else(ended)?;
            self.collections.responded(sender, backoff);
            let bodies = response.resources.iter().filter_map(|resource| resource.resource.as_ref());
            let resources: Result<Vec<Resource>, ResourceError> = bodies.map(decode).collect();
            match resources {
                Ok(resources) => {
                    stream.ack(&response);
                    let removed = response.removed_resources.iter().map(String::as_str);
                    let changes = self.collections.update(&response.type_url, &resources, removed);
                    // Only versions are needed for the next stream.
                    let held = stream.held.values_mut().flat_map(|of_kind| of_kind.values_mut());
                    held.for_each(|held| held.resource = Any::default());
                    self.held.clone_from(&stream.held);
                    self.collections.publish(changes, sender).await?;
                }
                Err(error) => {
                    self.log_rejection(&response.type_url, &error);
                    stream.nack(&response, &error.to_string());
                }
            }
        }
    }
}

/// The type URL of a kind, in its preferred version.
fn type_of(kind: Kind) -> Str {
    let version = kind.versions().first().copied().unwrap_or("v1");
    format!("{}/{version}/{kind}", kind.group()).into()
}

/// Why a response is rejected.
#[derive(Debug, thiserror::Error)]
enum ResourceError {
    #[error("a resource has the type {found:?} instead of {expected:?}", expected = Resource::type_url())]
    Type { found: String },
    #[error("could not decode a resource: {0}")]
    Decode(#[from] prost::DecodeError),
}

fn decode(any: &Any) -> Result<Resource, ResourceError> {
    if any.type_url != Resource::type_url() {
        return Err(ResourceError::Type { found: any.type_url.clone() });
    }
    Ok(Resource::decode(&*any.value)?)
}

impl StreamSource for XdsStore {
    async fn follow(&mut self, sender: &ChangeSender, backoff: &mut Backoff) -> Result<(), SourceError> {
        sender.health().count_request();
        let channel = grpc::connect(&self.options.address, self.options.tls.as_ref())
            .await
            .map_err(|e| SourceError::Failed(e.to_string()))?;
        match self.options.variant {
            XdsVariant::StateOfTheWorld => self.follow_sotw(channel, sender, backoff).await,
            XdsVariant::Delta => self.follow_delta(channel, sender, backoff).await,
        }
    }
}

impl Source for XdsStore {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        streams::run(self, &sender).await
    }
}
