//! Requests with failover: a request goes to the member that answered last, and to the next one if that fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::uri::PathAndQuery;
use parking_lot::Mutex;
use prost::Message;
use tokio::time::{Instant, sleep, timeout};
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::connect::channel;
use crate::error::EtcdError;
use crate::options::EtcdOptions;
use crate::schema::{
    self, AuthenticateRequest, AuthenticateResponse, Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest,
    RangeResponse, RequestKind, RequestOp, TARGET_MOD, TxnRequest, TxnResponse,
};

/// Time for one attempt.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Pause after all members failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Larger messages are errors, so that they do not fill memory.
pub(crate) const LARGEST_MESSAGE: usize = 128 << 20;

/// A client of one cluster.
pub struct EtcdClient {
    options: EtcdOptions,
    members: Vec<Member>,
    /// The member that is used, modulo their number.
    current: AtomicUsize,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

struct Member {
    address: Arc<str>,
    channel: Channel,
}

/// Keys from `start` to before `end`; only `start` if `end` is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub start: Vec<u8>,
    pub end: Vec<u8>,
}

impl KeyRange {
    /// All keys with a prefix.
    pub fn prefix(prefix: &str) -> KeyRange {
        let start = prefix.as_bytes().to_vec();
        let mut end = start.clone();
        // The next prefix in order. UTF-8 has no byte 0xff, so one byte is enough.
        if let Some(last) = end.last_mut() {
            *last = last.saturating_add(1);
        }
        KeyRange { start, end }
    }

    pub fn key(key: &str) -> KeyRange {
        KeyRange { start: key.as_bytes().to_vec(), end: Vec::new() }
    }
}

/// A key and the revision of its last write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRevision {
    pub key: String,
    pub revision: i64,
}

/// A part of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangePage {
    pub entries: Vec<KeyValue>,
    /// The revision of the whole store.
    pub revision: i64,
    /// Whether there are more keys.
    pub more: bool,
}

/// What a conditional write did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapOutcome {
    /// It was done, with this revision.
    Done(i64),
    /// The key, or the one that was required, had another revision. `revision` is that of the whole store.
    Conflict { found: Option<KeyValue>, revision: i64 },
}

/// An answer, and whether an attempt before it was not answered.
struct CallAnswer<R> {
    response: R,
    is_repeated: bool,
}

impl EtcdClient {
    /// Connects when the first request is sent.
    pub fn new(options: EtcdOptions) -> Result<EtcdClient, EtcdError> {
        let member = |address: &String| {
            let made = channel(address, options.tls.as_ref());
            let channel = made.map_err(|error| EtcdError::Refused(format!("{address}: {error}")))?;
            Ok(Member { address: address.as_str().into(), channel })
        };
        let members = options.members.iter().map(member).collect::<Result<Vec<Member>, EtcdError>>()?;
        if members.is_empty() {
            return Err(EtcdError::Refused("no member is given".to_owned()));
        }
        Ok(EtcdClient { options, members, current: AtomicUsize::new(0), token: Mutex::new(None) })
    }

    /// Reads keys at a revision; 0 is the newest. At most `limit` keys, all if it is 0.
    pub async fn range(&self, range: &KeyRange, revision: i64, limit: i64) -> Result<RangePage, EtcdError> {
        let request =
            RangeRequest { key: range.start.clone(), range_end: range.end.clone(), limit, revision, count_only: false };
        let answer: CallAnswer<RangeResponse> = self.call(schema::RANGE, request).await?;
        let RangeResponse { header, kvs, more } = answer.response;
        Ok(RangePage { entries: kvs, revision: header.unwrap_or_default().revision, more })
    }

    /// The revision of the whole store, confirmed by a majority.
    pub async fn revision(&self) -> Result<i64, EtcdError> {
        let request = RangeRequest { key: vec![0], count_only: true, ..RangeRequest::default() };
        let answer: CallAnswer<RangeResponse> = self.call(schema::RANGE, request).await?;
        Ok(answer.response.header.unwrap_or_default().revision)
    }

    /// Writes a value, or deletes the key, if its revision is `expected` (0: if it does not exist) and the required key
    /// has its revision.
    ///
    /// An attempt that was not answered is repeated: its condition cannot hold twice. If the key then has the value that
    /// was to be written, the first attempt was done.
    pub async fn swap(
        &self,
        key: &str,
        expected: i64,
        value: Option<&[u8]>,
        required: Option<&KeyRevision>,
    ) -> Result<SwapOutcome, EtcdError> {
        let key = key.as_bytes().to_vec();
        let write = match value {
            Some(value) => RequestKind::Put(PutRequest { key: key.clone(), value: value.to_vec() }),
            None => RequestKind::DeleteRange(DeleteRangeRequest { key: key.clone() }),
        };
        let read = RequestKind::Range(RangeRequest { key: key.clone(), ..RangeRequest::default() });
        let op = |kind| RequestOp { request: Some(kind) };
        let has = |key, revision| Compare { result: 0, target: TARGET_MOD, key, mod_revision: Some(revision) };
        let required = required.map(|required| has(required.key.as_bytes().to_vec(), required.revision));
        let request = TxnRequest {
            compare: [has(key, expected)].into_iter().chain(required).collect(),
            success: vec![op(write)],
            failure: vec![op(read)],
        };
        let CallAnswer { response, is_repeated } = self.call::<_, TxnResponse>(schema::TXN, request).await?;
        let revision = response.header.unwrap_or_default().revision;
        if response.succeeded {
            return Ok(SwapOutcome::Done(revision));
        }
        let range = response.responses.into_iter().next().and_then(|op| op.range);
        let found = range.and_then(|range| range.kvs.into_iter().next());
        let is_done = match (&found, value) {
            (Some(found), Some(value)) => found.value == value,
            (found, None) => found.is_none(),
            (None, Some(_)) => false,
        };
        if is_repeated && is_done {
            return Ok(SwapOutcome::Done(found.map_or(revision, |found| found.mod_revision)));
        }
        Ok(SwapOutcome::Conflict { found, revision })
    }

