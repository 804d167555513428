//! Server-sent events: changes, pushes, rejections and sources as they happen. `observer` makes the events while a reader is
//! connected; all readers share their bytes. A reader that falls behind is disconnected, and so is the oldest of too many.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::super::Pages;
use super::observer;

/// Streams at the same time; the oldest is closed for a new one.
const MOST_STREAMS: usize = 1000;
/// Events that a reader may be behind.
const QUEUE: usize = 512;
/// A comment is sent when nothing else was for this long, so that a reader that is gone is noticed.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Readers are asked to come back after this time, before the connection's time limit.
const LIFETIME: Duration = Duration::from_secs(240);

/// The readers and the last events.
pub(in crate::http) struct EventHub(Arc<Hub>);

struct Hub {
    sender: broadcast::Sender<Arc<ApiEvent>>,
    /// The last events, for readers that come back.
    recent: Mutex<VecDeque<Arc<ApiEvent>>>,
    streams: Mutex<VecDeque<(u64, CancellationToken)>>,
    next_stream: AtomicU64,
    next_event: AtomicU64,
    is_observed: AtomicBool,
}

/// One event as it is sent.
#[derive(Debug)]
struct ApiEvent {
    id: u64,
    bytes: Bytes,
}

impl Default for EventHub {
    fn default() -> EventHub {
        EventHub(Arc::new(Hub {
            sender: broadcast::channel(QUEUE).0,
            recent: Mutex::default(),
            streams: Mutex::default(),
            next_stream: AtomicU64::new(0),
            next_event: AtomicU64::new(1),
            is_observed: AtomicBool::new(false),
        }))
    }
}

impl EventHub {
    /// Sends an event to all readers.
    pub(super) fn send(&self, kind: &str, data: &Value) {
        let id = self.0.next_event.fetch_add(1, Ordering::Relaxed);
        let bytes = Bytes::from(format!("id: {id}\nevent: {kind}\ndata: {data}\n\n"));
        let event = Arc::new(ApiEvent { id, bytes });
        let mut recent = self.0.recent.lock();
        if recent.len() >= QUEUE {
            recent.pop_front();
        }
        recent.push_back(event.clone());
        // Fails without a reader.
        let _ = self.0.sender.send(event);
    }

    /// Number of readers.
    pub(super) fn readers(&self) -> usize {
        self.0.streams.lock().len()
    }

    /// Called by the observer when no reader has been connected for a while. False if one came meanwhile.
    pub(super) fn rest(&self) -> bool {
        let streams = self.0.streams.lock();
        if !streams.is_empty() {
            return false;
        }
        self.0.recent.lock().clear();
        self.0.is_observed.store(false, Ordering::SeqCst);
        true
    }

    /// Adds a reader. Returns whether the observer has to be started.
    fn enter(&self) -> (StreamSlot, bool) {
        let number = self.0.next_stream.fetch_add(1, Ordering::Relaxed);
        let close = CancellationToken::new();
        let mut streams = self.0.streams.lock();
        if streams.len() >= MOST_STREAMS
            && let Some((_, oldest)) = streams.pop_front()
        {
            oldest.cancel();
        }
        streams.push_back((number, close.clone()));
        let is_first = !self.0.is_observed.swap(true, Ordering::SeqCst);
        (StreamSlot { hub: self.0.clone(), number, close }, is_first)
    }
}

/// A reader's place; dropping it frees the place.
struct StreamSlot {
    hub: Arc<Hub>,
    number: u64,
    close: CancellationToken,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.hub.streams.lock().retain(|(number, _)| *number != self.number);
    }
}

/// The state of one stream.
struct EventReader {
    slot: StreamSlot,
    missed: VecDeque<Arc<ApiEvent>>,
    events: broadcast::Receiver<Arc<ApiEvent>>,
    last: u64,
    end: Instant,
    stop: CancellationToken,
    is_open: bool,
}

pub(super) async fn stream(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    let hub = &pages.0.events;
    let known = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<u64>().ok());
    let (slot, is_first) = hub.enter();
    let (events, missed) = {
        let recent = hub.0.recent.lock();
        let missed = recent.iter().filter(|event| known.is_some_and(|known| event.id > known)).cloned().collect();
        (hub.0.sender.subscribe(), missed)
    };
    if is_first {
        tokio::spawn(observer::observe(pages.downgrade(), pages.0.stop.clone()));
    }
    let end = Instant::now() + LIFETIME;
    let stop = pages.0.stop.clone();
    let reader = EventReader { slot, missed, events, last: known.unwrap_or(0), end, stop, is_open: false };
    let body = Body::from_stream(stream::unfold(reader, next));
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// The next part of the stream. It ends for a reader that is behind, and when it has lasted long enough: readers come
/// back with the number of their last event.
async fn next(mut reader: EventReader) -> Option<(Result<Bytes, Infallible>, EventReader)> {
    if !std::mem::replace(&mut reader.is_open, true) {
        return Some((Ok(Bytes::from_static(b"retry: 200\n\n")), reader));
    }
    if let Some(event) = reader.missed.pop_front() {
        reader.last = event.id;
        return Some((Ok(event.bytes.clone()), reader));
    }
    loop {
        let until = reader.end.min(Instant::now() + KEEPALIVE);
        let received = tokio::select! {
            () = reader.slot.close.cancelled() => return None,
            () = reader.stop.cancelled() => return None,
            received = timeout_at(until, reader.events.recv()) => received,
        };
        match received {
            Ok(Ok(event)) if event.id <= reader.last => {}
            Ok(Ok(event)) => {
                reader.last = event.id;
                return Some((Ok(event.bytes.clone()), reader));
            }
            Ok(Err(RecvError::Lagged(_) | RecvError::Closed)) => return None,
            Err(_) if Instant::now() >= reader.end => return None,
            Err(_) => return Some((Ok(Bytes::from_static(b": \n\n")), reader)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EventHub, MOST_STREAMS};

    #[test]
    fn the_oldest_of_too_many_streams_is_closed() {
        let hub = EventHub::default();
        let mut slots: Vec<_> = (0..MOST_STREAMS).map(|_| hub.enter().0).collect();
        assert!(!slots[0].close.is_cancelled());
        let (newest, is_first) = hub.enter();
        assert!(!is_first && slots[0].close.is_cancelled() && !slots[1].close.is_cancelled());
        assert_eq!(hub.readers(), MOST_STREAMS);
        slots.clear();
        assert!(!hub.rest(), "one reader is left");
        drop(newest);
        assert!(hub.rest() && hub.enter().1, "the next reader starts the observer again");
    }
}
