//! The name table inside Envoy's own xDS stream: the agent asks for it after Envoy's first request for
//! listeners, keeps the answers to itself and acknowledges them. Envoy never sees either.

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

/// Where the newest table goes.
pub type NameTableSender = watch::Sender<Option<Arc<NameTable>>>;

/// Which of the two variants of the protocol a stream speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XdsProtocol {
    Sotw,
    Delta,
}

impl XdsProtocol {
    /// The type that a request asks for.
    pub(super) fn request_kind(self, request: Bytes) -> Option<String> {
        text_field(request, if self == XdsProtocol::Sotw { 4 } else { 2 })
    }

    /// The type that a response holds.
    pub(super) fn response_kind(self, response: Bytes) -> Option<String> {
        text_field(response, 4)
    }

    /// Asks for the name table.
    pub(super) fn subscription(self) -> Bytes {
        self.request(String::new(), String::new(), None)
    }

    fn request(self, version: String, nonce: String, rejection: Option<Rejection>) -> Bytes {
        let kind = TypeUrl::NAME_TABLE.to_string();
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

    /// Publishes the table of a response and gives the acknowledgement, or the rejection of what cannot be read.
    pub(super) fn consume(self, response: Bytes, names: &NameTableSender) -> Bytes {
        let (version, nonce, resource) = match self.open(response) {
            Ok(opened) => opened,
            Err(error) => {
                warn!(%error, "could not read a response with the name table");
                return self.request(String::new(), String::new(), Some(rejection(&error)));
            }
        };
        let Some(resource) = resource else {
            // Nothing changed, or all is gone, which no control plane says: the last table stays.
            return self.request(version, nonce, None);
        };
        match NameTable::decode(&*resource) {
            Ok(table) => {
                debug!(names = table.table.len(), "new name table");
                names.send_replace(Some(Arc::new(table)));
                self.request(version, nonce, None)
            }
            Err(error) => {
                warn!(%error, "could not read the name table; the last one stays");
                self.request(version, nonce, Some(rejection(&error)))
            }
        }
    }

    fn open(self, response: Bytes) -> Result<(String, String, Option<Vec<u8>>), prost::DecodeError> {
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

/// gRPC's code for an error inside the client.
const INTERNAL: i32 = 13;

fn rejection(error: &prost::DecodeError) -> Rejection {
    Rejection { code: INTERNAL, message: format!("could not read the name table: {error}"), ..Default::default() }
}
