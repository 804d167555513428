//! Questions to Copilot over one connection, which is made anew when it fails and when the files of its certificates
//! are replaced.

use http::uri::PathAndQuery;
use prost::Message;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::options::CloudFoundryOptions;
use super::route_table::RouteTable;
use super::schema::{self, HealthResponse, InternalRoutesResponse, RoutesResponse};
use crate::disk::{self, FileStamp};
use crate::grpc::{self, GrpcTls};
use crate::health::SourceHealth;
use crate::http::{ClientIdentity, TrustRoots};
use crate::registry::adaptive_timeout::AdaptiveTimeout;

/// Some hundred thousand backends. Two bytes of an answer may become a message of a hundred.
const LARGEST: usize = 16 << 20;

/// The other end.
#[derive(Debug)]
pub(super) struct CopilotClient {
    address: String,
    tls: GrpcTls,
    timeout: AdaptiveTimeout,
    health: SourceHealth,
    open: Option<OpenChannel>,
    /// Why replaced certificates are not used, if they are not.
    complaint: Option<String>,
}

/// A connection, with what the files were like when it was made.
#[derive(Debug)]
struct OpenChannel {
    channel: Channel,
    files: Vec<Option<FileStamp>>,
}

impl CopilotClient {
    pub(super) fn new(options: &CloudFoundryOptions, health: SourceHealth) -> Result<CopilotClient, String> {
        let files = (&options.tls.ca_file, &options.tls.cert_file, &options.tls.key_file);
        let (Some(ca), Some(chain), Some(key)) = files else { return Err("a file of tls is missing".to_owned()) };
        let tls = GrpcTls {
            roots: TrustRoots::File(ca.clone()),
            identity: Some(ClientIdentity { chain: chain.clone(), key: key.clone() }),
            server_name: options.tls.server_name.clone(),
        };
        let (address, timeout) = (options.address.clone(), AdaptiveTimeout::new(options.timeout.0));
        Ok(CopilotClient { address, tls, timeout, health, open: None, complaint: None })
    }

    pub(super) fn complaint(&self) -> Option<&str> {
        self.complaint.as_deref()
    }

    /// All routes as they are now. After an error the next question makes a new connection.
    pub(super) async fn route_table(&mut self, knows_internal: bool) -> Result<RouteTable, String> {
        let channel = self.channel().await?;
        self.health.count_request();
        let (timeout, begun) = (self.timeout.current(), Instant::now());
        let answer = match tokio::time::timeout(timeout, all(&channel, knows_internal)).await {
            Ok(answer) => {
                self.timeout.answered(begun.elapsed());
                answer.map_err(|reason| format!("could not ask Copilot at {}: {reason}", self.address))
            }
            Err(_) => {
                self.timeout.timed_out(timeout);
                Err(format!("Copilot at {} did not answer within {timeout:?}", self.address))
            }
        };
        if answer.is_err() {
            self.open = None;
        }
        answer
    }

    /// The connection in use. One with replaced certificates takes its place as soon as they work.
    async fn channel(&mut self) -> Result<Channel, String> {
        let files = self.files();
        let in_use = self.open.as_ref().map(|open| (open.channel.clone(), open.files == files));
        if let Some((channel, true)) = in_use {
            self.complaint = None;
            return Ok(channel);
        }
        match (grpc::connect(&self.address, Some(&self.tls)).await, in_use) {
            (Ok(channel), _) => {
                self.complaint = None;
                self.open = Some(OpenChannel { channel: channel.clone(), files });
                Ok(channel)
            }
            (Err(reason), Some((channel, _))) => {
                self.complaint = Some(format!("{reason}; the connection with the former certificates is kept"));
                Ok(channel)
            }
            (Err(reason), None) => Err(reason),
        }
    }

    fn files(&self) -> Vec<Option<FileStamp>> {
        let root = if let TrustRoots::File(file) = &self.tls.roots { Some(file) } else { None };
        let identity = self.tls.identity.iter().flat_map(|identity| [&identity.chain, &identity.key]);
        root.into_iter().chain(identity).map(|file| disk::stamp(file)).collect()
    }
}

async fn all(channel: &Channel, knows_internal: bool) -> Result<RouteTable, String> {
    let (health, routes, internal) = tokio::join!(
        ask::<HealthResponse>(channel, schema::HEALTH),
        ask::<RoutesResponse>(channel, schema::ROUTES),
        ask::<InternalRoutesResponse>(channel, schema::INTERNAL_ROUTES),
    );
    match health {
        Ok(HealthResponse { healthy: true }) => {}
        Ok(_) => return Err("it says that it is not healthy".to_owned()),
        Err(status) if status.code() == Code::Unimplemented => {}
        Err(status) => return Err(told("SourceHealth", &status)),
    }
    let routes = routes.map_err(|status| told("Routes", &status))?;
    let internal = match internal {
        Ok(internal) => internal,
        // The first releases had no internal routes.
        Err(status) if status.code() == Code::Unimplemented && !knows_internal => InternalRoutesResponse::default(),
        Err(status) => return Err(told("InternalRoutes", &status)),
    };
    Ok(RouteTable::new(routes, internal))
}

fn told(question: &str, status: &Status) -> String {
    format!("{question}: {}: {}", status.code(), status.message())
}

async fn ask<T: Message + Default + 'static>(channel: &Channel, path: &'static str) -> Result<T, Status> {
    let mut client = Grpc::new(channel.clone()).max_decoding_message_size(LARGEST);
    client.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
    let codec = ProstCodec::<(), T>::default();
    Ok(client.unary(Request::new(()), PathAndQuery::from_static(path), codec).await?.into_inner())
}
