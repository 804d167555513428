//! Unix sockets for Envoy: made with their folder, over what an earlier run left behind, and open to the agent's own
//! user alone: what is served here (the workload's key, files, a proxy's whole configuration) is private to it, and
//! every user of the machine can reach a folder such as /etc/istio/proxy.

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

/// How long to wait after a connection could not be accepted, such as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// Users whose refusal is logged; more are only counted as connections that ended.
const MAX_LOGGED: usize = 64;

/// Who may connect. Envoy is started by the agent and runs as its user; root could read all of it anyway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllowedPeers {
    /// Our own user and root.
    #[default]
    Own,
    /// These users too: an Envoy that a wrapper starts under another one.
    Also(BTreeSet<u32>),
    /// Anybody who reaches the socket: gRPC applications that speak xDS themselves run as any user.
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

    /// Permissions of the socket and of a folder that is made for it.
    fn modes(&self) -> (u32, u32) {
        match self {
            AllowedPeers::Own => (0o600, 0o700),
            AllowedPeers::Also(_) | AllowedPeers::Any => (0o666, 0o755),
        }
    }
}

/// Makes a folder that only those who may connect can enter. One that is there already, such as a pod's volume, stays
/// as it is: sockets in it ask their callers who they are.
pub(crate) fn make_folder(folder: &Path, peers: &AllowedPeers) -> Result<()> {
    let could_not = || format!("could not make the folder {}", folder.display());
    if let Some(above) = folder.parent().filter(|above| !above.as_os_str().is_empty()) {
        fs::create_dir_all(above).with_context(could_not)?;
    }
    let (_, mode) = peers.modes();
    match DirBuilder::new().mode(mode).create(folder) {
        Err(_) if folder.is_dir() => Ok(()),
        made => made.with_context(could_not),
    }
}

/// An open socket.
#[derive(Debug)]
pub(crate) struct SocketListener {
    listener: UnixListener,
    path: PathBuf,
    peers: AllowedPeers,
    /// Users whose refusal was logged.
    refused: BTreeSet<u32>,
}

impl SocketListener {
    /// Listens on a path. A socket that is there is replaced; anything else there is an error.
    pub(crate) fn bind(path: &Path, peers: AllowedPeers) -> Result<SocketListener> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            make_folder(folder, &peers)?;
        }
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                fs::remove_file(path).with_context(|| format!("could not remove the old socket {}", path.display()))?;
            }
            Ok(_) => bail!("could not listen on {}: it is there and not a socket", path.display()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("could not look at {}", path.display())),
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

    /// The next connection of a user who may connect. Others are closed before a byte of theirs is read.
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

    /// The kernel says who connected: permissions alone do not hold in a folder that others may write.
    fn admits(&mut self, stream: &UnixStream) -> bool {
        let user = match stream.peer_cred() {
            Ok(credentials) => credentials.uid(),
            Err(error) => {
                warn!(socket = %self.path.display(), %error, "could not tell who connected; connection closed");
                return false;
            }
        };
        let is_admitted = self.peers.admits(user);
        if !is_admitted && self.refused.len() < MAX_LOGGED && self.refused.insert(user) {
            warn!(
                socket = %self.path.display(),
                user,
                "refused a connection of another user; if this is Envoy, name its user in PILOTAGE_SOCKET_USERS"
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
    async fn hole_10_sockets_are_private_and_so_is_a_folder_made_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own/XDS");
        let _listener = SocketListener::bind(&own, AllowedPeers::Own).unwrap();
        assert_eq!((mode(&own), mode(own.parent().unwrap())), (0o600, 0o700));
        // A wrapper's Envoy, or an application, must be able to connect; its user is checked instead.
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
