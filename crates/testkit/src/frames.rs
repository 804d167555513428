//! Raw HTTP/2 frames, for clients that break the protocol.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, copy, sink};
use tokio::net::TcpStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
/// The flag of the last frame with headers.
pub const END_HEADERS: u8 = 4;

/// One frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or_else(|e| panic!("a frame of this size: {e}")).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// What a connection begins with.
pub fn preface(settings: &[u8]) -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()
}

/// Sends `count` pieces until the server closes the connection or accepts nothing for two seconds. Returns the bytes sent.
pub async fn flood(port: SocketAddr, count: u32, next: impl Fn(u32) -> Vec<u8>) -> usize {
    let Ok(mut stream) = TcpStream::connect(port).await else { return 0 };
    let (mut reader, mut writer) = stream.split();
    let send = async {
        let mut sent = 0;
        let begin = preface(&[]);
        for bytes in std::iter::once(begin).chain((0..count).map(&next)) {
            match tokio::time::timeout(Duration::from_secs(2), writer.write_all(&bytes)).await {
                Ok(Ok(())) => sent += bytes.len(),
                _ => break,
            }
        }
        sent
    };
    let mut rest = sink();
    // Whichever ends first: everything was sent, or the server closed the connection.
    tokio::select! {
        sent = send => sent,
        _ = copy(&mut reader, &mut rest) => 0,
    }
}
