//! Published weaknesses of debug pages and of HTTP/2 servers. Each test has the id of the weakness. Floods of frames are sent
//! over TLS here, and over plain text, while honest clients are timed, by the tests of `attacks`.

use std::net::SocketAddr;
use std::time::Duration;

use testkit::client;
use testkit::frames::{CONTINUATION, DATA, HEADERS, PING, RST_STREAM, SETTINGS, frame, preface};
use testkit::tls::TlsClient;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::Mesh;

/// Growth of the server's memory by a flood.
const GROWTH_KIB: u64 = 32 << 10;
/// `:method: POST`, `:scheme: http`, `:path: /` from the static table.
const REQUEST: &[u8] = &[0x83, 0x86, 0x84];

trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// The ports of a server, and how to connect to them.
struct ServerPorts {
    all: [SocketAddr; 4],
    secure: SocketAddr,
    roots: String,
}

impl ServerPorts {
    async fn of(mesh: &Mesh) -> ServerPorts {
        let (server, secure) = (&mesh.server, mesh.secure);
        let all = [server.grpc(), server.http(), server.monitoring(), secure];
        ServerPorts { all, secure, roots: mesh.roots().await }
    }

    /// Without a certificate, over TLS if the port has it.
    async fn connect(&self, port: SocketAddr, protocol: &str) -> Option<Box<dyn Connection>> {
        if port != self.secure {
            return Some(Box::new(TcpStream::connect(port).await.unwrap()));
        }
        let client = TlsClient::trusting(&self.roots, None, &[protocol]);
        let stream = client.connect(port, "istiod.istio-system.svc").await.ok()?;
        Some(Box::new(stream))
    }
}

/// One GET to a debug handler ended the process.
#[tokio::test]
async fn cve_2019_25014_no_query_of_a_debug_page_ends_the_process() {
    let mut mesh = Mesh::start(&[]).await;
    let list: Vec<String> = serde_json::from_str(&mesh.page("/debug/list").await).unwrap();
    assert!(list.len() > 20, "{list:?}");
    let long = "x".repeat(7_000);
    for page in list {
        for value in ["", "unknown", "a.b", "%00", "%ff%fe", "true", &long] {
            for key in ["proxyID", "resource", "types", ""] {
                let path = format!("/debug/{page}?{key}={value}");
                let reply = client::get(mesh.server.monitoring(), "localhost", &path).await;
                let status = reply.unwrap_or_else(|error| panic!("{path}: {error}")).status;
                assert!(status.as_u16() < 500, "{path}: {status}");
            }
        }
        mesh.server.process().check_alive();
    }
    mesh.serves_an_honest_caller().await;
}

/// Handlers that upgrade to HTTP/2 read whole requests into memory.
#[tokio::test]
async fn cve_2022_41721_no_port_upgrades_to_http_2() {
    let mesh = Mesh::start(&[]).await;
    let ports = ServerPorts::of(&mesh).await;
    for port in ports.all {
        // The TLS port may refuse the older protocol in the handshake.
        let Some(mut stream) = ports.connect(port, "http/1.1").await else { continue };
        let request = "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
                       HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\nContent-Length: 1000000000\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 64];
        // A port for HTTP/2 alone closes the connection.
        let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut answer)).await;
        let count = read.ok().and_then(Result::ok).unwrap_or(0);
        let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
        assert!(!answer.contains(" 101 "), "{port}: {answer}");
    }
    mesh.serves_an_honest_caller().await;
}

/// Sends a flood until it ends or the server closes the connection; returns the bytes that were sent.
async fn flood(stream: Box<dyn Connection>, mut next: impl FnMut(u32) -> Vec<u8>) -> usize {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let send = async {
        let mut sent = 0;
        writer.write_all(&preface(&[])).await.ok();
        for number in 0..20_000 {
            let bytes = next(number);
            match tokio::time::timeout(Duration::from_secs(2), writer.write_all(&bytes)).await {
                Ok(Ok(())) => sent += bytes.len(),
                _ => break,
            }
        }
        sent
    };
    let mut sink = tokio::io::sink();
    let read = tokio::io::copy(&mut reader, &mut sink);
    // Whichever ends first: everything was sent, or the server closed the connection.
    tokio::select! {
        sent = send => sent,
        _ = read => 0,
    }
}

