//! The agent's name table subscription inside Envoy's xDS stream. The agent subscribes after Envoy's first LDS request,
//! consumes the responses and acknowledges them. Envoy sees neither.

use std::fmt::Display;
use std::sync::Arc;

use api::TypeUrl;
use api::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use api::nds::NameTable;
use api::wire::google::rpc::Status as Rejection;
use bytes::Bytes;
use prost::Message;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::frames::{framed, text_field};
use crate::status::health::WorkloadHealth;

/// Publishes the latest name table.
pub type NameTableSender = watch::Sender<Option<Arc<NameTable>>>;

/// The xDS variant of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XdsProtocol {
    Sotw,
    Delta,
}

impl XdsProtocol {
    /// The type URL of a request.
    pub(super) fn request_kind(self, request: Bytes) -> Option<String> {
        text_field(request, if self == XdsProtocol::Sotw { 4 } else { 2 })
    }

    /// The type URL of a response.
    pub(super) fn response_kind(self, response: Bytes) -> Option<String> {
        text_field(response, 4)
    }

    /// The request that subscribes to all resources of a type.
    pub(super) fn subscription(self, kind: &TypeUrl) -> Bytes {
        self.request(kind, String::new(), String::new(), None)
    }

    /// A request of the agent, which acknowledges a response unless there is a rejection.
    pub(super) fn request(self, kind: &TypeUrl, version: String, nonce: String, rejection: Option<Rejection>) -> Bytes {
        let kind = kind.to_string();
        match self {
            XdsProtocol::Sotw => framed(&DiscoveryRequest {
                version_info: version,
                type_url: kind,
                response_nonce: nonce,
                error_detail: rejection,
                ..Default::default()
            }),
            XdsProtocol::Delta => framed(&DeltaDiscoveryRequest {
                type_url: kind,
                response_nonce: nonce,
                error_detail: rejection,
                ..Default::default()
            }),
        }
    }

    /// The report of the workload's health.
    pub(super) fn health(self, health: &WorkloadHealth) -> Bytes {
        let type_url = TypeUrl::HEALTH.to_string();
        let error = |message: &String| Rejection { code: INTERNAL, message: message.clone(), ..Default::default() };
        let error_detail = health.as_ref().err().map(error);
        match self {
            XdsProtocol::Sotw => framed(&DiscoveryRequest { type_url, error_detail, ..Default::default() }),
            XdsProtocol::Delta => framed(&DeltaDiscoveryRequest { type_url, error_detail, ..Default::default() }),
        }
    }

    /// Publishes the table of a response. Returns the ACK, or the NACK if it cannot be decoded.
    pub(super) fn consume(self, response: Bytes, names: &NameTableSender) -> Bytes {
        let (version, nonce, resource) = match self.open(response) {
            Ok(opened) => opened,
            Err(error) => {
                warn!(%error, "could not decode a name table response; keeping the last table");
                return self.request(&KIND, String::new(), String::new(), Some(rejection("the name table", &error)));
            }
        };
        let Some(resource) = resource else {
            // An empty response carries no table: the last one stays.
            return self.request(&KIND, version, nonce, None);
        };
        match NameTable::decode(&*resource) {
            Ok(table) => {
                debug!(names = table.table.len(), "received a name table");
                names.send_replace(Some(Arc::new(table)));
                self.request(&KIND, version, nonce, None)
            }
            Err(error) => {
                warn!(%error, "could not decode the name table; keeping the last one");
                self.request(&KIND, version, nonce, Some(rejection("the name table", &error)))
            }
        }
    }

    /// Version, nonce and the first resource of a response.
    pub(super) fn open(self, response: Bytes) -> Result<(String, String, Option<Vec<u8>>), prost::DecodeError> {
        match self {
            XdsProtocol::Sotw => {
                let response = DiscoveryResponse::decode(response)?;
                let resource = response.resources.into_iter().next().map(|any| any.value);
                Ok((response.version_info, response.nonce, resource))
            }
            XdsProtocol::Delta => {
                let response = DeltaDiscoveryResponse::decode(response)?;
                let resource = response.resources.into_iter().next().and_then(|r| r.resource).map(|any| any.value);
                Ok((response.system_version_info, response.nonce, resource))
            }
        }
    }
}

const KIND: TypeUrl = TypeUrl::NAME_TABLE;
/// gRPC status code INTERNAL.
const INTERNAL: i32 = 13;

/// The answer to a response that cannot be decoded.
pub(super) fn rejection(what: &str, error: &impl Display) -> Rejection {
    Rejection { code: INTERNAL, message: format!("could not decode {what}: {error}"), ..Default::default() }
}
