//! The task of one stream: passes requests and new worlds to the session and sends its responses,
//! one at a time and only when the transport is ready.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use api::envoy::service::discovery::v3::DiscoveryRequest;
use bytes::Bytes;
use prost::Message as _;
use tokio::sync::mpsc::Permit;
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::body::{Message, Pieces, SendProgress, Sender};
use crate::control::{Client, CloseConnection, Control, Peer};
use crate::decode::{self, DeltaRequest, Fields, decode};
use crate::limits::Limits;
use crate::requests::{Requests, STREAM_BYTES};
use crate::response::Response;
use crate::session::{Session, Terms};
use crate::woken::WhenWoken;

/// Larger requests wait for a turn before they are decoded, which takes milliseconds.
const LARGE: usize = 64 * 1024;

/// Answers with at most this many names are processed on the stream's own task.
const FEW_NAMES: usize = 64;

/// Requests of a client that are read before other tasks run.
const REQUESTS_IN_A_ROW: usize = 8;

/// Statuses that an operator should know of. Others are ordinary: a server that stops, a client that leaves.
const REFUSALS: [Code; 6] = [
    Code::ResourceExhausted,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::Unauthenticated,
    Code::PermissionDenied,
    Code::Internal,
];

/// The request message of a protocol.
pub(crate) trait Request: Fields + Send + 'static {
    fn kind(&self) -> &str;
    fn take_node(&mut self) -> Option<Node>;
    fn is_rejection(&self) -> bool;
    /// Whether it only acknowledges a response, which takes almost no time.
    fn is_plain_answer(&self) -> bool;
    fn apply<C: Client>(self, session: &mut Session<C>) -> Result<(), Status>;
    /// Type and nonce of a message that only acknowledges a response, if they can be read without decoding it all.
    fn acknowledgement(_message: &[u8]) -> Option<(&str, &str)> {
        None
    }
}

impl Request for DiscoveryRequest {
    fn kind(&self) -> &str {
        &self.type_url
    }

    fn take_node(&mut self) -> Option<Node> {
        self.node.take()
    }

    fn is_rejection(&self) -> bool {
        self.error_detail.is_some()
    }

    fn is_plain_answer(&self) -> bool {
        let is_short = self.resource_names.len() <= FEW_NAMES;
        is_short && !self.is_rejection() && !self.response_nonce.is_empty()
    }

    fn apply<C: Client>(self, session: &mut Session<C>) -> Result<(), Status> {
        session.sotw(self)
    }
}

impl Request for DeltaRequest {
    fn kind(&self) -> &str {
        &self.message.type_url
    }

    fn take_node(&mut self) -> Option<Node> {
        self.message.node.take()
    }

    fn is_rejection(&self) -> bool {
        self.message.error_detail.is_some()
    }

    fn is_plain_answer(&self) -> bool {
        let names =
            self.message.resource_names_subscribe.is_empty() && self.message.resource_names_unsubscribe.is_empty();
        names && self.held.is_empty() && !self.is_rejection() && !self.message.response_nonce.is_empty()
    }

    fn apply<C: Client>(self, session: &mut Session<C>) -> Result<(), Status> {
        session.delta(self)
    }

    fn acknowledgement(message: &[u8]) -> Option<(&str, &str)> {
        decode::acknowledgement(message)
    }
}

/// Runs a stream until it ends, and sends its status to the client.
pub(crate) async fn run<C: Control, R: Request>(
    control: Arc<C>,
    mut requests: Requests,
    responses: Sender,
    peer: Peer,
    terms: Terms,
    stop: CancellationToken,
) {
    let address = peer.address;
    let connection = peer.extensions.get::<CloseConnection>().cloned();
    let status = tokio::select! {
        biased;
        () = WhenWoken::new(stop.cancelled()) => Status::unavailable("the server is shutting down"),
        status = converse::<C, R>(&*control, &mut requests, &responses, peer, terms) => status,
    };
    if REFUSALS.contains(&status.code()) {
        control.refused(address, &status);
    }
    // A client that takes no data cannot be sent a status either.
    if status.code() == Code::DeadlineExceeded
        && !responses.progress.is_empty()
        && let Some(CloseConnection(close)) = connection
    {
        return close.cancel();
    }
    // An error means that the client has disconnected; its status is not needed then.
    let _ = responses.messages.send(Err(status)).await;
}

