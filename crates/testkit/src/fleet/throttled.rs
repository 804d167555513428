//! A connection that reads a kilobyte a second, as over a bad link. Its receive buffer is small, so that the server
//! notices.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Sleep, sleep};

const BYTES_A_SECOND: usize = 1024;
/// Bytes read at once.
const PORTION: usize = 256;
const BUFFER: u32 = 4096;

pub(crate) struct ThrottledStream {
    inner: TcpStream,
    pause: Option<Pin<Box<Sleep>>>,
}

impl ThrottledStream {
    pub(crate) async fn connect(server: SocketAddr) -> io::Result<ThrottledStream> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(BUFFER)?;
        Ok(ThrottledStream { inner: socket.connect(server).await?, pause: None })
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
        let seconds = part.filled().len() as f64 / BYTES_A_SECOND as f64;
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
