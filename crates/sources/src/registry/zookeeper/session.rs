//! One session with a server: requests in order, pings, watches. A lost connection ends it. The client makes no nodes, so
//! the next session is a new one and reads everything again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsConnector;

use super::options::ZooKeeperOptions;
use super::protocol::{self, ProtocolError, ZooFrame, ZooRequest, ZooUpdate};
use crate::disk;
use crate::http::tls_config;
use crate::registry::shared_options::TlsOptions;

/// Time for the connection and the first answer.
const CONNECT: Duration = Duration::from_secs(5);
/// Requests without an answer. More would fill buffers of both sides, and a server limits them too.
const MOST_UNANSWERED: usize = 256;
/// Bytes that are read at once.
const READ: usize = 16 << 10;
/// Larger frames are errors, so that they do not fill memory. A list of 100,000 Dubbo providers is smaller.
const LARGEST_FRAME: usize = 64 << 20;

trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// An open session.
pub(super) struct ZooSession {
    reader: ReadHalf<Box<dyn Transport>>,
    writer: WriteHalf<Box<dyn Transport>>,
    incoming: BytesMut,
    outgoing: BytesMut,
    /// Requests that wait for their turn.
    queued: VecDeque<ZooRequest>,
    /// Requests without an answer, in the order of their numbers.
    unanswered: VecDeque<(i32, ZooRequest)>,
    next_xid: i32,
    timeout: Duration,
    last_heard: Instant,
    next_ping: Instant,
}

/// Why a session could not be opened, or ended.
#[derive(Debug, thiserror::Error)]
#[error("{server}: {cause}")]
pub(super) struct SessionError {
    server: String,
    cause: SessionCause,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum SessionCause {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("no answer within {0:?}")]
    Silent(Duration),
    #[error("the server closed the connection")]
    Closed,
    #[error("the server refused the session")]
    Refused,
    #[error("a message of {0} bytes is larger than {LARGEST_FRAME}")]
    TooLarge(usize),
    #[error("{0}")]
    Options(String),
}

impl ZooSession {
    /// Connects to a server and opens a session.
    pub(super) async fn open(options: &ZooKeeperOptions, server: &str) -> Result<ZooSession, SessionError> {
        let opened = timeout(CONNECT, open(options, server)).await;
        let opened = opened.unwrap_or(Err(SessionCause::Silent(CONNECT)));
        opened.map_err(|cause| SessionError { server: server.to_owned(), cause })
    }

    /// Adds a request; it is sent by `next`.
    pub(super) fn send(&mut self, request: ZooRequest) {
        self.queued.push_back(request);
    }

    /// Whether every request was answered.
    pub(super) fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.unanswered.is_empty()
    }

    /// The next answer or change. It may be cancelled; after an error the session is over.
    pub(super) async fn next(&mut self, server: &str) -> Result<ZooUpdate, SessionError> {
        self.receive().await.map_err(|cause| SessionError { server: server.to_owned(), cause })
    }

    async fn receive(&mut self) -> Result<ZooUpdate, SessionCause> {
        loop {
            self.fill_window();
            while let Some(frame) = take_frame(&mut self.incoming)? {
                match protocol::read_frame(frame.freeze())? {
                    ZooFrame::Pong | ZooFrame::Authenticated => {}
                    ZooFrame::Event { path, change } => return Ok(ZooUpdate::Changed { path, change }),
                    ZooFrame::Reply { xid, error, body } => return self.answered(xid, error, body),
                }
            }
            self.incoming.reserve(READ);
            let silence = self.timeout * 2 / 3;
            tokio::select! {
                read = self.reader.read_buf(&mut self.incoming) => match read? {
                    0 => return Err(SessionCause::Closed),
                    _ => self.last_heard = Instant::now(),
                },
                written = self.writer.write_buf(&mut self.outgoing), if self.outgoing.has_remaining() => {
                    written?;
                    self.next_ping = Instant::now() + self.timeout / 3;
                }
                () = sleep_until(self.next_ping) => {
                    self.outgoing.extend_from_slice(&protocol::ping());
                    self.next_ping = Instant::now() + self.timeout / 3;
                }
                () = sleep_until(self.last_heard + silence) => return Err(SessionCause::Silent(silence)),
            }
        }
    }

    fn answered(&mut self, xid: i32, error: i32, body: bytes::Bytes) -> Result<ZooUpdate, SessionCause> {
        match self.unanswered.pop_front() {
            Some((expected, request)) if expected == xid => Ok(protocol::update(request, error, body)?),
            Some((expected, _)) => Err(ProtocolError::OutOfOrder { found: xid, expected }.into()),
            None => Err(ProtocolError::Malformed.into()),
        }
    }

    fn fill_window(&mut self) {
        while self.unanswered.len() < MOST_UNANSWERED
            && let Some(request) = self.queued.pop_front()
        {
            let xid = self.next_xid;
            // Negative numbers are reserved.
            self.next_xid = xid.checked_add(1).unwrap_or(1);
            self.outgoing.extend_from_slice(&protocol::request(xid, &request));
            self.unanswered.push_back((xid, request));
        }
    }
}