async fn converse<C: Control, R: Request>(
    control: &C,
    requests: &mut Requests,
    responses: &Sender,
    peer: Peer,
    terms: Terms,
) -> Status {
    let _charge = match terms.share.charge(STREAM_BYTES) {
        Ok(charge) => charge,
        Err(exhausted) => return exhausted.into(),
    };
    match greet::<C, R>(control, requests, peer, terms).await {
        Ok(Some((session, node_id))) => serve::<C::Client, R>(session, &node_id, requests, responses).await,
        Ok(None) => Status::ok(""),
        Err(status) => status,
    }
}

/// Reads the first request, which identifies the client. None if the client disconnects before.
async fn greet<C: Control, R: Request>(
    control: &C,
    requests: &mut Requests,
    peer: Peer,
    terms: Terms,
) -> Result<Option<(Box<Session<C::Client>>, String)>, Status> {
    let (mut first, _turn) = loop {
        let Some(message) = requests.next().await? else { return Ok(None) };
        let turn = if message.len() > LARGE { Some(terms.share.turn().await) } else { None };
        let request: R = decode_aside(message, &terms.limits).await?;
        // Agents may report health before their Envoy sends its first request.
        if request.kind() != TypeUrl::HEALTH.as_str() {
            break (request, turn);
        }
    };
    requests.done();
    let node = first.take_node().filter(|node| !node.id.is_empty());
    let node = node.ok_or_else(|| Status::invalid_argument("missing node information"))?;
    check(&node, &terms.limits)?;
    let node_id = node.id.clone();
    let client = control.connect(node, peer).await?;
    let session = Box::new(Session::new(client, terms, Instant::now().into_std()));
    let session = work(session, |session| first.apply(session)).await?;
    Ok(Some((session, node_id)))
}

async fn serve<C: Client, R: Request>(
    session: Box<Session<C>>,
    node_id: &str,
    requests: &mut Requests,
    responses: &Sender,
) -> Status {
    let ended = WhenWoken::new(session.client.ended());
    let exchanged = tokio::select! {
        biased;
        status = ended => return status,
        exchanged = exchange::<C, R>(session, node_id, requests, responses) => exchanged,
    };
    match exchanged {
        Ok(session) => finish(session, responses).await.unwrap_or_else(|status| status),
        Err(status) => status,
    }
}

/// Serves a client until it closes its side of the stream.
async fn exchange<C: Client, R: Request>(
    mut session: Box<Session<C>>,
    node_id: &str,
    requests: &mut Requests,
    responses: &Sender,
) -> Result<Box<Session<C>>, Status> {
    let mut due = true;
    let mut in_a_row = 0_usize;
    let mut alarm = Alarm::default();
    let mut unsent = UnsentWatch::new(&session.terms.limits);
    loop {
        if let Some(took) = responses.progress.delivered() {
            session.client.delivered(took);
        }
        alarm.set(session.wakes_at());
        tokio::select! {
            biased;
            message = requests.next() => {
                let Some(message) = message? else { return Ok(session) };
                let acknowledgement = R::acknowledgement(&message);
                if !acknowledgement.is_some_and(|(kind, nonce)| session.acknowledged(kind, nonce)) {
                    session = accept::<C, R>(session, node_id, message).await?;
                }
                requests.done();
                due = due || session.is_due(Instant::now().into_std());
                if !due {
                    session.report_settled();
                }
                // A client with many requests lets other tasks run.
                in_a_row += 1;
                if in_a_row.is_multiple_of(REQUESTS_IN_A_ROW) {
                    yield_now().await;
                }
            }
            () = unsent.alarm.rings() => unsent.check(&responses.progress)?,
            slot = responses.messages.reserve(), if due => {
                let slot = slot.map_err(|_| Status::cancelled("the client left"))?;
                (session, due) = send_next(session, slot, responses, &mut unsent).await?;
            }
            () = session.client.changed() => {
                session = adopt(session).await?;
                // Without a wait for the transport, unless it still has the response before.
                (session, due) = match responses.messages.try_reserve() {
                    Ok(slot) => send_next(session, slot, responses, &mut unsent).await?,
                    Err(_) => (session, true),
                };
            }
            // While a response waits for the client to read, there is nothing to be woken for.
            () = alarm.rings(), if !due => due = true,
        }
    }
}

