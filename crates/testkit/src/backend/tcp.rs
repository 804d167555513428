//! A TCP server that sends its name on a line and then echoes what it receives.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{ServeTask, listen};

pub struct TcpBackend {
    address: SocketAddr,
    connections: Arc<AtomicU64>,
    _task: ServeTask,
}

impl TcpBackend {
    /// Listens on a free port of 127.0.0.1.
    pub async fn start(name: &str) -> TcpBackend {
        Self::start_at(name, (Ipv4Addr::LOCALHOST, 0).into()).await
    }

    /// Listens on a given address.
    pub async fn start_at(name: &str, address: SocketAddr) -> TcpBackend {
        let (listener, address) = listen(address).await;
        let connections = Arc::default();
        let task = ServeTask(tokio::spawn(serve(listener, format!("{name}\n"), Arc::clone(&connections))));
        TcpBackend { address, connections, _task: task }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Number of accepted connections.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Reads the name of a backend and checks that it echoes bytes.
pub async fn greeted(stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let mut stream = BufReader::new(stream);
    let mut name = String::new();
    stream.read_line(&mut name).await.unwrap_or_else(|e| panic!("the backend did not send its name: {e}"));
    stream.write_all(b"ping").await.unwrap_or_else(|e| panic!("could not send bytes: {e}"));
    let mut echo = [0; 4];
    stream.read_exact(&mut echo).await.unwrap_or_else(|e| panic!("no bytes came back: {e}"));
    assert_eq!(&echo, b"ping");
    name.trim_end().to_owned()
}

async fn serve(listener: TcpListener, greeting: String, connections: Arc<AtomicU64>) {
    let mut tasks = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.fetch_add(1, Ordering::SeqCst);
        tasks.spawn(echo(stream, greeting.clone()));
        while tasks.try_join_next().is_some() {}
    }
}

async fn echo(mut stream: TcpStream, greeting: String) {
    let (mut read, mut write) = stream.split();
    if write.write_all(greeting.as_bytes()).await.is_ok() {
        let _ = copy(&mut read, &mut write).await;
    }
}
