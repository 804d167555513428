//! The one HTTP client of all sources: GET with time limits and size limits, for one answer and for all
//! that are held at a time, over connections that are used again. It never follows a redirect; a caller that wants to asks again and is checked again.
//! Certificates that are replaced on disk are used for the next connection; ones that cannot be used change nothing.

mod address_policy;
mod budget;
mod tls;

pub use address_policy::AddressPolicy;
pub use budget::BudgetShare;
pub(crate) use tls::config as tls_config;
pub use tls::{ClientIdentity, TrustRoots};

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::CertificateError;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use tracing::{info, warn};

use crate::disk::{self, FileStamp};
use address_policy::{CheckedResolver, ForbiddenAddress};
use budget::BodyBudget;

/// How a client connects.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Whose certificates are believed.
    pub roots: TrustRoots,
    /// The certificate to show to servers that ask for one.
    pub identity: Option<ClientIdentity>,
    /// The name that the server's certificate must bear, where it is not that of the URL.
    pub server_name: Option<String>,
    /// Which addresses may be connected to.
    pub address_policy: AddressPolicy,
    pub connect_timeout: Duration,
    /// Connections kept open for the next request, per server.
    pub idle_connections: usize,
    /// Bytes of answers that may be held at a time: of all requests together, until they are decoded and used.
    pub held_bytes: usize,
}

/// Bytes of answers that a client holds at a time, unless it is given another number.
pub const HELD_BYTES: usize = 128 << 20;

impl Default for HttpOptions {
    fn default() -> HttpOptions {
        HttpOptions {
            roots: TrustRoots::System,
            identity: None,
            server_name: None,
            address_policy: AddressPolicy::Anywhere,
            connect_timeout: Duration::from_secs(5),
            idle_connections: 16,
            held_bytes: HELD_BYTES,
        }
    }
}

impl HttpOptions {
    /// Files with certificates and keys.
    fn files(&self) -> Vec<&Path> {
        let roots = if let TrustRoots::File(file) = &self.roots { Some(file) } else { None };
        let own = self.identity.iter().flat_map(|ClientIdentity { chain, key }| [chain, key]);
        roots.into_iter().chain(own).map(PathBuf::as_path).collect()
    }

    /// The server showed a certificate that is not believed.
    fn disbelief(&self, fault: &CertificateError) -> String {
        let believed = match &self.roots {
            TrustRoots::System => "of the system".to_owned(),
            TrustRoots::File(file) => format!("in {}", file.display()),
            TrustRoots::None => "that are believed, which are none".to_owned(),
        };
        match fault {
            // An authority that was made anew has the same name and another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                format!("the certificate of the server is signed by none of those {believed}")
            }
            other => format!("the certificate of the server is not good: {other}"),
        }
    }

    /// The server ended the connection because of who we are.
    fn refusal(&self, alert: &str) -> String {
        match &self.identity {
            None => format!("the server does not accept us, who show no certificate: {alert}"),
            Some(ClientIdentity { chain, .. }) => {
                format!("the server does not accept us with the certificate in {}: {alert}", chain.display())
            }
        }
    }
}

/// What bounds one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// From the first packet to the head of the answer.
    pub time: Duration,
    /// Between two pieces of the answer's body. One that keeps arriving is read on: a large registry on a busy
    /// machine takes longer than any limit that notices a dead server soon. It ends after [`LONGEST_BODY`] of these.
    pub silence: Duration,
    /// Of the answer's body.
    pub bytes: usize,
}

/// A body may take this many times the silence that is allowed in it.
const LONGEST_BODY: u32 = 20;

/// Bodies are kept in blocks of this size until they are whole: one buffer that grows would be copied again and again,
/// and hold twice what it needs.
const BLOCK: usize = 256 << 10;

/// Decoding this much takes a debug build tens of milliseconds.
const LONG_BODY: usize = 256 << 10;

/// A whole answer, whatever its status.
#[derive(Debug)]
pub struct HttpReply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    share: BudgetShare,
}

