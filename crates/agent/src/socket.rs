//! Unix sockets for Envoy: made with their folder, over what an earlier run left behind.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use tokio::net::UnixListener;

/// Listens on a path. A socket that lies there is replaced; anything else that lies there is an error.
pub(crate) fn listen(path: &Path) -> Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))?;
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            fs::remove_file(path).with_context(|| format!("could not remove the old socket {}", path.display()))?;
        }
        Ok(_) => bail!("could not listen on {}: something else lies there", path.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("could not look at {}", path.display())),
    }
    let listener = UnixListener::bind(path).with_context(|| format!("could not listen on {}", path.display()))?;
    // Envoy may run as another user; who may reach it is decided by its folder.
    fs::set_permissions(path, Permissions::from_mode(0o666))
        .with_context(|| format!("could not open {} to Envoy", path.display()))?;
    Ok(listener)
}
