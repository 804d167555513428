//! The one HTTP client of all sources: GET with a time limit and a size limit, over connections that
//! are used again. It never follows a redirect; whoever wants to, asks again and is checked again.

mod reach;
mod tls;

pub use reach::Reach;
pub(crate) use tls::config as tls_config;
pub use tls::{Identity, Roots};

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::ServerName;

use reach::{Refused, Resolver};

/// How a client connects.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whose certificates are believed.
    pub roots: Roots,
    /// The certificate to show to servers that ask for one.
    pub identity: Option<Identity>,
    /// The name that the server's certificate must bear, where it is not that of the URL.
    pub server_name: Option<String>,
    /// Which addresses may be connected to.
    pub reach: Reach,
    pub connect_timeout: Duration,
    /// Connections kept open for the next request, per server.
    pub idle_connections: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            roots: Roots::System,
            identity: None,
            server_name: None,
            reach: Reach::Anywhere,
            connect_timeout: Duration::from_secs(5),
            idle_connections: 16,
        }
    }
}

/// What bounds one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the first packet to the last byte of the answer.
    pub time: Duration,
    /// Of the answer's body.
    pub bytes: usize,
}

/// A whole answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    /// The text of a header; `None` where it is absent or not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The beginning of the body as text, for messages.
    pub fn excerpt(&self) -> String {
        let text = String::from_utf8_lossy(&self.body[..self.body.len().min(200)]).into_owned();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("could not use the URL {url}: {reason}")]
    Url { url: String, reason: String },
    #[error("could not use the address {0}: connections there are not allowed")]
    Forbidden(IpAddr),
    #[error("could not reach {url}: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("could not read {url} within {limit:?}")]
    Late { url: String, limit: Duration },
    #[error("could not read {url}: the answer is longer than {limit} bytes")]
    TooLong { url: String, limit: usize },
    #[error("could not set up TLS: {0}")]
    Tls(String),
}

type Connector = HttpsConnector<HttpConnector<Resolver>>;

/// A client with its pool of connections. Clones share the pool.
#[derive(Clone)]
pub struct Client {
    inner: legacy::Client<Connector, Empty<Bytes>>,
    reach: Reach,
}

impl Client {
    /// Reads the files that the options name.
    pub fn new(options: &Options) -> Result<Client, Error> {
        let mut plain = HttpConnector::new_with_resolver(Resolver::new(options.reach.clone()));
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
            let name = ServerName::try_from(name.clone()).map_err(|e| Error::Tls(format!("{name}: {e}")))?;
            builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        let connector = builder.enable_all_versions().wrap_connector(plain);
        let inner = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(options.idle_connections)
            .timer(TokioTimer::new())
            .build(connector);
        Ok(Client { inner, reach: options.reach.clone() })
    }

    /// The whole answer to a GET. A redirect is an answer like any other.
    pub async fn get(&self, url: &str, headers: &HeaderMap, limits: Limits) -> Result<Reply, Error> {
        let uri = self.checked(url)?;
        let mut request =
            Request::get(uri).body(Empty::new()).map_err(|e| Error::Url { url: shown(url), reason: e.to_string() })?;
        *request.headers_mut() = headers.clone();
        match tokio::time::timeout(limits.time, self.exchange(url, request, limits.bytes)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::Late { url: shown(url), limit: limits.time }),
        }
    }

    /// Addresses that stand in the URL itself are never resolved, so they are checked here.
    fn checked(&self, url: &str) -> Result<Uri, Error> {
        let bad = |reason: &str| Error::Url { url: shown(url), reason: reason.to_owned() };
        let uri: Uri = url.parse().map_err(|e: http::uri::InvalidUri| bad(&e.to_string()))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(bad("only http and https are known"));
        }
        let host = uri.host().ok_or_else(|| bad("there is no host"))?;
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match literal {
            Ok(address) if !self.reach.admits(address) => Err(Error::Forbidden(address)),
            _ => Ok(uri),
        }
    }

    async fn exchange(&self, url: &str, request: Request<Empty<Bytes>>, most: usize) -> Result<Reply, Error> {
        let response = self.inner.request(request).await.map_err(|e| unreachable(url, &e))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, most).collect().await.map_err(|e| {
            if e.is::<LengthLimitError>() {
                Error::TooLong { url: shown(url), limit: most }
            } else {
                Error::Unreachable { url: shown(url), reason: chain(&*e) }
            }
        })?;
        Ok(Reply { status: head.status, headers: head.headers, body: body.to_bytes() })
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("reach", &self.reach).finish_non_exhaustive()
    }
}

/// A header from text that came from a file or a flag.
pub fn header(name: &'static str, value: &str) -> Result<(HeaderName, HeaderValue), Error> {
    let bad = |_| Error::Url {
        url: name.to_owned(),
        reason: "the value of this header has a character that is not allowed".into(),
    };
    let mut value = HeaderValue::from_str(value).map_err(bad)?;
    value.set_sensitive(true);
    Ok((HeaderName::from_static(name), value))
}

fn unreachable(url: &str, error: &legacy::Error) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(Refused(address)) = cause.downcast_ref::<Refused>() {
            return Error::Forbidden(*address);
        }
        source = cause.source();
    }
    Error::Unreachable { url: shown(url), reason: chain(error) }
}

/// The URL without its user, password and query, which may be secrets.
fn shown(url: &str) -> String {
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
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

#[cfg(test)]
mod tests {
    use super::{Client, Error, Limits, Options, Reach, shown};
    use std::time::Duration;

    const LIMITS: Limits = Limits { time: Duration::from_secs(30), bytes: 1000 };

    #[tokio::test]
    async fn urls_that_cannot_be_used_are_named() {
        let client = Client::new(&Options { roots: super::Roots::None, ..Options::default() }).unwrap();
        for url in ["ftp://a/", "nonsense", "http://"] {
            let error = client.get(url, &Default::default(), LIMITS).await.unwrap_err();
            assert!(matches!(error, Error::Url { .. }), "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn inner_addresses_are_refused_as_literals_and_after_resolution() {
        let options = Options { roots: super::Roots::None, reach: Reach::Public, ..Options::default() };
        let client = Client::new(&options).unwrap();
        for url in [
            "http://127.0.0.1:1/",
            "http://[::1]:1/",
            "http://169.254.169.254/",
            "http://localhost:1/",
            "http://[::ffff:127.0.0.1]/",
        ] {
            let error = client.get(url, &Default::default(), LIMITS).await.unwrap_err();
            assert!(matches!(error, Error::Forbidden(_)), "{url}: {error}");
        }
    }

    #[test]
    fn secrets_of_a_url_are_not_shown() {
        assert_eq!(shown("http://me:secret@host:1/a?token=x"), "http://host:1/a");
        assert_eq!(shown("http://host"), "http://host/");
    }
}