async fn floods_do_no_harm(name: &str, next: impl Fn(u32) -> Vec<u8>) {
    let mut mesh = Mesh::start(&[]).await;
    let ports = ServerPorts::of(&mesh).await;
    let before = mesh.server.process().owned_kib().unwrap();
    for _ in 0..3 {
        let stream = ports.connect(ports.secure, "h2").await.unwrap_or_else(|| panic!("{name}: no connection"));
        flood(stream, &next).await;
        mesh.server.process().check_alive();
        mesh.serves_an_honest_caller().await;
    }
    let grown = mesh.server.process().owned_kib().unwrap().saturating_sub(before);
    assert!(grown < GROWTH_KIB, "{name}: the server grew by {grown} KiB");
}

/// Streams that are opened and reset at once.
#[tokio::test]
async fn cve_2023_44487_rapid_resets_over_tls_do_no_harm() {
    floods_do_no_harm("resets", |number| {
        let stream = 2 * number + 1;
        let open = frame(HEADERS, 4, stream, REQUEST);
        [open, frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
    })
    .await;
}

/// Headers that never end.
#[tokio::test]
async fn cve_2023_45288_endless_continuations_over_tls_do_no_harm() {
    // A literal header that is not indexed, with a name of one letter and a value of 1,000.
    let value = [&[0x00, 0x01, b'a', 0x7f, 0xe9, 0x06], &[b'x'; 1000][..]].concat();
    floods_do_no_harm("continuations", move |number| match number {
        0 => frame(HEADERS, 0, 1, REQUEST),
        _ => frame(CONTINUATION, 0, 1, &value),
    })
    .await;
}

/// Frames that each need an answer.
#[tokio::test]
async fn cve_2019_9512_pings_and_settings_over_tls_do_no_harm() {
    floods_do_no_harm("pings and settings", |number| match number % 2 {
        0 => frame(PING, 0, 0, &[7; 8]),
        _ => frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
    })
    .await;
}

/// Cookies in many small pieces, which servers join again.
#[tokio::test]
async fn cve_2026_47774_crumbs_of_cookies_over_tls_do_no_harm() {
    // `cookie` by its index in the static table, a value of one letter, added to the dynamic table.
    let crumbs = [0x60, 0x01, b'a'].repeat(5_000);
    floods_do_no_harm("cookies", move |number| {
        let stream = 2 * number + 1;
        let open = frame(HEADERS, 4, stream, &[REQUEST, &crumbs].concat());
        [open, frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
    })
    .await;
}

/// A frame above the limit that was announced is not read to its end.
#[tokio::test]
async fn frames_above_the_limit_end_the_connection() {
    const LIMIT: Duration = Duration::from_secs(30);
    let mut mesh = Mesh::start(&[]).await;
    let ports = ServerPorts::of(&mesh).await;
    let before = mesh.server.process().owned_kib().unwrap();
    for port in ports.all {
        for kind in [DATA, HEADERS] {
            let stream = ports.connect(port, "h2").await.unwrap();
            let (mut reader, mut writer) = tokio::io::split(stream);
            // 16 MiB are declared and sent.
            let head = [&[0xff, 0xff, 0xff, kind, 4][..], &1_u32.to_be_bytes()].concat();
            let begin = [preface(&[]), head].concat();
            let send = async {
                let mut is_open = writer.write_all(&begin).await.is_ok();
                for _ in 0..16 * 1024 {
                    is_open = is_open && writer.write_all(&[0; 1024]).await.is_ok();
                }
                // The end of the connection is awaited below.
                std::future::pending::<()>().await;
            };
            let mut sink = tokio::io::sink();
            let ended = async {
                tokio::select! {
                    () = send => {}
                    _ = tokio::io::copy(&mut reader, &mut sink) => {}
                }
            };
            let ended = tokio::time::timeout(LIMIT, ended).await;
            assert!(ended.is_ok(), "port {port} reads on after a frame of kind {kind}");
        }
        mesh.serves_an_honest_caller().await;
    }
    mesh.server.process().check_alive();
    let grown = mesh.server.process().owned_kib().unwrap().saturating_sub(before);
    assert!(grown < GROWTH_KIB, "the server grew by {grown} KiB");
}
