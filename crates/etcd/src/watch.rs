//! A watch of a range of keys. It asks for progress at intervals, so that a silent member is noticed and the revision
//! advances even if other keys are written.

use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use crate::client::{EtcdClient, KeyRange, LARGEST_MESSAGE};
use crate::error::EtcdError;
use crate::schema::{
    self, DELETE, KeyEvent, KeyValue, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchRequestKind,
    WatchResponse,
};

const OPEN: Duration = Duration::from_secs(3);
/// Progress is asked for after this time without a response.
const PROGRESS: Duration = Duration::from_secs(1);
/// The watch fails after this time without a response.
const SILENCE: Duration = Duration::from_secs(5);
/// Requests that wait to be sent.
const QUEUE: usize = 8;

/// A running watch.
pub struct EtcdWatch {
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
    member: usize,
    address: String,
    /// Events of a response whose rest has not arrived.
    partial: Vec<KeyEvent>,
    last: Instant,
    next_progress: Instant,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchUpdate {
    /// The watch exists. The revision is that of the whole store.
    Created(i64),
    /// Writes in the order of their revisions.
    Written(Vec<KeyWrite>),
    /// All events up to this revision were sent.
    Progress(i64),
}

/// A write of a key. The `mod_revision` of a deleted one is that of the delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyWrite {
    pub entry: KeyValue,
    pub is_delete: bool,
}

impl EtcdClient {
    /// Watches keys from a revision on.
    pub async fn watch(&self, range: &KeyRange, from: i64) -> Result<EtcdWatch, EtcdError> {
        let member = self.current();
        let opened = timeout(OPEN, self.open_watch(range, from, member)).await;
        let opened = opened.unwrap_or_else(|_| {
            Err(EtcdError::Unanswered(format!("no response within {OPEN:?} ({})", self.address(member))))
        });
        opened.inspect_err(|error| self.after_failure(member, error))
    }

    async fn open_watch(&self, range: &KeyRange, from: i64, member: usize) -> Result<EtcdWatch, EtcdError> {
        let (requests, queue) = mpsc::channel(QUEUE);
        let create = WatchCreateRequest {
            key: range.start.clone(),
            range_end: range.end.clone(),
            start_revision: from,
            fragment: true,
        };
        // The queue is empty and open.
        let _ = requests.try_send(WatchRequest { request: Some(WatchRequestKind::Create(create)) });
        let outgoing = self.request(member, ReceiverStream::new(queue)).await?;
        let address = self.address(member).to_owned();
        let mut client = Grpc::new(self.channel(member).clone()).max_decoding_message_size(LARGEST_MESSAGE);
        let ready = client.ready().await.map_err(|error| tonic::Status::from_error(Box::new(error)));
        ready.map_err(|status| EtcdError::of_status(&status, &address))?;
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        let streaming = client.streaming(outgoing, PathAndQuery::from_static(schema::WATCH), codec).await;
        let responses = streaming.map_err(|status| EtcdError::of_status(&status, &address))?.into_inner();
        let last = Instant::now();
        Ok(EtcdWatch {
            requests,
            responses,
            member,
            address,
            partial: Vec::new(),
            last,
            next_progress: last + PROGRESS,
        })
    }

    /// Prepares the next attempt after a watch failed.
    pub fn after_watch(&self, watch: &EtcdWatch, error: &EtcdError) {
        self.after_failure(watch.member, error);
    }

    fn after_failure(&self, member: usize, error: &EtcdError) {
        match error {
            EtcdError::Unauthenticated(_) => self.forget_token(),
            EtcdError::Compacted => {}
            _ => self.fail_over(member),
        }
    }
}

impl EtcdWatch {
    /// The next update. After an error the watch is over.
    pub async fn next(&mut self) -> Result<WatchUpdate, EtcdError> {
        loop {
            let silent = self.last + SILENCE;
            let response = tokio::select! {
                response = self.responses.message() => response,
                () = sleep_until(silent) => {
                    return Err(EtcdError::Unanswered(format!("the watch is silent ({})", self.address)));
                }
                () = sleep_until(self.next_progress) => {
                    self.ask_progress();
                    continue;
                }
            };
            self.last = Instant::now();
            self.next_progress = self.last + PROGRESS;
            let response = response.map_err(|status| EtcdError::of_status(&status, &self.address))?;
            let Some(response) = response else {
                return Err(EtcdError::Unavailable(format!("the watch was closed ({})", self.address)));
            };
            if let Some(update) = self.update(response)? {
                return Ok(update);
            }
        }
    }

    /// Asks for the current revision; the answer is an update.
    pub fn ask_progress(&mut self) {
        self.next_progress = Instant::now() + PROGRESS;
        // If the queue is full the member is silent, which is noticed.
        let _ =
            self.requests.try_send(WatchRequest { request: Some(WatchRequestKind::Progress(WatchProgressRequest {})) });
    }

    fn update(&mut self, response: WatchResponse) -> Result<Option<WatchUpdate>, EtcdError> {
        if response.compact_revision > 0 {
            return Err(EtcdError::Compacted);
        }
        if response.canceled {
            let reason = response.cancel_reason;
            return Err(match reason.contains("permission denied") {
                true => EtcdError::Refused(format!("{reason} ({})", self.address)),
                false => EtcdError::Unavailable(format!("the watch was cancelled: {reason} ({})", self.address)),
            });
        }
        let revision = response.header.unwrap_or_default().revision;
        if response.created {
            return Ok(Some(WatchUpdate::Created(revision)));
        }
        self.partial.extend(response.events);
        if response.fragment {
            return Ok(None);
        }
        if self.partial.is_empty() {
            return Ok(Some(WatchUpdate::Progress(revision)));
        }
        let events = std::mem::take(&mut self.partial);
        let write = |event: KeyEvent| Some(KeyWrite { entry: event.kv?, is_delete: event.kind == DELETE });
        Ok(Some(WatchUpdate::Written(events.into_iter().filter_map(write).collect())))
    }
}
