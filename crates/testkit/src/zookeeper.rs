//! A real ZooKeeper server that keeps its data when killed, and a small client that writes nodes.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::process::Process;
use crate::{ports, servers, wait};

/// Start-up timeout of a Java server on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time for an answer while it starts.
const ANSWER: Duration = Duration::from_secs(2);
const CREATE: i32 = 1;
const DELETE: i32 = 2;
const SET_DATA: i32 = 5;
const MULTI: i32 = 14;
const NODE_EXISTS: i32 = -110;
/// All permissions.
const ALL: i32 = 31;
const PING_XID: i32 = -2;
/// Requests that are sent before their answers are read.
const TOGETHER: usize = 200;

pub struct ZooKeeper {
    process: Process,
    args: Vec<String>,
    address: SocketAddr,
    _folder: TempDir,
}

/// A write of one node.
#[derive(Clone, Debug)]
pub enum NodeWrite {
    /// Creates it, with its parents; sets its data where it exists.
    Put(String, Vec<u8>),
    Delete(String),
    /// Creates a node that no client may read.
    Hidden(String),
}

impl ZooKeeper {
    pub async fn start() -> ZooKeeper {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
        let settings = format!(
            "dataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\ntickTime=500\n\
             forceSync=no\n4lw.commands.whitelist=*\n",
            folder.path().join("data").display(),
            address.port()
        );
        let file = folder.path().join("zoo.cfg");
        fs::write(&file, settings).unwrap_or_else(|e| panic!("could not write {}: {e}", file.display()));
        let jar = servers::binary("zookeeper.jar").display().to_string();
        let file = file.display().to_string();
        let args = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-jar", &jar, &file].map(str::to_owned).to_vec();
        let process = Process::start("zookeeper", Path::new("java"), &args, &[]);
        let mut server = ZooKeeper { process, args, address, _folder: folder };
        server.ready().await;
        server
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts it with its data.
    pub async fn restart(&mut self) {
        self.process = Process::start("zookeeper", Path::new("java"), &self.args, &[]);
        self.ready().await;
    }

    async fn ready(&mut self) {
        wait::until_within(PATIENCE, "a ZooKeeper server", async || {
            self.process.check_alive();
            let answer = self.command("srvr").await.map_err(|e| e.to_string())?;
            if answer.contains("Mode:") { Ok(()) } else { Err(answer) }
        })
        .await;
    }

    /// The answer to a command of four letters. A server that is starting may accept a connection and never answer.
    async fn command(&self, word: &str) -> std::io::Result<String> {
        let answer = async {
            let mut stream = TcpStream::connect(self.address).await?;
            stream.write_all(word.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok(answer)
        };
        timeout(ANSWER, answer).await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
    }

    /// Does the writes in this order.
    pub async fn write(&self, writes: &[NodeWrite]) {
        let mut client = NodeClient::open(self.address).await.unwrap_or_else(|e| panic!("no session: {e}"));
        for chunk in writes.chunks(TOGETHER) {
            client.write(chunk).await.unwrap_or_else(|e| panic!("could not write nodes: {e}"));
        }
    }

    /// Deletes nodes in one transaction.
    pub async fn delete_together(&self, paths: &[String]) {
        let mut client = NodeClient::open(self.address).await.unwrap_or_else(|e| panic!("no session: {e}"));
        let code = client.delete_together(paths).await.unwrap_or_else(|e| panic!("could not delete nodes: {e}"));
        assert_eq!(code, 0, "delete {paths:?}");
    }
}

struct NodeClient {
    stream: TcpStream,
    xid: i32,
}

impl NodeClient {
    async fn open(address: SocketAddr) -> std::io::Result<NodeClient> {
        let mut client = NodeClient { stream: TcpStream::connect(address).await?, xid: 0 };
        let mut hello = BytesMut::new();
        hello.put_i32(0);
        hello.put_i64(0);
        hello.put_i32(10_000);
        hello.put_i64(0);
        put_bytes(&mut hello, &[0; 16]);
        client.send(&hello).await?;
        client.receive().await?;
        Ok(client)
    }

    async fn write(&mut self, writes: &[NodeWrite]) -> std::io::Result<()> {
        // Nodes that exist already are set afterwards.
        let mut expected = Vec::new();
        for write in writes {
            match write {
                NodeWrite::Put(path, data) => {
                    for (at, _) in path.match_indices('/').skip(1) {
                        self.create(&path[..at], &[], ALL).await?;
                        expected.push(None);
                    }
                    self.create(path, data, ALL).await?;
                    expected.push(Some(write));
                }
                NodeWrite::Hidden(path) => {
                    self.create(path, &[], 0).await?;
                    expected.push(Some(write));
                }
                NodeWrite::Delete(path) => {
                    self.request(DELETE, |body| {
                        put_bytes(body, path.as_bytes());
                        body.put_i32(-1);
                    })
                    .await?;
                    expected.push(Some(write));
                }
            }
        }
        let mut again = Vec::new();
        for expected in expected {
            match (self.answer().await?, expected) {
                (0, _) | (NODE_EXISTS, None) => {}
                (NODE_EXISTS, Some(NodeWrite::Put(path, data))) => again.push((path, data)),
                (code, write) => panic!("ZooKeeper answered {code} to {write:?}"),
            }
        }
        for (path, data) in again {
            self.request(SET_DATA, |body| {
                put_bytes(body, path.as_bytes());
                put_bytes(body, data);
                body.put_i32(-1);
            })
            .await?;
            let code = self.answer().await?;
            assert_eq!(code, 0, "set {path}");
        }
        Ok(())
    }

    async fn delete_together(&mut self, paths: &[String]) -> std::io::Result<i32> {
        self.request(MULTI, |body| {
            for path in paths {
                put_multi_header(body, DELETE, false);
                put_bytes(body, path.as_bytes());
                body.put_i32(-1);
            }
            put_multi_header(body, -1, true);
        })
        .await?;
        self.answer().await
    }

    async fn create(&mut self, path: &str, data: &[u8], permissions: i32) -> std::io::Result<()> {
        self.request(CREATE, |body| {
            put_bytes(body, path.as_bytes());
            put_bytes(body, data);
            // One entry, for anyone. The node is persistent.
            body.put_i32(1);
            body.put_i32(permissions);
            put_bytes(body, b"world");
            put_bytes(body, b"anyone");
            body.put_i32(0);
        })
        .await
    }

    async fn request(&mut self, kind: i32, fill: impl FnOnce(&mut BytesMut)) -> std::io::Result<()> {
        self.xid += 1;
        let mut body = BytesMut::new();
        body.put_i32(self.xid);
        body.put_i32(kind);
        fill(&mut body);
        self.send(&body).await
    }

    /// The error code of the next answer.
    async fn answer(&mut self) -> std::io::Result<i32> {
        loop {
            let mut body = self.receive().await?;
            let xid = body.get_i32();
            body.get_i64();
            if xid != PING_XID {
                return Ok(body.get_i32());
            }
        }
    }

    async fn send(&mut self, body: &[u8]) -> std::io::Result<()> {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
        self.stream.write_all(&[&length, body].concat()).await
    }

    async fn receive(&mut self) -> std::io::Result<Bytes> {
        let length = self.stream.read_u32().await?;
        let mut body = vec![0; usize::try_from(length).unwrap_or_default()];
        self.stream.read_exact(&mut body).await?;
        Ok(body.into())
    }
}

fn put_bytes(body: &mut BytesMut, bytes: &[u8]) {
    body.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
    body.put_slice(bytes);
}

fn put_multi_header(body: &mut BytesMut, kind: i32, is_last: bool) {
    body.put_i32(kind);
    body.put_u8(u8::from(is_last));
    body.put_i32(-1);
}
