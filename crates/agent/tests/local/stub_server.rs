//! An HTTP server with fixed pages, in place of Envoy's admin port or an application.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// Status, headers and text by path without query.
pub(crate) type Pages = BTreeMap<&'static str, (u16, Vec<(&'static str, String)>, String)>;

#[derive(Clone)]
pub(crate) struct StubServer {
    pub(crate) address: SocketAddr,
    pub(crate) pages: Arc<Mutex<Pages>>,
    /// Path with query, and headers, of every request.
    pub(crate) requests: Arc<Mutex<Vec<(String, http::HeaderMap)>>>,
}

impl StubServer {
    pub(crate) async fn start(pages: Pages) -> StubServer {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let stub = StubServer {
            address: listener.local_addr().unwrap(),
            pages: Arc::new(Mutex::new(pages)),
            requests: Arc::default(),
        };
        tokio::spawn({
            let stub = stub.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let stub = stub.clone();
                    let service = service_fn(move |request| {
                        let stub = stub.clone();
                        async move { Ok::<_, Infallible>(stub.answer(&request)) }
                    });
                    tokio::spawn(
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                    );
                }
            }
        });
        stub
    }

    pub(crate) fn put(&self, path: &'static str, status: u16, text: &str) {
        self.pages.lock().unwrap().insert(path, (status, Vec::new(), text.to_owned()));
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        self.requests.lock().unwrap().push((request.uri().to_string(), request.headers().clone()));
        let pages = self.pages.lock().unwrap();
        let Some((status, headers, text)) = pages.get(request.uri().path()) else {
            return Response::builder().status(404).body(Full::default()).unwrap();
        };
        let mut response = Response::new(Full::from(text.clone()));
        *response.status_mut() = StatusCode::from_u16(*status).unwrap();
        for (name, value) in headers {
            response.headers_mut().insert(*name, value.parse().unwrap());
        }
        response
    }
}
