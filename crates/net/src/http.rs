//! HTTP/1.1 requests with one connection each: no pool, no proxy, and redirects are not followed. Callers set deadlines.

use std::fmt::Display;
use std::io;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, ToSocketAddrs};

/// For responses of any size, which are printed.
pub const UNLIMITED: usize = usize::MAX;

/// Why a request has no usable response.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("could not parse the path {path:?}")]
    Path { path: String, source: http::Error },
    #[error("could not connect to {address}")]
    Connect { address: String, source: io::Error },
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("the response is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("received {status}: {body}")]
    Status { status: StatusCode, body: String },
}

/// Sends a request to `host:port` and returns the body. A status other than 2xx is an error that contains the body.
pub async fn call(method: Method, address: &str, path: &str, body: String) -> Result<Bytes, ExchangeError> {
    let request = Request::builder().method(method).uri(path).header("host", address).body(Full::from(body));
    let request = request.map_err(|source| ExchangeError::Path { path: path.to_owned(), source })?;
    let (head, body) = exchange(connect(address).await?, request, UNLIMITED).await?.into_parts();
    if !head.status.is_success() {
        let body = String::from_utf8_lossy(&body).trim_end().to_owned();
        return Err(ExchangeError::Status { status: head.status, body });
    }
    Ok(body)
}

/// Opens a TCP connection.
pub async fn connect(address: impl ToSocketAddrs + Display + Copy) -> Result<TcpStream, ExchangeError> {
    let stream = TcpStream::connect(address).await;
    stream.map_err(|source| ExchangeError::Connect { address: address.to_string(), source })
}

/// Sends a request over an open connection, reads the whole response and closes the connection.
pub async fn exchange<S, B>(stream: S, request: Request<B>, limit: usize) -> Result<Response<Bytes>, ExchangeError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let (head, body) = send(stream, request).await?.into_parts();
    Ok(Response::from_parts(head, collect(body, limit).await?))
}

/// Sends a request over an open connection and returns when the response headers have arrived. The connection is closed
/// after the body was read or dropped.
pub async fn send<S, B>(stream: S, request: Request<B>) -> Result<Response<Incoming>, ExchangeError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

/// Reads the whole body; an error if it exceeds the limit.
pub async fn collect(mut body: Incoming, limit: usize) -> Result<Bytes, ExchangeError> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame?.into_data() {
            if whole.len().saturating_add(bytes.len()) > limit {
                return Err(ExchangeError::TooLarge { limit });
            }
            whole.extend_from_slice(&bytes);
        }
    }
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::error::Error;

    use bytes::Bytes;
    use http::{Method, Request, Response};
    use http_body_util::{Empty, Full};
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::net::TcpListener;

    use super::{ExchangeError, call, connect, exchange};

    /// A server that redirects `/moved`, fails `/bad` and otherwise repeats method and path; its address.
    async fn server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service_fn(async |request: Request<hyper::body::Incoming>| {
                    let text = format!("{} {}\n", request.method(), request.uri());
                    let response = match request.uri().path() {
                        "/moved" => Response::builder().status(302).header("location", "/"),
                        "/bad" => Response::builder().status(503),
                        _ => Response::builder(),
                    };
                    Ok::<_, Infallible>(response.body(Full::new(Bytes::from(text))).unwrap())
                });
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        address
    }

    #[tokio::test]
    async fn only_success_is_a_result_and_redirects_are_not_followed() {
        let address = server().await;
        assert_eq!(call(Method::POST, &address, "/a?b", String::new()).await.unwrap(), "POST /a?b\n");
        for (path, expected) in [
            ("/bad", "received 503 Service Unavailable: GET /bad"),
            ("/moved", "received 302 Found: GET /moved"),
            ("/ x", "could not parse the path \"/ x\""),
        ] {
            let error = call(Method::GET, &address, path, String::new()).await.unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[tokio::test]
    async fn a_response_above_the_limit_is_an_error() {
        let address = server().await;
        let get = async |limit| {
            let request = Request::get("/four").header("host", "x").body(Empty::<Bytes>::new()).unwrap();
            exchange(connect(&*address).await.unwrap(), request, limit).await
        };
        assert_eq!(get(10).await.unwrap().body(), "GET /four\n");
        assert!(matches!(get(9).await, Err(ExchangeError::TooLarge { limit: 9 })));
    }

    #[tokio::test]
    async fn a_refused_connection_names_the_address_and_the_cause() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let error = call(Method::GET, &address, "/", String::new()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("could not connect to {address}"));
        assert!(error.source().is_some());
    }
}
