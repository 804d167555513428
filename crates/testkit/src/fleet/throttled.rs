//! A connection that reads some bytes a second, as over a bad link. Its receive buffer is small, so that the server
//! notices.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Sleep, sleep};

/// Bytes read at once.
const PORTION: usize = 256;
const BUFFER: u32 = 4096;

pub(super) struct ThrottledStream {
    inner: TcpStream,
    bytes_a_second: u32,
    pause: Option<Pin<Box<Sleep>>>,
    /// Bytes read so far.
    taken: Arc<AtomicU64>,
}

impl ThrottledStream {
    /// Connects, and adds the bytes that are read to `taken`.
    pub(super) async fn connect(
        server: SocketAddr,
        bytes_a_second: u32,
        taken: Arc<AtomicU64>,
    ) -> io::Result<ThrottledStream> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(BUFFER)?;
        Ok(ThrottledStream { inner: socket.connect(server).await?, bytes_a_second, pause: None, taken })
    }
}

impl AsyncRead for ThrottledStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(pause) = &mut this.pause {
            ready!(pause.as_mut().poll(cx));
            this.pause = None;
        }
        let mut portion = [0; PORTION];
        let mut part = ReadBuf::new(&mut portion[..PORTION.min(buffer.remaining())]);
        ready!(Pin::new(&mut this.inner).poll_read(cx, &mut part))?;
        buffer.put_slice(part.filled());
        let count = part.filled().len();
        this.taken.fetch_add(count as u64, Ordering::Relaxed);
        let seconds = count as f64 / f64::from(this.bytes_a_second);
        this.pause = Some(Box::pin(sleep(Duration::from_secs_f64(seconds))));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ThrottledStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