impl HttpReply {
    /// The text of a header; `None` where it is absent or not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body's value, with the share of the client's budget that it has until it is dropped. A long body is decoded
    /// off the async threads.
    pub async fn json<T: DeserializeOwned + Send + 'static>(self) -> Result<(T, BudgetShare), String> {
        if self.body.len() < LONG_BODY {
            return self.decoded();
        }
        let decoding = tokio::task::spawn_blocking(|| self.decoded());
        decoding.await.unwrap_or_else(|e| Err(format!("could not decode the answer: {e}")))
    }

    fn decoded<T: DeserializeOwned>(mut self) -> Result<(T, BudgetShare), String> {
        if !self.share.decode(&self.body) {
            return Err(format!("the answer of {} bytes is too large to be decoded: {HELD_REMEDY}", self.body.len()));
        }
        let value = serde_json::from_slice(&self.body).map_err(|e| e.to_string())?;
        self.share.decoded(self.body.len());
        Ok((value, self.share))
    }

    /// The beginning of the body as text, for messages.
    pub fn excerpt(&self) -> String {
        let text = String::from_utf8_lossy(&self.body[..self.body.len().min(200)]).into_owned();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    #[error("could not use the URL {url}: {reason}")]
    Url { url: String, reason: String },
    #[error("could not use the address {0}: connections there are not allowed")]
    Forbidden(IpAddr),
    #[error("could not address_policy {url}: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("could not read {url} within {limit:?}")]
    Late { url: String, limit: Duration },
    #[error("could not read {url}: the answer is longer than {limit} bytes")]
    TooLong { url: String, limit: usize },
    #[error("could not read {url}: all answers together are longer than {limit} bytes: {HELD_REMEDY}")]
    Full { url: String, limit: usize },
    #[error("could not set up TLS: {0}")]
    Tls(String),
}

/// What an operator may do about a budget that is used up.
const HELD_REMEDY: &str = "the server may be faulty; if it is not, raise maxBytes of the registry";

/// How rustls begins to tell that the other side ended the connection.
const ALERT: &str = "received fatal alert: ";

type Connector = HttpsConnector<HttpConnector<CheckedResolver>>;

type ConnectionPool = legacy::Client<Connector, Empty<Bytes>>;

/// A client with its pool of connections. Clones share the pool.
#[derive(Clone)]
pub struct HttpClient {
    options: Arc<HttpOptions>,
    current: Arc<Mutex<CurrentPool>>,
    budget: Arc<BodyBudget>,
}

/// The pool, and the files whose certificates it has.
struct CurrentPool {
    pool: ConnectionPool,
    files: Vec<Option<FileStamp>>,
}

impl HttpClient {
    /// Reads the files that the options name.
    pub fn new(options: &HttpOptions) -> Result<HttpClient, HttpError> {
        // Looked at before they are read: what is written meanwhile is read once more.
        let files = stamps(options);
        let current = CurrentPool { pool: pool(options)?, files };
        let budget = BodyBudget::of_bodies(options.held_bytes);
        Ok(HttpClient { options: Arc::new(options.clone()), current: Arc::new(Mutex::new(current)), budget })
    }

    /// The whole answer to a GET. A redirect is an answer like any other.
    pub async fn get(&self, url: &str, headers: &HeaderMap, limits: RequestLimits) -> Result<HttpReply, HttpError> {
        let (plain, authorization) = without_user(url)?;
        let uri = self.checked(&plain)?;
        let mut request = Request::get(uri)
            .body(Empty::new())
            .map_err(|e| HttpError::Url { url: shown(url), reason: e.to_string() })?;
        *request.headers_mut() = headers.clone();
        if let Some((name, value)) = authorization {
            request.headers_mut().entry(name).or_insert(value);
        }
        let late = |limit: Duration| move |_| HttpError::Late { url: shown(url), limit };
        let head = tokio::time::timeout(limits.time, self.pool().request(request)).await.map_err(late(limits.time))?;
        let response = head.map_err(|e| self.unreachable(url, &e))?;
        let most = limits.silence.saturating_mul(LONGEST_BODY);
        tokio::time::timeout(most, self.read(url, response, limits)).await.map_err(late(most))?
    }

