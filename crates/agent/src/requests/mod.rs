//! Upstream's metrics of requests and connections, for an Envoy without Istio's stats filter: made from the access log
//! that Envoy streams to a Unix socket. `entries` has the messages, `labels` the labels, `series` the counts.

mod entries;
mod labels;
mod series;

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::{ClientStreamingService, Grpc};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;
use tracing::{debug, info};

use self::entries::LogMessage;
use self::labels::Reporter;
pub use self::labels::WorkloadLabels;
pub use self::series::RequestSeries;
use crate::socket::{AllowedPeers, SocketListener};

const METHOD: &str = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";
/// The log name of inbound listeners, as the control plane configures it.
const INBOUND_LOG: &str = "pilotage-inbound";

/// Receives Envoy's access log.
pub(crate) struct AccessLogServer {
    listener: SocketListener,
    series: Arc<RequestSeries>,
}

impl AccessLogServer {
    pub(crate) fn bind(path: &Path, peers: AllowedPeers, series: Arc<RequestSeries>) -> Result<AccessLogServer> {
        let listener = SocketListener::bind(path, peers)?;
        info!(socket = %path.display(), "making request metrics from Envoy's access log");
        Ok(AccessLogServer { listener, series })
    }

    /// Serves until cancelled.
    pub(crate) async fn serve(mut self, stop: CancellationToken) {
        let mut connections = JoinSet::new();
        while let Some(stream) = stop.run_until_cancelled(self.listener.accept()).await {
            while connections.try_join_next().is_some() {}
            let series = Arc::clone(&self.series);
            let service = service_fn(move |request| respond(request, LogReceiver(Arc::clone(&series))));
            connections.spawn(async move {
                let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                if let Err(error) =
                    server.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await
                {
                    debug!(%error, "access log connection ended");
                }
            });
        }
    }
}

async fn respond(request: Request<Incoming>, receiver: LogReceiver) -> Result<Response<Body>, Infallible> {
    if request.uri().path() != METHOD {
        return Ok(Status::unimplemented("").into_http());
    }
    let codec = ProstCodec::<(), LogMessage>::default();
    Ok(Grpc::new(codec).client_streaming(receiver, request).await)
}

/// Counts the entries of one stream.
struct LogReceiver(Arc<RequestSeries>);

impl ClientStreamingService<LogMessage> for LogReceiver {
    type Response = ();
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<tonic::Response<()>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Streaming<LogMessage>>) -> Self::Future {
        let series = Arc::clone(&self.0);
        Box::pin(async move {
            let mut messages = request.into_inner();
            let mut reporter = Reporter::Source;
            while let Some(message) = messages.message().await? {
                if let Some(identifier) = &message.identifier {
                    let is_inbound = identifier.log_name == INBOUND_LOG;
                    reporter = if is_inbound { Reporter::Destination } else { Reporter::Source };
                }
                message.http.iter().flat_map(|http| &http.entries).for_each(|entry| series.request(reporter, entry));
                message.tcp.iter().flat_map(|tcp| &tcp.entries).for_each(|entry| series.connection(reporter, entry));
            }
            Ok(tonic::Response::new(()))
        })
    }
}
