//! Unix sockets for Envoy. They serve private data (the workload's key, certificate files, the proxy's configuration) in
//! directories that other users can reach, such as /etc/istio/proxy. So permissions and peer credentials are checked.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, UnixStream};
use tracing::{debug, warn};

/// Pause after a failed accept, for example when file descriptors run out.
const PAUSE: Duration = Duration::from_millis(200);

/// At most this many distinct refused users are logged.
const MAX_LOGGED: usize = 64;

/// Users allowed to connect. Envoy is a child of the agent and runs as the same user. Root is always allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllowedPeers {
    /// The agent's own user and root.
    #[default]
    Own,
    /// Also these users, for an Envoy that a wrapper starts as another user.
    Also(BTreeSet<u32>),
    /// Every user: proxyless gRPC applications run as any user.
    Any,
}

impl AllowedPeers {
    fn admits(&self, user: u32) -> bool {
        let is_own = user == 0 || user == geteuid().as_raw();
        is_own
            || match self {
                AllowedPeers::Own => false,
                AllowedPeers::Also(users) => users.contains(&user),
                AllowedPeers::Any => true,
            }
    }

    /// Permissions of the socket, and of its directory if that is created.
    fn modes(&self) -> (u32, u32) {
        match self {
            AllowedPeers::Own => (0o600, 0o700),
            AllowedPeers::Also(_) | AllowedPeers::Any => (0o666, 0o755),
        }
    }
}

/// Creates a directory that only allowed users can enter. An existing one, such as a pod's volume, keeps its
/// permissions: sockets check peer credentials anyway.
pub(crate) fn make_folder(folder: &Path, peers: &AllowedPeers) -> Result<()> {
    let could_not = || format!("could not create the directory {}", folder.display());
    if let Some(above) = folder.parent().filter(|above| !above.as_os_str().is_empty()) {
        fs::create_dir_all(above).with_context(could_not)?;
    }
    let (_, mode) = peers.modes();
    match DirBuilder::new().mode(mode).create(folder) {
        Err(_) if folder.is_dir() => Ok(()),
        made => made.with_context(could_not),
    }
}

/// A listening Unix socket that accepts allowed users only.
#[derive(Debug)]
pub(crate) struct SocketListener {
    listener: UnixListener,
    path: PathBuf,
    peers: AllowedPeers,
    /// Refused users that were logged.
    refused: BTreeSet<u32>,
}

impl SocketListener {
    /// Listens on a path. An existing socket is replaced; any other existing file is an error.
    pub(crate) fn bind(path: &Path, peers: AllowedPeers) -> Result<SocketListener> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            make_folder(folder, &peers)?;
        }
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                fs::remove_file(path).with_context(|| format!("could not remove the old socket {}", path.display()))?;
            }
            Ok(_) => bail!("could not listen on {}: the path exists and is not a socket", path.display()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("could not stat {}", path.display())),
        }
        let listener = UnixListener::bind(path).with_context(|| format!("could not listen on {}", path.display()))?;
        let (mode, _) = peers.modes();
        fs::set_permissions(path, Permissions::from_mode(mode))
            .with_context(|| format!("could not set the permissions of {}", path.display()))?;
        Ok(SocketListener { listener, path: path.to_owned(), peers, refused: BTreeSet::new() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection from an allowed user. Others are closed before any byte is read.
    pub(crate) async fn accept(&mut self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    if self.admits(&stream) {
                        return stream;
                    }
                }
                Err(error) => {
                    debug!(socket = %self.path.display(), %error, "could not accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Checks the peer's user id. File permissions alone do not protect a socket in a shared directory.
    fn admits(&mut self, stream: &UnixStream) -> bool {
        let user = match stream.peer_cred() {
            Ok(credentials) => credentials.uid(),
            Err(error) => {
                warn!(socket = %self.path.display(), %error, "could not read peer credentials; closing the connection");
                return false;
            }
        };
        let is_admitted = self.peers.admits(user);
        if !is_admitted && self.refused.len() < MAX_LOGGED && self.refused.insert(user) {
            warn!(
                socket = %self.path.display(),
                user,
                "refused a connection from another user; if this is Envoy, add its user id to PILOTAGE_SOCKET_USERS"
            );
        }
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::{AllowedPeers, SocketListener};

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn hole_10_sockets_and_directories_created_for_them_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own/XDS");
        let _listener = SocketListener::bind(&own, AllowedPeers::Own).unwrap();
        assert_eq!((mode(&own), mode(own.parent().unwrap())), (0o600, 0o700));
        // Other users must be able to connect; their user id is checked instead.
        let shared = folder.path().join("shared/XDS");
        let _listener = SocketListener::bind(&shared, AllowedPeers::Any).unwrap();
        assert_eq!(mode(&shared), 0o666);
    }

    #[test]
    fn hole_10_other_users_are_refused() {
        let own = nix::unistd::geteuid().as_raw();
        let other = own + 1;
        let also = AllowedPeers::Also([other].into());
        assert!(AllowedPeers::Own.admits(own) && AllowedPeers::Own.admits(0) && !AllowedPeers::Own.admits(other));
        assert!(also.admits(other) && !also.admits(other + 1));
        assert!(AllowedPeers::Any.admits(other));
    }
}