    /// Addresses that stand in the URL itself are never resolved, so they are checked here.
    fn checked(&self, url: &str) -> Result<Uri, HttpError> {
        let bad = |reason: &str| HttpError::Url { url: shown(url), reason: reason.to_owned() };
        let uri: Uri = url.parse().map_err(|e: http::uri::InvalidUri| bad(&e.to_string()))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(bad("only http and https are known"));
        }
        let host = uri.host().ok_or_else(|| bad("there is no host"))?;
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match literal {
            Ok(address) if !self.options.address_policy.admits(address) => Err(HttpError::Forbidden(address)),
            _ => Ok(uri),
        }
    }

    async fn read(
        &self,
        url: &str,
        response: Response<Incoming>,
        limits: RequestLimits,
    ) -> Result<HttpReply, HttpError> {
        let (head, mut body) = response.into_parts();
        let mut share = BudgetShare::new(&self.budget);
        let (mut blocks, mut length) = (Vec::<Vec<u8>>::new(), 0);
        loop {
            let frame = tokio::time::timeout(limits.silence, body.frame()).await;
            let Some(frame) = frame.map_err(|_| HttpError::Late { url: shown(url), limit: limits.silence })? else {
                break;
            };
            let frame = frame.map_err(|e| HttpError::Unreachable { url: shown(url), reason: self.reason(&e) })?;
            let Ok(piece) = frame.into_data() else { continue };
            length += piece.len();
            if length > limits.bytes {
                return Err(HttpError::TooLong { url: shown(url), limit: limits.bytes });
            }
            if !share.read(piece.len()) {
                return Err(HttpError::Full { url: shown(url), limit: self.budget.bodies() });
            }
            match blocks.last_mut().filter(|block| block.len() + piece.len() <= block.capacity()) {
                Some(block) => block.extend_from_slice(&piece),
                None => {
                    let mut block = Vec::with_capacity(BLOCK.max(piece.len()).min(limits.bytes));
                    block.extend_from_slice(&piece);
                    blocks.push(block);
                }
            }
        }
        let body = if blocks.len() == 1 { blocks.remove(0) } else { blocks.concat() };
        Ok(HttpReply { status: head.status, headers: head.headers, body, share })
    }

    /// The pool for the next request, with the certificates that are on disk.
    fn pool(&self) -> ConnectionPool {
        // Every write leaves the pool whole.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let files = stamps(&self.options);
        if files != current.files {
            match pool(&self.options) {
                Ok(pool) => {
                    info!(files = ?self.options.files(), "certificates were replaced");
                    current.pool = pool;
                }
                Err(error) => warn!(%error, "keeping the certificates of before"),
            }
            current.files = files;
        }
        current.pool.clone()
    }

    fn unreachable(&self, url: &str, error: &legacy::Error) -> HttpError {
        let refused = causes(error).find_map(|cause| cause.downcast_ref::<ForbiddenAddress>());
        match refused {
            Some(ForbiddenAddress(address)) => HttpError::Forbidden(*address),
            None => HttpError::Unreachable { url: shown(url), reason: self.reason(error) },
        }
    }

    /// What went wrong with a connection, and the file that may have to do with it.
    fn reason(&self, error: &(dyn std::error::Error + 'static)) -> String {
        if let Some(rustls::Error::InvalidCertificate(fault)) = causes(error).find_map(tls::failure) {
            return self.options.disbelief(fault);
        }
        let text = chain(error);
        // What ends a connection on which an answer is awaited comes here as text alone.
        match text.strip_prefix(ALERT) {
            Some(alert) => self.options.refusal(alert),
            None => text,
        }
    }
}

impl std::fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpClient").field("options", &self.options).finish_non_exhaustive()
    }
}

