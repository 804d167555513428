//! The ports of the configuration API: TLS on TCP, where the client's certificate or token says who calls, and a Unix
//! socket, where the permissions of the file decide.

use std::convert::Infallible;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use configapi::http::{ApiBody, ApiService};
use configapi::users::Caller;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{Service, service_fn};
use tracing::{debug, info};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls::ClientCertificates;

/// The most connections to the Unix socket.
const MAX_CONNECTIONS: usize = 256;
/// Pause after `accept` failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The service of the TCP port.
pub(crate) fn router(
    service: ApiService,
) -> impl Service<Request<Incoming>, Response = Response<ApiBody>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    service_fn(move |request: Request<Incoming>| {
        let service = service.clone();
        async move {
            let peer = request.extensions().get::<ClientCertificates>().and_then(caller);
            Ok(service.respond(request, peer).await)
        }
    })
}

/// The caller that a certificate names: its common name is the user, its organizations are the groups, as in upstream.
fn caller(certificates: &ClientCertificates) -> Option<Caller> {
    let (_, leaf) = X509Certificate::from_der(certificates.0.first()?).ok()?;
    let user = leaf.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = leaf.subject().iter_organization().filter_map(|name| Some(name.as_str().ok()?.to_owned())).collect();
    Some(Caller { user, groups })
}

/// A bound Unix socket. Its callers may do everything.
pub(crate) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
}

/// Binds a socket in a new folder that only the owner may enter, and moves it to its path when its mode is set: at no
/// moment can another user connect.
fn bind_private(path: &Path) -> std::io::Result<UnixListener> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Short: the path of a socket may have 107 bytes.
    let folder = parent.join(format!(".{}", std::process::id()));
    let inner = folder.join("s");
    // A run that was killed may have left them, and in a container all runs have one process id.
    let clean = || (fs::remove_file(&inner), fs::remove_dir(&folder));
    let _ = clean();
    DirBuilder::new().mode(0o700).create(&folder)?;
    let bound = (|| {
        let listener = UnixListener::bind(&inner)?;
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o600))?;
        fs::rename(&inner, path)?;
        Ok(listener)
    })();
    let _ = clean();
    bound
}

impl UnixSocket {
    /// Binds a path that only the owner may use. A socket of an earlier run is replaced.
    pub(crate) fn bind(path: PathBuf) -> Result<UnixSocket> {
        let failed = || format!("could not listen on {} for the configuration API", path.display());
        if fs::symlink_metadata(&path).is_ok_and(|known| !known.file_type().is_socket()) {
            bail!("could not listen on {} for the configuration API: it is not a socket", path.display());
        }
        let listener = bind_private(&path).with_context(failed)?;
        info!(path = %path.display(), "configuration API listening");
        Ok(UnixSocket { listener, path })
    }

    /// Serves until cancelled.
    pub(crate) async fn serve(self, service: ApiService, stop: CancellationToken) {
        let (connections, room) = (TaskTracker::new(), Semaphore::new(MAX_CONNECTIONS));
        let room = std::sync::Arc::new(room);
        while let Some(accepted) = stop.run_until_cancelled(self.listener.accept()).await {
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            // Dropping the stream closes it.
            let Ok(slot) = room.clone().try_acquire_owned() else { continue };
            let (service, stop) = (service.clone(), stop.clone());
            connections.spawn(async move {
                let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let service = service.clone();
                    async move {
                        let peer = Some(Caller::administrator("unix-socket"));
                        Ok::<_, Infallible>(service.respond(request, peer).await)
                    }
                });
                let builder = auto::Builder::new(TokioExecutor::new());
                let connection = builder.serve_connection(TokioIo::new(stream), answer);
                if let Some(Err(error)) = stop.run_until_cancelled(connection).await {
                    debug!(%error, "connection of the configuration API ended");
                }
                drop(slot);
            });
        }
        connections.close();
        connections.wait().await;
        // It may be gone already.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::UnixSocket;

    /// A thread looks at the path and its folder all the time while sockets are made.
    #[tokio::test]
    async fn the_socket_is_private_at_every_moment() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.sock");
        let (watched, stop) = (folder.path().to_owned(), tokio_util::sync::CancellationToken::new());
        let ended = stop.clone();
        let watcher = std::thread::spawn(move || {
            let (mut looks, mut open) = (0, Vec::new());
            while !ended.is_cancelled() {
                for entry in fs::read_dir(&watched).expect("the folder").filter_map(Result::ok) {
                    // It may be gone already.
                    let Ok(known) = fs::symlink_metadata(entry.path()) else { continue };
                    looks += 1;
                    if known.mode() & 0o077 != 0 {
                        open.push(format!("{} {:o}", entry.path().display(), known.permissions().mode()));
                    }
                }
            }
            (looks, open)
        });
        for _ in 0..200 {
            drop(UnixSocket::bind(path.clone()).expect("a socket"));
        }
        stop.cancel();
        let (looks, open) = watcher.join().expect("the watcher");
        assert!(looks > 0 && open.is_empty(), "{looks} looks: {open:?}");
        let left: Vec<_> = fs::read_dir(folder.path()).expect("the folder").filter_map(Result::ok).collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.sock");
        fs::write(&path, "text").expect("a file");
        let error = UnixSocket::bind(path.clone()).err().expect("refused");
        assert!(format!("{error:#}").contains("config.sock"), "{error:#}");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "text");
    }
}
