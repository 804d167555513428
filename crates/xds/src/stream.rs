//! The task of one stream: requests and new worlds go into the session, responses out of it,
//! one at a time and only when the transport takes them.

use std::sync::Arc;

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use prost::Message;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use crate::body::Sender;
use crate::control::{Client, Control, Peer};
use crate::limits::Limits;
use crate::session::{Session, Terms};

/// The request message of a protocol.
pub(crate) trait Request: Message + Default + 'static {
    fn kind(&self) -> &str;
    fn take_node(&mut self) -> Option<Node>;
    fn apply<C: Client>(self, session: &mut Session<C>) -> Result<(), Status>;
}

impl Request for DiscoveryRequest {
    fn kind(&self) -> &str {
        &self.type_url
    }

    fn take_node(&mut self) -> Option<Node> {
        self.node.take()
    }

    fn apply<C: Client>(self, session: &mut Session<C>) -> Result<(), Status> {
        session.sotw(self)
    }
}

impl Request for DeltaDiscoveryRequest {
    fn kind(&self) -> &str {
        &self.type_url
    }

    fn take_node(&mut self) -> Option<Node> {
        self.node.take()
    }

    fn apply<C: Client>(self, session: &mut Session<C>) -> Result<(), Status> {
        session.delta(self)
    }
}

/// Runs a stream to its end and tells its client how it ended.
pub(crate) async fn run<C: Control, R: Request>(
    control: Arc<C>,
    mut requests: Streaming<R>,
    responses: Sender,
    peer: Peer,
    terms: Terms,
    stop: CancellationToken,
) {
    let status = tokio::select! {
        biased;
        () = stop.cancelled() => Status::unavailable("the server is shutting down"),
        status = converse(&*control, &mut requests, &responses, peer, terms) => status,
    };
    // The client may be gone; then nobody asks how its stream ended.
    let _ = responses.send(Err(status)).await;
}

async fn converse<C: Control, R: Request>(
    control: &C,
    requests: &mut Streaming<R>,
    responses: &Sender,
    peer: Peer,
    terms: Terms,
) -> Status {
    match greet(control, requests, peer, terms).await {
        Ok(Some((session, node_id))) => serve(session, &node_id, requests, responses).await,
        Ok(None) => Status::ok(""),
        Err(status) => status,
    }
}

/// Reads the first request, which says who the client is. None if the client leaves before.
async fn greet<C: Control, R: Request>(
    control: &C,
    requests: &mut Streaming<R>,
    peer: Peer,
    terms: Terms,
) -> Result<Option<(Session<C::Client>, String)>, Status> {
    let mut first = loop {
        match receive(requests).await? {
            // Agents may probe before their Envoy asks for anything.
            Some(probe) if probe.kind() == TypeUrl::HEALTH.as_str() => {}
            Some(request) => break request,
            None => return Ok(None),
        }
    };
    let node = first.take_node().filter(|node| !node.id.is_empty());
    let node = node.ok_or_else(|| Status::invalid_argument("missing node information"))?;
    check(&node, &terms.limits)?;
    let node_id = node.id.clone();
    let client = control.connect(node, peer).await?;
    let mut session = Session::new(client, terms, Instant::now().into_std());
    first.apply(&mut session)?;
    Ok(Some((session, node_id)))
}

async fn serve<C: Client, R: Request>(
    mut session: Session<C>,
    node_id: &str,
    requests: &mut Streaming<R>,
    responses: &Sender,
) -> Status {
    let mut due = true;
    loop {
        let wake = wake(session.wakes_at());
        tokio::select! {
            biased;
            request = receive(requests) => {
                let outcome = match request {
                    Ok(Some(request)) => accept(&mut session, node_id, request),
                    Ok(None) => return finish(session, responses).await,
                    Err(status) => Err(status),
                };
                if let Err(status) = outcome {
                    return status;
                }
                due = true;
            }
            slot = responses.reserve(), if due => match slot {
                Ok(slot) => match session.next(Instant::now().into_std()) {
                    Some(response) => slot.send(Ok(response.chunks)),
                    None => due = false,
                },
                Err(_) => return Status::cancelled("the client left"),
            },
            () = session.client.changed() => {
                session.world_moved();
                due = true;
            }
            () = wake => due = true,
        }
    }
}

/// The client has nothing more to say; it still gets what it asked for.
async fn finish<C: Client>(mut session: Session<C>, responses: &Sender) -> Status {
    while let Ok(slot) = responses.reserve().await {
        match session.next(Instant::now().into_std()) {
            Some(response) => slot.send(Ok(response.chunks)),
            None => break,
        }
    }
    Status::ok("")
}

async fn wake(at: Option<std::time::Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

fn accept<C: Client, R: Request>(session: &mut Session<C>, node_id: &str, mut request: R) -> Result<(), Status> {
    match request.take_node() {
        Some(node) if !node.id.is_empty() && node.id != node_id => {
            Err(Status::invalid_argument(format!("node changed in mid-stream; it was {node_id}")))
        }
        _ => request.apply(session),
    }
}

async fn receive<R>(requests: &mut Streaming<R>) -> Result<Option<R>, Status> {
    requests.message().await.map_err(|status| match status.code() {
        // What tonic says of a message over the limit; gRPC's own servers say it is too much.
        Code::OutOfRange => Status::resource_exhausted(status.message().to_owned()),
        _ => status,
    })
}

fn check(node: &Node, limits: &Limits) -> Result<(), Status> {
    if node.id.contains(char::is_control) {
        return Err(Status::invalid_argument("node id with control characters"));
    }
    let metadata = node.metadata.as_ref().map_or(0, Message::encoded_len);
    let rest = node.encoded_len().saturating_sub(metadata);
    bounded("node id", node.id.len(), limits.node_id_bytes)?;
    bounded("node metadata", metadata, limits.metadata_bytes)?;
    bounded("node without its metadata", rest, limits.node_bytes)
}

fn bounded(what: &str, bytes: usize, most: usize) -> Result<(), Status> {
    if bytes > most {
        return Err(Status::resource_exhausted(format!("{what} of {bytes} bytes, at most {most}")));
    }
    Ok(())
}