fn pool(options: &HttpOptions) -> Result<ConnectionPool, HttpError> {
    let mut plain = HttpConnector::new_with_resolver(CheckedResolver::new(options.address_policy.clone()));
    plain.enforce_http(false);
    plain.set_nodelay(true);
    plain.set_connect_timeout(Some(options.connect_timeout));
    // A server that vanished without a word is noticed during a long wait too.
    plain.set_keepalive(Some(Duration::from_secs(15)));
    plain.set_keepalive_interval(Some(Duration::from_secs(5)));
    plain.set_keepalive_retries(Some(3));
    let config = tls::config(&options.roots, options.identity.as_ref())?;
    let mut builder = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    if let Some(name) = &options.server_name {
        let name = ServerName::try_from(name.clone()).map_err(|e| HttpError::Tls(format!("{name}: {e}")))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let connector = builder.enable_all_versions().wrap_connector(plain);
    let pool = legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(options.idle_connections)
        .timer(TokioTimer::new())
        .build(connector);
    Ok(pool)
}

/// Differ when the certificates of a client may differ.
fn stamps(options: &HttpOptions) -> Vec<Option<FileStamp>> {
    options.files().into_iter().map(disk::stamp).collect()
}

/// The URL without user and password, and the header that tells them.
fn without_user(url: &str) -> Result<(String, Option<(HeaderName, HeaderValue)>), HttpError> {
    let Some((scheme, rest)) = url.split_once("://") else { return Ok((url.to_owned(), None)) };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let Some((user, _)) = rest[..end].rsplit_once('@') else { return Ok((url.to_owned(), None)) };
    let value = format!("Basic {}", BASE64_STANDARD.encode(unescaped(user)));
    Ok((format!("{scheme}://{}", &rest[user.len() + 1..]), Some(header("authorization", &value)?)))
}

/// Bytes of a part of a URL in which `%41` stands for `A`.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let hex = more.get(..2).and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            _ => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    bytes
}

/// A header from text that came from a file or a flag.
pub fn header(name: &'static str, value: &str) -> Result<(HeaderName, HeaderValue), HttpError> {
    let bad = |_| HttpError::Url {
        url: name.to_owned(),
        reason: "the value of this header has a character that is not allowed".into(),
    };
    let mut value = HeaderValue::from_str(value).map_err(bad)?;
    value.set_sensitive(true);
    Ok((HeaderName::from_static(name), value))
}

/// The URL without its user, password and query, which may be secrets.
pub(crate) fn shown(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_once('/').map_or((rest, ""), |(a, p)| (a, p));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}/{path}")
        }
        None => url.to_owned(),
    }
}

/// The deepest cause says the most: "connection refused" rather than "client error".
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

/// An error and what led to it, the deepest last.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

#[cfg(test)]
mod tests {
    use super::{AddressPolicy, HttpClient, HttpError, HttpOptions, RequestLimits, shown, without_user};
    use std::time::Duration;

    const LIMITS: RequestLimits =
        RequestLimits { time: Duration::from_secs(30), silence: Duration::from_secs(30), bytes: 1000 };

    #[tokio::test]
    async fn urls_that_cannot_be_used_are_named() {
        let client =
            HttpClient::new(&HttpOptions { roots: super::TrustRoots::None, ..HttpOptions::default() }).unwrap();
        for url in ["ftp://a/", "nonsense", "http://"] {
            let error = client.get(url, &Default::default(), LIMITS).await.unwrap_err();
            assert!(matches!(error, HttpError::Url { .. }), "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn inner_addresses_are_refused_as_literals_and_after_resolution() {
        let options = HttpOptions {
            roots: super::TrustRoots::None,
            address_policy: AddressPolicy::Public,
            ..HttpOptions::default()
        };
        let client = HttpClient::new(&options).unwrap();
        for url in [
            "http://127.0.0.1:1/",
            "http://[::1]:1/",
            "http://169.254.169.254/",
            "http://localhost:1/",
            "http://[::ffff:127.0.0.1]/",
        ] {
            let error = client.get(url, &Default::default(), LIMITS).await.unwrap_err();
            assert!(matches!(error, HttpError::Forbidden(_)), "{url}: {error}");
        }
    }

    #[test]
    fn user_and_password_of_a_url_become_a_header() {
        let check = |url: &str, plain: &str, value: Option<&str>| {
            let (found, header) = without_user(url).unwrap();
            assert_eq!(found, plain, "{url}");
            assert_eq!(header.as_ref().map(|(_, value)| value.to_str().unwrap()), value, "{url}");
        };
        check("http://h:1/a@b", "http://h:1/a@b", None);
        // "me:secret" and "me:p@ss"
        check("http://me:secret@h:1/a", "http://h:1/a", Some("Basic bWU6c2VjcmV0"));
        check("https://me:p%40ss@h?x=@", "https://h?x=@", Some("Basic bWU6cEBzcw=="));
    }

    #[test]
    fn secrets_of_a_url_are_not_shown() {
        assert_eq!(shown("http://me:secret@host:1/a?token=x"), "http://host:1/a");
        assert_eq!(shown("http://host"), "http://host/");
    }
}
