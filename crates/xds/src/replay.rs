//! A stream without a connection: encoded requests go in, responses are counted. Fuzzing feeds hostile requests with it.

use std::sync::Arc;
use std::time::Instant;

use api::envoy::service::discovery::v3::DiscoveryRequest;
use bytes::Bytes;
use tonic::Status;

use crate::budget::Budget;
use crate::control::Client;
use crate::decode::{DeltaRequest, decode};
use crate::limits::Limits;
use crate::payload::Protocol;
use crate::session::{Session, Terms};
use crate::stream::Request;

/// Sends state-of-the-world requests to a new stream, and returns the number of responses. At an empty message the client
/// adopts its next world. An error is the status with which the stream ends.
pub fn replay_sotw<C: Client>(client: C, messages: impl IntoIterator<Item = Bytes>) -> Result<usize, Status> {
    replay::<C, DiscoveryRequest>(client, Protocol::Sotw, messages)
}

/// The same with delta requests.
pub fn replay_delta<C: Client>(client: C, messages: impl IntoIterator<Item = Bytes>) -> Result<usize, Status> {
    replay::<C, DeltaRequest>(client, Protocol::Delta, messages)
}

fn replay<C: Client, R: Request>(
    client: C,
    protocol: Protocol,
    messages: impl IntoIterator<Item = Bytes>,
) -> Result<usize, Status> {
    let terms = Terms {
        protocol,
        only: None,
        limits: Arc::new(Limits::default()),
        identifier: "replay".into(),
        stream: 1,
        share: Budget::default().share(None),
    };
    let now = Instant::now();
    let (mut session, mut responses) = (Session::new(client, terms, now), 0);
    for message in messages {
        if message.is_empty() {
            session.client.adopt();
            session.world_moved();
        } else {
            let mut request: R = decode(&message, &session.terms.limits)?;
            request.take_node();
            request.apply(&mut session)?;
        }
        while session.next(now).is_some() {
            responses += 1;
        }
    }
    Ok(responses)
}
