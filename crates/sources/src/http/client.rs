//! The HTTP client: GET over pooled connections, with limits on time, size and memory. Redirects are returned, not
//! followed, so that a caller that follows one has the new URL checked. Certificates replaced on disk are used for new
//! connections; unusable ones are ignored.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tracing::{info, warn};

use crate::disk::{self, FileStamp};
use crate::http::address_policy::{CheckedResolver, ForbiddenAddress};
use crate::http::budget::{BodyBudget, BudgetShare};
use crate::http::error::HttpError;
use crate::http::options::HttpOptions;
use crate::http::reply::HttpReply;
use crate::http::tls;
use crate::http::url::{shown, without_user};

/// Limits of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Until the response headers have arrived.
    pub time: Duration,
    /// Between two pieces of the body. A body that keeps arriving is read on, because a large registry on a busy
    /// machine takes longer than a limit that detects dead servers soon; it may take [`LONGEST_BODY`] times this.
    pub silence: Duration,
    /// Size of the body.
    pub bytes: usize,
}

/// A whole body may take this many times [`RequestLimits::silence`].
const LONGEST_BODY: u32 = 20;

/// Bodies are read into blocks of this size: one growing buffer would be copied repeatedly and over-allocate.
const BLOCK: usize = 256 << 10;

/// How the error text of a fatal TLS alert begins in rustls.
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

/// The pool, and the state of the certificate files when it was created.
struct CurrentPool {
    pool: ConnectionPool,
    files: Vec<Option<FileStamp>>,
}

impl HttpClient {
    /// Reads the certificate files of the options.
    pub fn new(options: &HttpOptions) -> Result<HttpClient, HttpError> {
        // Taken before the files are read, so that a concurrent write is noticed by the next request.
        let files = stamps(options);
        let current = CurrentPool { pool: pool(options)?, files };
        let budget = BodyBudget::of_bodies(options.held_bytes);
        Ok(HttpClient { options: Arc::new(options.clone()), current: Arc::new(Mutex::new(current)), budget })
    }

    /// The complete response to a GET.
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

    /// Parses the URL. Literal addresses are not resolved, so the address policy is applied to them here.
    fn checked(&self, url: &str) -> Result<Uri, HttpError> {
        let bad = |reason: &str| HttpError::Url { url: shown(url), reason: reason.to_owned() };
        let uri: Uri = url.parse().map_err(|e: http::uri::InvalidUri| bad(&e.to_string()))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(bad("the scheme must be http or https"));
        }
        let host = uri.host().ok_or_else(|| bad("no host"))?;
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match literal {
            Ok(address) if !self.options.address_policy.allows(address) => Err(HttpError::Forbidden(address)),
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
            if !share.reserve_body(piece.len()) {
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
        Ok(HttpReply { status: head.status, headers: head.headers, body, url: shown(url), share })
    }

    /// The pool for the next request, with the certificates now on disk.
    fn pool(&self) -> ConnectionPool {
        let mut current = self.current.lock();
        let files = stamps(&self.options);
        if files != current.files {
            match pool(&self.options) {
                Ok(pool) => {
                    info!(files = ?self.options.files(), "using the replaced certificates");
                    current.pool = pool;
                }
                Err(error) => warn!(%error, "could not use the replaced certificates; keeping the previous ones"),
            }
            current.files = files;
        }
        current.pool.clone()
    }

    fn unreachable(&self, url: &str, error: &legacy::Error) -> HttpError {
        let forbidden = causes(error).find_map(|cause| cause.downcast_ref::<ForbiddenAddress>());
        match forbidden {
            Some(ForbiddenAddress(address)) => HttpError::Forbidden(*address),
            None => HttpError::Unreachable { url: shown(url), reason: self.reason(error) },
        }
    }

    /// Why a connection failed, with the certificate file concerned.
    fn reason(&self, error: &(dyn std::error::Error + 'static)) -> String {
        if let Some(rustls::Error::InvalidCertificate(fault)) = causes(error).find_map(tls::failure) {
            return self.options.untrusted(fault);
        }
        let text = root_cause(error);
        // An alert on an established connection arrives here as text only.
        match text.strip_prefix(ALERT) {
            Some(alert) => self.options.rejected(alert),
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
    // Keepalive detects a dead server during a blocking query.
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

/// The state of the certificate files.
fn stamps(options: &HttpOptions) -> Vec<Option<FileStamp>> {
    options.files().into_iter().map(disk::stamp).collect()
}

/// The innermost error, "connection refused" rather than "client error".
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

/// An error and its sources, the innermost last.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{HttpClient, RequestLimits};
    use crate::http::{AddressPolicy, HttpError, HttpOptions, TrustRoots};

    const LIMITS: RequestLimits =
        RequestLimits { time: Duration::from_secs(30), silence: Duration::from_secs(30), bytes: 1000 };

    #[tokio::test]
    async fn urls_that_cannot_be_used_are_named() {
        let client = HttpClient::new(&HttpOptions { roots: TrustRoots::None, ..HttpOptions::default() }).unwrap();
        for url in ["ftp://a/", "nonsense", "http://"] {
            let error = client.get(url, &Default::default(), LIMITS).await.unwrap_err();
            assert!(matches!(error, HttpError::Url { .. }), "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn internal_addresses_are_refused_as_literals_and_after_resolution() {
        let options =
            HttpOptions { roots: TrustRoots::None, address_policy: AddressPolicy::Public, ..HttpOptions::default() };
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
}