    /// Sends a request until a member answers it or the time is over.
    async fn call<Q, R>(&self, path: &'static str, request: Q) -> Result<CallAnswer<R>, EtcdError>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let end = Instant::now() + self.options.timeout;
        let (mut is_repeated, mut tries, mut unanswered) = (false, 0, None);
        loop {
            let number = self.current.load(Ordering::Relaxed);
            let limit = ATTEMPT.min(end.saturating_duration_since(Instant::now()));
            let error = match self.attempt(number, limit, path, request.clone()).await {
                Ok(response) => return Ok(CallAnswer { response, is_repeated }),
                Err(error) => error,
            };
            tries += 1;
            match &error {
                EtcdError::Unauthenticated(_) if tries <= self.members.len() => *self.token.lock() = None,
                error if error.is_temporary() => self.fail_over(number),
                _ => return Err(error),
            }
            if let EtcdError::Unanswered(_) = error {
                (is_repeated, unanswered) = (true, Some(error.clone()));
            }
            if Instant::now() + PAUSE >= end {
                return Err(unanswered.unwrap_or(error));
            }
            if tries.is_multiple_of(self.members.len()) {
                sleep(PAUSE).await;
            }
        }
    }

    async fn attempt<Q, R>(
        &self,
        number: usize,
        limit: Duration,
        path: &'static str,
        request: Q,
    ) -> Result<R, EtcdError>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let address = self.address(number);
        let done = timeout(limit, async {
            let request = self.request(number, request).await?;
            unary(&self.member(number).channel, path, request)
                .await
                .map_err(|status| EtcdError::of_status(&status, address))
        });
        done.await.unwrap_or_else(|_| Err(EtcdError::Unanswered(format!("no response within {limit:?} ({address})"))))
    }

    /// A request with the headers that each needs.
    pub(crate) async fn request<Q>(&self, number: usize, message: Q) -> Result<Request<Q>, EtcdError> {
        let mut request = Request::new(message);
        // A member that is cut off refuses at once.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = self.token(number).await? {
            request.metadata_mut().insert("token", token);
        }
        Ok(request)
    }

    /// The token of the user; `None` without a user.
    async fn token(&self, number: usize) -> Result<Option<MetadataValue<Ascii>>, EtcdError> {
        let Some(user) = &self.options.user else { return Ok(None) };
        if let Some(token) = self.token.lock().clone() {
            return Ok(Some(token));
        }
        let read = tokio::fs::read_to_string(&user.password_file).await;
        let password = read.map_err(|error| {
            EtcdError::Refused(format!("could not read the password {}: {error}", user.password_file.display()))
        })?;
        let message = AuthenticateRequest { name: user.name.clone(), password: password.trim_end().to_owned() };
        let member = self.member(number);
        let answer = unary(&member.channel, schema::AUTHENTICATE, Request::new(message)).await;
        let AuthenticateResponse { token } = answer.map_err(|status| match status.code() {
            tonic::Code::InvalidArgument => {
                EtcdError::Refused(format!("{} (user {}, {})", status.message(), user.name, member.address))
            }
            _ => EtcdError::of_status(&status, &member.address),
        })?;
        let token: MetadataValue<Ascii> =
            token.parse().map_err(|_| EtcdError::Refused("the token of etcd is malformed".to_owned()))?;
        *self.token.lock() = Some(token.clone());
        Ok(Some(token))
    }

    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    pub(crate) fn address(&self, number: usize) -> &str {
        &self.member(number).address
    }

    pub(crate) fn channel(&self, number: usize) -> &Channel {
        &self.member(number).channel
    }

    /// Drops the token after it was refused.
    pub(crate) fn forget_token(&self) {
        *self.token.lock() = None;
    }

    /// Uses the next member, unless another request has done so already.
    pub(crate) fn fail_over(&self, failed: usize) {
        let next = failed.wrapping_add(1);
        let _ = self.current.compare_exchange(failed, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn member(&self, number: usize) -> &Member {
        &self.members[number % self.members.len()]
    }
}

async fn unary<Q, R>(channel: &Channel, path: &'static str, request: Request<Q>) -> Result<R, Status>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let mut client = Grpc::new(channel.clone()).max_decoding_message_size(LARGEST_MESSAGE);
    client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    let codec = ProstCodec::<Q, R>::default();
    Ok(client.unary(request, PathAndQuery::from_static(path), codec).await?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::KeyRange;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        let range = KeyRange::prefix("/mesh/");
        assert_eq!((range.start.as_slice(), range.end.as_slice()), (&b"/mesh/"[..], &b"/mesh0"[..]));
    }
}