/// Adopts the newest world.
async fn adopt<C: Client>(mut session: Box<Session<C>>) -> Result<Box<Session<C>>, Status> {
    if session.client.adopt_quickly() {
        session.world_moved();
        return Ok(session);
    }
    work(session, |session| {
        session.client.adopt();
        session.world_moved();
        Ok(())
    })
    .await
}

/// Sends the next response, if there is one. Returns whether another may be due.
async fn send_next<C: Client>(
    session: Box<Session<C>>,
    slot: Permit<'_, Message>,
    responses: &Sender,
    unsent: &mut UnsentWatch,
) -> Result<(Box<Session<C>>, bool), Status> {
    let (mut session, response) = next(session).await?;
    let Some(response) = response else {
        session.report_settled();
        return Ok((session, false));
    };
    responses.progress.waits();
    let now = Instant::now();
    slot.send(Ok(Pieces { chunks: response.chunks, queued: now }));
    unsent.begin(&responses.progress);
    let due = session.is_due(now.into_std());
    if !due {
        session.report_settled();
    }
    Ok((session, due))
}

/// When a session wants to be woken. The timer is kept and moved: a stream waits many times for the same moment.
#[derive(Default)]
struct Alarm {
    timer: Option<Pin<Box<Sleep>>>,
    at: Option<std::time::Instant>,
}

impl Alarm {
    fn set(&mut self, at: Option<std::time::Instant>) {
        if self.at == at {
            return;
        }
        self.at = at;
        match (at, &mut self.timer) {
            (Some(at), Some(timer)) => timer.as_mut().reset(at.into()),
            (Some(at), timer) => *timer = Some(Box::pin(sleep_until(at.into()))),
            (None, _) => {}
        }
    }

    async fn rings(&mut self) {
        match (&self.at, &mut self.timer) {
            (Some(_), Some(timer)) => timer.as_mut().await,
            _ => std::future::pending().await,
        }
    }
}

/// Sends the remaining responses after the client has closed its side.
async fn finish<C: Client>(mut session: Box<Session<C>>, responses: &Sender) -> Result<Status, Status> {
    while let Ok(slot) = responses.messages.reserve().await {
        let response;
        (session, response) = next(session).await?;
        match response {
            Some(response) => slot.send(Ok(Pieces { chunks: response.chunks, queued: Instant::now() })),
            None => break,
        }
    }
    Ok(Status::ok(""))
}

/// Ends the stream of a client that takes no part of a response for the limit. Its connection alone would be kept by
/// answered pings, and its resources with it.
struct UnsentWatch {
    limit: Duration,
    /// How many pieces were taken when the alarm was set.
    taken: u64,
    alarm: Alarm,
}

impl UnsentWatch {
    fn new(limits: &Limits) -> UnsentWatch {
        UnsentWatch { limit: limits.send_time, taken: 0, alarm: Alarm::default() }
    }

    /// Checks after the limit whether the client took something. Does nothing if a check is planned already.
    fn begin(&mut self, progress: &SendProgress) {
        if self.alarm.at.is_none() && !self.limit.is_zero() {
            self.taken = progress.taken();
            self.alarm.set(Some(Instant::now().into_std() + self.limit));
        }
    }

    fn check(&mut self, progress: &SendProgress) -> Result<(), Status> {
        // A new alarm, so that an idle stream keeps no timer.
        self.alarm = Alarm::default();
        if progress.is_empty() {
            return Ok(());
        }
        if self.taken == progress.taken() {
            let message = format!("the client took no part of a response within {:?}", self.limit);
            return Err(Status::deadline_exceeded(message));
        }
        self.begin(progress);
        Ok(())
    }
}

/// Computes the next response, on the client's executor unless it is quick.
async fn next<C: Client>(mut session: Box<Session<C>>) -> Result<(Box<Session<C>>, Option<Response>), Status> {
    let now = Instant::now().into_std();
    if !session.is_due(now) {
        return Ok((session, None));
    }
    if session.is_quick() {
        let response = session.next(now);
        return Ok((session, response));
    }
    let _turn = if session.is_heavy() { Some(session.terms.share.turn().await) } else { None };
    let executor = session.client.executor();
    let compute = move || {
        let response = session.next(now);
        (session, response)
    };
    executor.run(compute).await
}

/// Applies a function to the session on the client's executor.
async fn work<C: Client>(
    mut session: Box<Session<C>>,
    job: impl FnOnce(&mut Session<C>) -> Result<(), Status> + Send + 'static,
) -> Result<Box<Session<C>>, Status> {
    let executor = session.client.executor();
    executor.run(move || job(&mut session).map(|()| session)).await?
}

