//! The HTTP client with a scripted server.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response, StatusCode};
use sources::http::{HttpClient, HttpError, HttpOptions, RequestLimits, TrustRoots};
use testkit::scripted::ScriptedServer;

const LIMITS: RequestLimits =
    RequestLimits { time: Duration::from_secs(60), silence: Duration::from_secs(60), bytes: 100 };

fn client() -> HttpClient {
    HttpClient::new(&HttpOptions { roots: TrustRoots::None, ..HttpOptions::default() }).expect("a client")
}

async fn server() -> ScriptedServer {
    ScriptedServer::start(async |asked| match asked.path.as_str() {
        "/long" => Response::new("x".repeat(101)),
        "/never" => std::future::pending().await,
        "/elsewhere" => {
            let reply = Response::builder().status(302).header("location", "http://127.0.0.1:1/");
            reply.body(String::new()).expect("a response")
        }
        "/header" => Response::new(format!("{:?}", asked.headers.get("x-consul-token"))),
        _ => Response::new("hello".to_owned()),
    })
    .await
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let (server, client) = (server().await, client());
    for _ in 0..5 {
        let reply = client.get(&format!("{}/", server.url()), &HeaderMap::new(), LIMITS).await.unwrap();
        assert_eq!((reply.status, &*reply.body), (StatusCode::OK, &b"hello"[..]));
    }
    assert_eq!((server.connections(), server.requests().len()), (1, 5));
}

#[tokio::test]
async fn responses_are_limited_in_size_and_time() {
    let (server, client) = (server().await, client());
    let long = client.get(&format!("{}/long", server.url()), &HeaderMap::new(), LIMITS).await.unwrap_err();
    assert!(matches!(long, HttpError::TooLong { limit: 100, .. }), "{long}");
    let short = RequestLimits { time: Duration::from_millis(50), ..LIMITS };
    let late = client.get(&format!("{}/never", server.url()), &HeaderMap::new(), short).await.unwrap_err();
    assert!(matches!(late, HttpError::Late { .. }), "{late}");
}

#[tokio::test]
async fn a_redirect_is_returned_and_not_followed() {
    let (server, client) = (server().await, client());
    let reply = client.get(&format!("{}/elsewhere", server.url()), &HeaderMap::new(), LIMITS).await.unwrap();
    assert_eq!((reply.status, reply.header("location")), (StatusCode::FOUND, Some("http://127.0.0.1:1/")));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn headers_are_sent_and_an_unreachable_server_is_reported() {
    let (server, client) = (server().await, client());
    let mut headers = HeaderMap::new();
    headers.insert("x-consul-token", HeaderValue::from_static("t"));
    let reply = client.get(&format!("{}/header", server.url()), &headers, LIMITS).await.unwrap();
    assert_eq!(&*reply.body, b"Some(\"t\")");
    let absent = format!("http://127.0.0.1:{}/", testkit::ports::free());
    let error = client.get(&absent, &headers, LIMITS).await.unwrap_err();
    assert!(matches!(&error, HttpError::Unreachable { url, .. } if *url == absent), "{error}");
}