async fn open(options: &ZooKeeperOptions, server: &str) -> Result<ZooSession, SessionCause> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let mut stream: Box<dyn Transport> = match &options.tls {
        None => Box::new(stream),
        Some(tls) => Box::new(secured(tls, server, stream).await?),
    };
    let wanted = options.session_timeout.0;
    stream.write_all(&protocol::connect(i32::try_from(wanted.as_millis()).unwrap_or(i32::MAX))).await?;
    let mut incoming = BytesMut::new();
    let answer = loop {
        if let Some(frame) = take_frame(&mut incoming)? {
            break protocol::connected(frame.freeze())?;
        }
        if stream.read_buf(&mut incoming).await? == 0 {
            return Err(SessionCause::Closed);
        }
    };
    let millis = u64::try_from(answer.timeout).ok().filter(|millis| *millis > 0).ok_or(SessionCause::Refused)?;
    let mut outgoing = BytesMut::new();
    if let Some(file) = &options.password_file {
        let password = disk::text(file).map_err(|error| {
            SessionCause::Options(format!("could not read the password in {}: {error}", file.display()))
        })?;
        let password = password.trim_end_matches(['\r', '\n']);
        outgoing.extend_from_slice(&protocol::authenticate(&options.username, password));
    }
    let (reader, writer) = split(stream);
    let (timeout, now) = (Duration::from_millis(millis), Instant::now());
    let (queued, unanswered) = (VecDeque::new(), VecDeque::new());
    let (last_heard, next_ping) = (now, now + timeout / 3);
    Ok(ZooSession {
        reader,
        writer,
        incoming,
        outgoing,
        queued,
        unanswered,
        next_xid: 1,
        timeout,
        last_heard,
        next_ping,
    })
}

async fn secured(
    options: &TlsOptions,
    server: &str,
    stream: TcpStream,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, SessionCause> {
    let failed = |error: &dyn std::fmt::Display| SessionCause::Options(error.to_string());
    let http = options.http_options(&["https://".to_owned()], 0, 0).map_err(|error| failed(&error))?;
    let config = tls_config(&http.roots, http.identity.as_ref()).map_err(|error| failed(&error))?;
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let name = options.server_name.as_deref().unwrap_or(host).trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(name).map_err(|error| failed(&error))?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
}

/// Removes the first whole frame, without its length.
fn take_frame(incoming: &mut BytesMut) -> Result<Option<BytesMut>, SessionCause> {
    let Some(start) = incoming.first_chunk::<4>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes(*start)).unwrap_or(usize::MAX);
    if length > LARGEST_FRAME {
        return Err(SessionCause::TooLarge(length));
    }
    if incoming.len() < 4 + length {
        return Ok(None);
    }
    incoming.advance(4);
    Ok(Some(incoming.split_to(length)))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::{SessionCause, take_frame};

    #[test]
    fn frames_are_cut_at_their_length() {
        let mut incoming = BytesMut::from(&[0, 0, 0, 2, 7, 8, 0, 0, 0][..]);
        assert_eq!(take_frame(&mut incoming).unwrap().as_deref(), Some(&[7, 8][..]));
        assert!(take_frame(&mut incoming).unwrap().is_none());
        let mut huge = BytesMut::from(&[0xff, 0xff, 0xff, 0xff][..]);
        assert!(matches!(take_frame(&mut huge), Err(SessionCause::TooLarge(_))));
    }
}