async fn accept<C: Client, R: Request>(
    session: Box<Session<C>>,
    node_id: &str,
    message: Bytes,
) -> Result<Box<Session<C>>, Status> {
    let share = session.terms.share.clone();
    let is_large = message.len() > LARGE;
    let _turn_to_decode = if is_large { Some(share.turn().await) } else { None };
    let mut request: R = decode_aside(message, &session.terms.limits).await?;
    let is_heavy = is_large || session.is_heavy() && !request.is_plain_answer();
    let _turn = if is_heavy && !is_large { Some(share.turn().await) } else { None };
    // Finding the cause of a rejection searches all configuration.
    let _turn_for_blame = if request.is_rejection() && !is_heavy { Some(share.turn().await) } else { None };
    match request.take_node() {
        Some(node) if !node.id.is_empty() && node.id != node_id => {
            Err(Status::invalid_argument(format!("node changed in mid-stream; it was {node_id}")))
        }
        _ if request.is_plain_answer() && session.watches(request.kind()) => {
            let mut session = session;
            request.apply(&mut session).map(|()| session)
        }
        _ => work(session, move |session| request.apply(session)).await,
    }
}

/// Decodes a request. Decoding a large request takes milliseconds, which other streams of this thread must not wait for.
async fn decode_aside<R: Request>(message: Bytes, limits: &Arc<Limits>) -> Result<R, Status> {
    if message.len() <= LARGE {
        return decode(&message, limits);
    }
    let limits = Arc::clone(limits);
    let decoded = tokio::task::spawn_blocking(move || decode(&message, &limits)).await;
    decoded.map_err(|_| Status::internal("could not decode a request"))?
}

fn check(node: &Node, limits: &Limits) -> Result<(), Status> {
    if node.id.contains(char::is_control) {
        return Err(Status::invalid_argument("node id with control characters"));
    }
    let metadata = node.metadata.as_ref().map_or(0, prost::Message::encoded_len);
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use http_body_util::{BodyExt, StreamBody};
    use tokio_stream::wrappers::UnboundedReceiverStream;
    use tonic::body::Body;

    use super::*;
    use crate::body::MessageBody;
    use crate::budget::Budget;
    use crate::control::Event;
    use crate::payload::Protocol;
    use crate::set::ResourceSet;

    /// A client of one cluster that counts how often its stream looks for changes.
    #[derive(Default)]
    struct Counted(Arc<AtomicUsize>);

    impl Client for Counted {
        async fn changed(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            std::future::pending().await
        }

        fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
            Some(Arc::new(ResourceSet::new(kind.clone(), [api::Resource::encoded("a", b"1".to_vec())])))
        }

        fn observe(&mut self, _: &Event<'_>) {}
    }

    #[tokio::test]
    async fn stream_of_a_client_that_does_not_read_sleeps() {
        let limits = Arc::new(Limits { patience: Duration::from_millis(1), ..Limits::default() });
        let share = Budget::default().share(None);
        let terms = Terms {
            protocol: Protocol::Sotw,
            only: None,
            limits: limits.clone(),
            identifier: "test".into(),
            stream: 7,
            share: share.clone(),
        };
        let looks = Arc::new(AtomicUsize::new(0));
        let mut session = Box::new(Session::new(Counted(looks.clone()), terms, std::time::Instant::now()));
        session.sotw(DiscoveryRequest { type_url: TypeUrl::CLUSTER.to_string(), ..Default::default() }).unwrap();
        let (_open, queue) = tokio::sync::mpsc::unbounded_channel::<Result<http_body::Frame<Bytes>, Status>>();
        let body = Body::new(StreamBody::new(UnboundedReceiverStream::new(queue)).boxed_unsync());
        let mut requests = Requests::new(body, Arc::new(Limits::default()), &share);
        let (responses, _unread) = MessageBody::new();
        let serving = exchange::<Counted, DiscoveryRequest>(session, "test", &mut requests, &responses);
        assert!(tokio::time::timeout(Duration::from_millis(100), serving).await.is_err(), "the stream goes on");
        // A stream that is woken again and again looks tens of thousands of times.
        assert!(looks.load(Ordering::Relaxed) < 100, "{looks:?}");
    }
}
