//! HTTP requests: bytes on the HTTP ports of a server, and requests to the configuration API.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use configapi::api::{Api, ApiOptions, ApiReply, ApiRequest};
use configapi::store::cache::HistoryLimits;
use configapi::store::embedded::EmbeddedStorage;
use configapi::users::Caller;
use discovery::args::{Cli, DiscoveryCommand};
use discovery::startup::{self, Server};
use http::Method;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use crate::input::head_and_body;

const NO_VARIABLE: fn(&str) -> Option<String> = |_| None;
/// A server that does not respond for this long is a finding.
const PATIENCE: Duration = Duration::from_secs(60);

struct Running {
    _runtime: Runtime,
    _server: Server,
    ports: Vec<SocketAddr>,
}

static SERVER: LazyLock<Running> = LazyLock::new(|| {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let flags = ["grpcAddr", "httpAddr", "monitoringAddr"].map(|name| format!("--{name}=127.0.0.1:0"));
    let rest = ["--registries=Mock", "--secureGRPCAddr=", "--httpsAddr=", "--ctrlz_port=0"].map(str::to_owned);
    let words = ["pilot-discovery".to_owned(), "discovery".to_owned()].into_iter().chain(flags).chain(rest);
    let Ok(Cli { command: DiscoveryCommand::Discovery(flags) }) = Cli::read(words) else {
        panic!("the flags of this server are valid");
    };
    let server = runtime.block_on(startup::start(&flags, &NO_VARIABLE, None)).expect("a server");
    let bound = &server.addresses;
    let ports = [bound.http, bound.monitoring, bound.grpc].into_iter().flatten().collect();
    Running { _runtime: runtime, _server: server, ports }
});

/// Bytes on a connection to an HTTP port; the first byte chooses the port.
pub(crate) fn http_request(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let port = SERVER.ports[usize::from(*first) % SERVER.ports.len()];
    let mut stream = TcpStream::connect(port).expect("the server accepts connections");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // The server may close the connection before it has read everything.
    if stream.write_all(rest).and_then(|()| stream.shutdown(Shutdown::Write)).is_err() {
        return;
    }
    let mut response = Vec::new();
    match stream.take(64 << 20).read_to_end(&mut response) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no response within {PATIENCE:?}"),
        _ => {}
    }
}

/// The API with its storage.
struct ApiWithStorage {
    api: Api,
    _folder: TempDir,
}

impl ApiWithStorage {
    fn new() -> ApiWithStorage {
        // In memory where there is such a file system: every write is synced.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
        let limits = HistoryLimits { events: 100, bytes: 1 << 20 };
        let storage = EmbeddedStorage::open(&folder.path().join("objects"), limits).expect("a storage");
        let options = ApiOptions { namespaces: vec!["shop".to_owned()], ..ApiOptions::default() };
        ApiWithStorage { api: Api::new(Arc::new(storage), options, CancellationToken::new()), _folder: folder }
    }
}

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));
static OBJECTS: LazyLock<Mutex<ApiWithStorage>> = LazyLock::new(|| Mutex::new(ApiWithStorage::new()));
static REQUESTS: AtomicUsize = AtomicUsize::new(0);
/// Requests to one storage. Inputs should depend little on those before.
const PER_STORAGE: usize = 1000;

/// A request to the configuration API: lines with method, path, query, content type and accepted types, then the body.
pub(crate) fn config_api(data: &[u8]) {
    let (head, body) = head_and_body(data);
    let line = |at: usize| head.get(at).cloned().unwrap_or_default();
    let request = ApiRequest {
        method: Method::from_bytes(line(0).as_bytes()).unwrap_or(Method::GET),
        path: line(1),
        query: line(2),
        content_type: line(3),
        accept: line(4),
        user_agent: String::new(),
        body: Bytes::copy_from_slice(body),
        caller: Caller::administrator("fuzz"),
    };
    let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    if REQUESTS.fetch_add(1, Ordering::Relaxed) % PER_STORAGE == PER_STORAGE - 1 {
        *objects = ApiWithStorage::new();
    }
    let reply = RUNTIME.block_on(async { tokio::time::timeout(PATIENCE, objects.api.respond(&request)).await });
    match reply {
        Ok(ApiReply::Complete(response)) => assert!((200..600).contains(&response.code), "{}", response.code),
        Ok(ApiReply::Watch(_)) => {}
        Err(_) => panic!("no response within {PATIENCE:?}"),
    }
}
