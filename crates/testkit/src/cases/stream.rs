//! Fetches resources of a running server over one xDS stream per proxy.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use api::envoy::config::core::v3::Node;
use api::{Any, Resource, TypeUrl};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Endpoint;
use xds::client::{DeltaClient, Held, SotwClient};

use super::ResourceLookup;
use crate::envoy::XdsTransport;

/// A server may send no response for unknown names.
const PATIENCE: Duration = Duration::from_secs(5);

enum CaseStream {
    Sotw(SotwClient),
    Delta(DeltaClient),
}

/// Resources of the server at this address. Must not be called from a task of the runtime.
pub fn over_stream(runtime: Handle, address: SocketAddr, transport: XdsTransport) -> ResourceLookup {
    let streams: RefCell<BTreeMap<String, CaseStream>> = RefCell::default();
    Box::new(move |proxy, kind, names| {
        let mut streams = streams.borrow_mut();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let answer = runtime.block_on(async {
            let stream = match streams.get_mut(&proxy.name) {
                Some(stream) => {
                    stream.subscribe(kind, &names);
                    stream
                }
                None => {
                    let stream = CaseStream::open(address, transport, proxy.node(), kind, &names).await?;
                    streams.entry(proxy.name.clone()).or_insert(stream)
                }
            };
            timeout(PATIENCE, stream.answer(kind)).await.unwrap_or(Ok(Vec::new()))
        });
        let resources = answer.unwrap_or_else(|status: Status| panic!("the stream of {} broke: {status}", proxy.name));
        resources.into_iter().map(|any| Resource::encoded("", any.value)).collect()
    })
}

impl CaseStream {
    async fn open(
        address: SocketAddr,
        transport: XdsTransport,
        node: Node,
        kind: &TypeUrl,
        names: &[&str],
    ) -> Result<CaseStream, Status> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let channel = endpoint.map_err(|e| Status::internal(e.to_string()))?.connect_lazy();
        Ok(match transport {
            XdsTransport::Sotw => CaseStream::Sotw(SotwClient::open(channel, node, kind, names).await?),
            XdsTransport::Delta => CaseStream::Delta(DeltaClient::open(channel, node, Held::new(), kind, names).await?),
        })
    }

    fn subscribe(&mut self, kind: &TypeUrl, names: &[&str]) {
        match self {
            CaseStream::Sotw(client) => client.subscribe(kind, names),
            CaseStream::Delta(client) => client.subscribe(kind, names),
        }
    }

    /// The next response of this type. Responses of other types are acknowledged.
    async fn answer(&mut self, kind: &TypeUrl) -> Result<Vec<Any>, Status> {
        loop {
            let (url, resources) = match self {
                CaseStream::Sotw(client) => {
                    let Some(response) = client.next().await? else { return Ok(Vec::new()) };
                    client.ack(&response);
                    (response.type_url, response.resources)
                }
                CaseStream::Delta(client) => {
                    let Some(response) = client.next().await? else { return Ok(Vec::new()) };
                    client.ack(&response);
                    (response.type_url, response.resources.into_iter().filter_map(|r| r.resource).collect())
                }
            };
            if url == kind.as_str() {
                return Ok(resources);
            }
        }
    }
}
