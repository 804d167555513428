//! gRPC messages over `http_body` without tonic's encoder, which would copy every response into a buffer
//! of its stream. Here a response is a list of shared pieces, and the status goes out as trailers.

use std::convert::Infallible;
use std::iter::Peekable;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::codec::{DecodeBuf, Decoder};
use tonic::{Code, Status};

/// Where a stream's task sends its messages. An error, which may be `Status::ok`, ends the stream.
#[derive(Clone)]
pub(crate) struct Sender {
    pub(crate) messages: mpsc::Sender<Message>,
    pub(crate) progress: Arc<SendProgress>,
}

/// A response, or the status that ends the stream.
pub(crate) type Message = Result<Pieces, Status>;

/// The pieces of one response.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(crate) chunks: Vec<Bytes>,
    /// When the stream's task had it ready.
    pub(crate) queued: Instant,
}

/// Largest piece that is passed to the transport at once, so that a slow reader of a large resource shows progress.
const MAX_PIECE: usize = 256 * 1024;

/// How much of a stream's messages the transport has taken.
#[derive(Debug, Default)]
pub(crate) struct SendProgress {
    pieces: AtomicU64,
    is_empty: AtomicBool,
    /// Nanoseconds that the last message waited, plus one; zero once the stream's task has read it.
    waited: AtomicU64,
}

impl SendProgress {
    /// Number of pieces that the transport has taken.
    pub(crate) fn taken(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }

    /// True if no piece waits for the transport.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_empty.load(Ordering::Relaxed)
    }

    /// How long the last message waited for the transport; `None` if there is none since the last call.
    pub(crate) fn delivered(&self) -> Option<Duration> {
        // Nearly always zero, and a read costs less than a swap.
        let waited = match self.waited.load(Ordering::Relaxed) {
            0 => return None,
            _ => self.waited.swap(0, Ordering::Relaxed),
        };
        Some(Duration::from_nanos(waited.checked_sub(1)?))
    }

    fn took_up(&self, queued: Instant) {
        let waited = u64::try_from(queued.elapsed().as_nanos()).unwrap_or(u64::MAX - 1);
        self.waited.store(waited + 1, Ordering::Relaxed);
        self.waits();
    }

    /// Records that a message waits for the transport.
    pub(crate) fn waits(&self) {
        self.is_empty.store(false, Ordering::Relaxed);
    }
}

/// Small pieces are copied together up to this size, that of an HTTP/2 frame; the copy exists only while it is sent.
const FRAME: usize = 16 * 1024;

/// The response body of one stream, in the pieces that its task sends.
pub(crate) struct MessageBody {
    messages: mpsc::Receiver<Message>,
    pieces: Peekable<std::vec::IntoIter<Bytes>>,
    /// What is left of a large piece.
    rest: Option<Bytes>,
    ended: bool,
    progress: Arc<SendProgress>,
}

impl MessageBody {
    /// A body and the sender that feeds it. At most one message is queued, so the task notices a slow reader at once.
    pub(crate) fn new() -> (Sender, Self) {
        let (sender, messages) = mpsc::channel(1);
        let progress = Arc::<SendProgress>::default();
        let sender = Sender { messages: sender, progress: Arc::clone(&progress) };
        (sender, Self { messages, pieces: Vec::new().into_iter().peekable(), rest: None, ended: false, progress })
    }
}

/// The next pieces in one, if together they fit a frame; else the next piece as it is.
fn next_data(pieces: &mut Peekable<impl Iterator<Item = Bytes>>) -> Option<Bytes> {
    let first = pieces.next()?;
    let mut joined: Option<BytesMut> = None;
    let mut len = first.len();
    while let Some(piece) = pieces.next_if(|piece| len + piece.len() <= FRAME) {
        let joined = joined.get_or_insert_with(|| {
            let mut joined = BytesMut::with_capacity(FRAME);
            joined.extend_from_slice(&first);
            joined
        });
        joined.extend_from_slice(&piece);
        len = joined.len();
    }
    Some(joined.map_or(first, BytesMut::freeze))
}

