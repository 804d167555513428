//! Requests to Copilot over one connection, which is re-established after a failure and when its certificate files are
//! replaced.

use std::time::Duration;

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
use crate::grpc::{self, ConnectError, GrpcTls};
use crate::health::SourceHealth;
use crate::http::{ClientIdentity, TrustRoots};
use crate::registry::adaptive_timeout::AdaptiveTimeout;

/// Enough for some hundred thousand backends. Two bytes of a message may decode to a hundred.
const LARGEST_MESSAGE: usize = 16 << 20;

/// A client of Copilot.
#[derive(Debug)]
pub(super) struct CopilotClient {
    address: String,
    tls: GrpcTls,
    timeout: AdaptiveTimeout,
    health: SourceHealth,
    open: Option<OpenChannel>,
    /// Why replaced certificates could not be used.
    certificate_error: Option<String>,
}

/// A connection, and the state of the certificate files when it was made.
#[derive(Debug)]
struct OpenChannel {
    channel: Channel,
    files: Vec<Option<FileStamp>>,
}

impl CopilotClient {
    pub(super) fn new(options: &CloudFoundryOptions, health: SourceHealth) -> Result<CopilotClient, CopilotError> {
        let files = (&options.tls.ca_file, &options.tls.cert_file, &options.tls.key_file);
        let (Some(ca), Some(chain), Some(key)) = files else { return Err(CopilotError::NoTlsFiles) };
        let tls = GrpcTls {
            roots: TrustRoots::File(ca.clone()),
            identity: Some(ClientIdentity { chain: chain.clone(), key: key.clone() }),
            server_name: options.tls.server_name.clone(),
        };
        let (address, timeout) = (options.address.clone(), AdaptiveTimeout::new(options.timeout.0));
        Ok(CopilotClient { address, tls, timeout, health, open: None, certificate_error: None })
    }

    pub(super) fn certificate_error(&self) -> Option<&str> {
        self.certificate_error.as_deref()
    }

    /// All current routes. After an error the next call connects again. `has_internal` says that this Copilot served
    /// internal routes before.
    pub(super) async fn routes(&mut self, has_internal: bool) -> Result<RouteTable, CopilotError> {
        let channel = self.channel().await?;
        self.health.count_request();
        let (timeout, started) = (self.timeout.current(), Instant::now());
        let address = || self.address.clone();
        let routes = match tokio::time::timeout(timeout, all(&channel, has_internal)).await {
            Ok(routes) => {
                self.timeout.answered(started.elapsed());
                routes.map_err(|error| CopilotError::Call { address: address(), error })
            }
            Err(_) => {
                self.timeout.timed_out(timeout);
                Err(CopilotError::Timeout { address: address(), limit: timeout })
            }
        };
        if routes.is_err() {
            self.open = None;
        }
        routes
    }

    /// The current connection. It is replaced when its certificate files were and the new ones work.
    async fn channel(&mut self) -> Result<Channel, CopilotError> {
        let files = self.files();
        let in_use = self.open.as_ref().map(|open| (open.channel.clone(), open.files == files));
        if let Some((channel, true)) = in_use {
            self.certificate_error = None;
            return Ok(channel);
        }
        match (grpc::connect(&self.address, Some(&self.tls)).await, in_use) {
            (Ok(channel), _) => {
                self.certificate_error = None;
                self.open = Some(OpenChannel { channel: channel.clone(), files });
                Ok(channel)
            }
            (Err(error), Some((channel, _))) => {
                self.certificate_error =
                    Some(format!("{error}; keeping the connection with the previous certificates"));
                Ok(channel)
            }
            (Err(error), None) => Err(error.into()),
        }
    }

    fn files(&self) -> Vec<Option<FileStamp>> {
        let root = if let TrustRoots::File(file) = &self.tls.roots { Some(file) } else { None };
        let identity = self.tls.identity.iter().flat_map(|identity| [&identity.chain, &identity.key]);
        root.into_iter().chain(identity).map(|file| disk::stamp(file)).collect()
    }
}

/// Why routes could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopilotError {
    #[error("caFile, certFile and keyFile of tls are required")]
    NoTlsFiles,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("could not read routes of Copilot at {address}: {error}")]
    Call { address: String, error: CallError },
    #[error("could not read routes of Copilot at {address}: no response within {limit:?}")]
    Timeout { address: String, limit: Duration },
}

#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("Copilot reports that it is not healthy")]
    Unhealthy,
    #[error("{method}: {}: {}", status.code(), status.message())]
    Status { method: &'static str, status: Box<Status> },
}

async fn all(channel: &Channel, has_internal: bool) -> Result<RouteTable, CallError> {
    let (health, routes, internal) = tokio::join!(
        call::<HealthResponse>(channel, schema::HEALTH),
        call::<RoutesResponse>(channel, schema::ROUTES),
        call::<InternalRoutesResponse>(channel, schema::INTERNAL_ROUTES),
    );
    match health {
        Ok(HealthResponse { healthy: true }) => {}
        Ok(_) => return Err(CallError::Unhealthy),
        Err(status) if status.code() == Code::Unimplemented => {}
        Err(status) => return Err(failed("Health")(status)),
    }
    let routes = routes.map_err(failed("Routes"))?;
    let internal = match internal {
        Ok(internal) => internal,
        // The first releases had no internal routes.
        Err(status) if status.code() == Code::Unimplemented && !has_internal => InternalRoutesResponse::default(),
        Err(status) => return Err(failed("InternalRoutes")(status)),
    };
    Ok(RouteTable::new(routes, internal))
}

fn failed(method: &'static str) -> impl Fn(Status) -> CallError {
    move |status| CallError::Status { method, status: Box::new(status) }
}

async fn call<T: Message + Default + 'static>(channel: &Channel, path: &'static str) -> Result<T, Status> {
    let mut client = Grpc::new(channel.clone()).max_decoding_message_size(LARGEST_MESSAGE);
    client.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
    let codec = ProstCodec::<(), T>::default();
    Ok(client.unary(Request::new(()), PathAndQuery::from_static(path), codec).await?.into_inner())
}
