//! Assembles the gRPC messages of one stream. Incomplete messages are charged to the client's share of the budget,
//! and must be completed before a deadline.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::body::Body;

use crate::budget::{Charge, Share};
use crate::limits::Limits;

/// Bytes of a gRPC prefix: compression flag and length.
const HEAD: usize = 5;

/// Bytes charged for every stream: its task, its state, and an ordinary request in assembly.
pub(crate) const STREAM_BYTES: usize = 32 * 1024;

/// The requests of one stream.
pub(crate) struct Requests {
    body: Body,
    limits: Arc<Limits>,
    pending: BytesMut,
    charge: Charge,
    /// Deadline of the message being read. None between messages.
    due: Option<Instant>,
}

impl Requests {
    /// Starts to read. The first request has a deadline; between later ones a client may be silent.
    pub(crate) fn new(body: Body, limits: Arc<Limits>, share: &Share) -> Self {
        let due = Some(Instant::now() + limits.request_time);
        Self { body, limits, pending: BytesMut::new(), charge: share.nothing(), due }
    }

    /// The next message; None when the client has closed its side. The future may be dropped and created again.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.complete()? {
                return Ok(Some(message));
            }
            let frame = match self.due {
                Some(due) => timeout_at(due, self.body.frame()).await.map_err(|_| self.late())?,
                None => self.body.frame().await,
            };
            match frame {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        if let Some(message) = self.whole(&data) {
                            return Ok(Some(message));
                        }
                        self.take(&data)?;
                    }
                }
                None if self.pending.is_empty() => return Ok(None),
                None => return Err(Status::invalid_argument("the stream ended in the middle of a request")),
            }
        }
    }

    /// The message of a frame that has exactly one, as most requests do. It is not copied.
    fn whole(&mut self, data: &Bytes) -> Option<Bytes> {
        let [0, length @ .., _] = data.first_chunk::<{ HEAD + 1 }>()? else { return None };
        let len = u32::from_be_bytes(*length) as usize;
        if !self.pending.is_empty() || data.len() != HEAD + len || len > self.limits.request_bytes {
            return None;
        }
        self.due = None;
        Some(data.slice(HEAD..))
    }

    fn late(&self) -> Status {
        Status::deadline_exceeded(format!("no complete request arrived within {:?}", self.limits.request_time))
    }

    fn take(&mut self, data: &[u8]) -> Result<(), Status> {
        if data.is_empty() {
            return Ok(());
        }
        // Charged before memory is allocated; the stream's own charge covers ordinary requests.
        let needed = self.pending.len() + data.len();
        let room = if needed > self.pending.capacity() { needed.next_power_of_two() } else { self.pending.capacity() };
        self.charge.set(room.saturating_sub(STREAM_BYTES / 2))?;
        self.pending.reserve(room - self.pending.len());
        self.pending.put_slice(data);
        self.due.get_or_insert_with(|| Instant::now() + self.limits.request_time);
        Ok(())
    }

    /// Removes one complete message from the pending bytes.
    fn complete(&mut self) -> Result<Option<Bytes>, Status> {
        let [flag, a, b, c, d, ..] = *self.pending else { return Ok(None) };
        if flag != 0 {
            return Err(Status::unimplemented("compressed requests are not supported"));
        }
        let (len, most) = (u32::from_be_bytes([a, b, c, d]) as usize, self.limits.request_bytes);
        if len > most {
            return Err(Status::resource_exhausted(format!("a request has {len} bytes, at most {most} are allowed")));
        }
        if self.pending.len() < HEAD + len {
            return Ok(None);
        }
        let message = self.pending.split_to(HEAD + len).freeze().slice(HEAD..);
        if self.pending.is_empty() || len > STREAM_BYTES {
            // The rest gets a separate allocation, so that the memory of a large message is freed after it is read.
            self.pending = BytesMut::from(&*self.pending);
        }
        self.due = (!self.pending.is_empty()).then(|| Instant::now() + self.limits.request_time);
        Ok(Some(message))
    }

    /// The message was processed; its charge is released.
    pub(crate) fn done(&mut self) {
        // Reducing a charge cannot fail.
        let _ = self.charge.set(self.pending.capacity().saturating_sub(STREAM_BYTES / 2));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::{BufMut, Bytes};
    use http_body_util::{BodyExt, StreamBody};
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;
    use tonic::Code;

    use super::{Body, Requests, Status};
    use crate::budget::{Allowance, Budget};
    use crate::limits::Limits;

    type Pieces = mpsc::UnboundedSender<Result<http_body::Frame<Bytes>, Status>>;

    fn requests(budget: &Budget) -> (Pieces, Requests) {
        let (pieces, queue) = mpsc::unbounded_channel();
        let body = Body::new(StreamBody::new(UnboundedReceiverStream::new(queue)).boxed_unsync());
        (pieces, Requests::new(body, Arc::new(Limits::default()), &budget.share(None)))
    }

    fn framed(messages: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages {
            bytes.put_u8(0);
            bytes.put_u32(message.len() as u32);
            bytes.put_slice(message);
        }
        bytes
    }

    fn send(pieces: &Pieces, bytes: &[u8]) {
        pieces.send(Ok(http_body::Frame::data(Bytes::copy_from_slice(bytes)))).unwrap();
    }

    #[tokio::test]
    async fn messages_are_put_together_from_any_pieces() {
        let large = vec![7; 100_000];
        let bytes = framed(&[b"one", b"", b"two", &large, b"three"]);
        for size in [1, 2, 5, 7, 50_000, bytes.len()] {
            let (pieces, mut requests) = requests(&Budget::default());
            bytes.chunks(size).for_each(|piece| send(&pieces, piece));
            drop(pieces);
            for expected in [&b"one"[..], b"", b"two", &large, b"three"] {
                assert_eq!(requests.next().await.unwrap().unwrap(), expected, "pieces of {size}");
                requests.done();
            }
            assert_eq!(requests.next().await.unwrap(), None);
        }
    }

    #[tokio::test]
    async fn hole_05_unfinished_messages_are_charged_and_given_back() {
        let budget = Budget::new(Allowance { peer_bytes: 5 << 20, ..Allowance::default() });
        let message = framed(&[&vec![0; (4 << 20) - 5]]);
        let (pieces, mut first) = requests(&budget);
        message[..message.len() - 1].chunks(16 << 10).for_each(|piece| send(&pieces, piece));
        let mut next = Box::pin(first.next());
        assert!(tokio::time::timeout(Duration::from_millis(1), &mut next).await.is_err(), "not there yet");
        assert!(budget.used() > 3 << 20, "{} bytes charged", budget.used());
        send(&pieces, &message[message.len() - 1..]);
        next.await.unwrap().unwrap();
        first.done();
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn hole_05_more_unfinished_messages_than_the_budget_are_refused() {
        let budget = Budget::new(Allowance { total_bytes: 1 << 20, ..Allowance::default() });
        let (pieces, mut requests) = requests(&budget);
        framed(&[&vec![0; 2 << 20]]).chunks(16 << 10).for_each(|piece| send(&pieces, piece));
        assert_eq!(requests.next().await.unwrap_err().code(), Code::ResourceExhausted);
        drop(requests);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn hole_05_a_message_has_to_be_finished_in_time() {
        let limit = Duration::from_millis(200);
        let within = |requests: Requests| {
            let limits = Arc::new(Limits { request_time: limit, ..Limits::default() });
            Requests { limits, due: requests.due.map(|_| tokio::time::Instant::now() + limit), ..requests }
        };
        let (_pieces, silent) = requests(&Budget::default());
        assert_eq!(within(silent).next().await.unwrap_err().code(), Code::DeadlineExceeded, "no first request");

        let (pieces, slow) = requests(&Budget::default());
        let mut slow = within(slow);
        send(&pieces, &framed(&[b"first"]));
        slow.next().await.unwrap().unwrap();
        assert!(tokio::time::timeout(limit * 2, slow.next()).await.is_err(), "silence between messages is fine");
        let (pieces, dripped) = requests(&Budget::default());
        let mut dripped = within(dripped);
        let message = framed(&[&[1; 10_000]]);
        let dripping = tokio::spawn(async move {
            for byte in message {
                if pieces.send(Ok(http_body::Frame::data(Bytes::copy_from_slice(&[byte])))).is_err() {
                    return;
                }
                tokio::time::sleep(limit / 100).await;
            }
        });
        assert_eq!(dripped.next().await.unwrap_err().code(), Code::DeadlineExceeded, "progress does not prolong it");
        dripping.abort();
    }

    #[tokio::test]
    async fn claims_of_large_messages_and_half_ones_are_refused() {
        let refused = async |bytes: &[u8], ends: bool| {
            let (pieces, mut requests) = requests(&Budget::default());
            send(&pieces, bytes);
            if ends {
                drop(pieces);
            }
            requests.next().await.unwrap_err().code()
        };
        assert_eq!(refused(&[0, 0xff, 0, 0, 0], false).await, Code::ResourceExhausted);
        assert_eq!(refused(&[1, 0, 0, 0, 0], false).await, Code::Unimplemented);
        assert_eq!(refused(&[0, 0, 0], true).await, Code::InvalidArgument);
    }
}
