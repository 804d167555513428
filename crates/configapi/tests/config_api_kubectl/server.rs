//! The API on a loopback port, and kubectl for it.

use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use configapi::api::{Api, ApiOptions};
use configapi::http::ApiService;
use configapi::store::cache::HistoryLimits;
use configapi::store::embedded::EmbeddedStorage;
use configapi::users::Caller;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A running API. Every connection is an administrator's.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) folder: TempDir,
    program: PathBuf,
}

impl Server {
    pub(crate) async fn start() -> Server {
        Server::start_with(HistoryLimits::default()).await
    }

    pub(crate) async fn start_with(limits: HistoryLimits) -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        let storage = EmbeddedStorage::open(&folder.path().join("config.redb"), limits);
        let options =
            ApiOptions { version: "test".to_owned(), namespaces: vec!["shop".to_owned()], ..ApiOptions::default() };
        let api = Arc::new(Api::new(Arc::new(storage.expect("a storage")), options, CancellationToken::new()));
        api.seed().await.expect("first objects");
        let service = ApiService::new(api);
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = socket.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((stream, _)) = socket.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let answer = hyper::service::service_fn(move |request: http::Request<Incoming>| {
                        let service = service.clone();
                        async move {
                            let peer = Some(Caller::administrator("test"));
                            Ok::<_, Infallible>(service.respond(request, peer).await)
                        }
                    });
                    let builder = auto::Builder::new(TokioExecutor::new());
                    // A client that hangs up is no failure of the test.
                    let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        });
        Server { address, folder, program: testkit::servers::binary("kubectl") }
    }

    /// kubectl with a home in the folder of this server.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        let home: &Path = self.folder.path();
        command.arg(format!("--server=http://{}", self.address)).args(args).env_clear().env("HOME", home);
        command.env("PATH", "/usr/bin:/bin").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The result of kubectl with text on standard input.
    pub(crate) async fn output(&self, args: &[&str], input: &str) -> Output {
        finished(self.command(args), input).await
    }

    /// The standard output of kubectl, which must succeed.
    pub(crate) async fn kubectl(&self, args: &[&str], input: &str) -> String {
        let output = self.output(args, input).await;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {}: {error}", args.join(" "));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The error output of kubectl, which must fail.
    pub(crate) async fn refused(&self, args: &[&str], input: &str) -> String {
        let output = self.output(args, input).await;
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "kubectl {} succeeded: {text}", args.join(" "));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

pub(crate) async fn finished(mut command: Command, input: &str) -> Output {
    let input = input.to_owned();
    let run = move || {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        child.wait_with_output()
    };
    tokio::task::spawn_blocking(run).await.expect("a thread").expect("kubectl")
}