impl Body for MessageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(mut piece) = self.rest.take().or_else(|| next_data(&mut self.pieces)) {
                if piece.len() > MAX_PIECE {
                    self.rest = Some(piece.split_off(MAX_PIECE));
                }
                self.progress.pieces.fetch_add(1, Ordering::Relaxed);
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            // Set before the channel is read: a message that arrives meanwhile clears it again.
            self.progress.is_empty.store(true, Ordering::Relaxed);
            let status = match ready!(self.messages.poll_recv(cx)) {
                Some(Ok(Pieces { chunks, queued })) => {
                    self.progress.took_up(queued);
                    self.pieces = chunks.into_iter().peekable();
                    continue;
                }
                Some(Err(status)) => status,
                // Only a panic ends a task without a status.
                None => Status::internal("the stream's task failed"),
            };
            self.ended = true;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers(&status)))));
        }
    }
}

fn trailers(status: &Status) -> http::HeaderMap {
    let mut trailers = http::HeaderMap::new();
    if status.add_header(&mut trailers).is_err() {
        trailers.insert("grpc-status", http::HeaderValue::from(Code::Internal as i32));
    }
    trailers
}

/// Decodes protobuf messages. Malformed bytes are the status `InvalidArgument`.
pub(crate) struct Reader<M>(PhantomData<fn() -> M>);

impl<M> Default for Reader<M> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<M: prost::Message + Default + 'static> Decoder for Reader<M> {
    type Item = M;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<M>, Status> {
        M::decode(buffer)
            .map(Some)
            .map_err(|error| Status::invalid_argument(format!("could not decode message: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::{Body, Bytes, FRAME, Instant, Message, MessageBody, Pieces, Pin, Status};

    fn message(chunks: Vec<Bytes>) -> Message {
        Ok(Pieces { chunks, queued: Instant::now() })
    }

    async fn frame(body: &mut MessageBody) -> Option<http_body::Frame<Bytes>> {
        poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await.map(|frame| frame.unwrap())
    }

    #[tokio::test]
    async fn small_pieces_leave_together() {
        let (sender, mut body) = MessageBody::new();
        let piece = |byte: u8| Bytes::from(vec![byte; FRAME / 4]);
        let pieces: Vec<Bytes> = (0..6).map(piece).chain([Bytes::from(vec![6; FRAME])]).collect();
        sender.messages.send(message(pieces)).await.unwrap();
        let mut sent = Vec::new();
        for expected in [FRAME, FRAME / 2, FRAME] {
            let data = frame(&mut body).await.unwrap().into_data().unwrap();
            assert_eq!(data.len(), expected);
            sent.extend(data);
        }
        assert!(sent.chunks(FRAME / 4).map(|chunk| chunk[0]).eq([0, 1, 2, 3, 4, 5, 6, 6, 6, 6]));
    }

    #[tokio::test]
    async fn large_pieces_leave_as_they_are_and_the_status_as_trailers() {
        let (sender, mut body) = MessageBody::new();
        let shared = Bytes::from(vec![7; FRAME]);
        sender.messages.send(message(vec![Bytes::from_static(b"head"), shared.clone()])).await.unwrap();
        assert_eq!(frame(&mut body).await.unwrap().into_data().unwrap(), "head");
        assert_eq!(frame(&mut body).await.unwrap().into_data().unwrap().as_ptr(), shared.as_ptr());
        sender.messages.send(Err(Status::unavailable("later"))).await.unwrap();
        let trailers = frame(&mut body).await.unwrap().into_trailers().unwrap();
        assert_eq!(
            (&trailers["grpc-status"], &trailers["grpc-message"]),
            (&"14".parse().unwrap(), &"later".parse().unwrap())
        );
        assert!(frame(&mut body).await.is_none());
    }

    #[tokio::test]
    async fn task_that_died_is_an_internal_error() {
        let (sender, mut body) = MessageBody::new();
        drop(sender);
        assert_eq!(frame(&mut body).await.unwrap().into_trailers().unwrap()["grpc-status"], "13");
    }
}
