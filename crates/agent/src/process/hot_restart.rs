//! What the epochs of one Envoy share outside of their processes: shared memory and abstract Unix sockets, both named by
//! the base id. Repairs them after a process was killed, because Envoy itself does not.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::{info, warn};

/// Version of Envoy's shared memory whose layout is known: its size and version, locks, and flags at the end.
const KNOWN_VERSION: u64 = 11;
/// Envoy numbers sockets by the epoch modulo this.
const MAX_CONCURRENT: u32 = 3;
/// Length of `sun_path`; Envoy pads abstract names with zeros to it. The first byte marks the name as abstract.
const NAME_LENGTH: usize = 108 - 1;

/// Removes the shared memory, which Envoy leaves behind. Called when no epoch is running.
pub(super) fn remove_shared_memory(base_id: u32) {
    let _ = fs::remove_file(shared_memory(base_id));
}

/// Clears the mark of an Envoy that starts. An Envoy that dies while starting leaves it, and every later epoch would
/// exit with "previous envoy process is still initializing". Called when no epoch is starting.
pub(super) fn clear_starting_mark(base_id: u32) {
    let path = shared_memory(base_id);
    let cleared = OpenOptions::new().read(true).write(true).open(&path).and_then(|file| clear(&file));
    match cleared {
        Ok(true) => info!("cleared the mark of an Envoy that died while starting"),
        Ok(false) => {}
        Err(error) => warn!("could not check {path}: {error}; a new epoch of Envoy may not be able to start"),
    }
}

/// Returns true if the mark was set.
fn clear(mut file: &File) -> io::Result<bool> {
    let mut header = [0; 16];
    file.read_exact(&mut header)?;
    let [size, version] = [0, 8].map(|at| {
        let bytes = header[at..at + 8].try_into().unwrap_or_default();
        u64::from_ne_bytes(bytes)
    });
    if version != KNOWN_VERSION || size != file.metadata()?.len() || size < 24 {
        return Err(io::Error::other(format!("unknown layout (version {version}, size {size})")));
    }
    let mut flags = [0; 8];
    file.read_exact_at(&mut flags, size - 8)?;
    if flags == [0; 8] {
        return Ok(false);
    }
    file.write_all_at(&[0; 8], size - 8)?;
    Ok(true)
}

fn shared_memory(base_id: u32) -> String {
    // Envoy multiplies the base id by ten.
    format!("/dev/shm/envoy_shared_memory_{}", u64::from(base_id) * 10)
}

/// Receives what an Envoy sends to its dead parent. Without it Envoy aborts when it asks its parent to exit.
#[derive(Debug)]
pub(super) struct ParentSocket {
    _socket: UnixDatagram,
}

impl ParentSocket {
    /// Takes the place of a dead epoch. Messages are not read: only two small ones are sent.
    pub(super) fn of_dead(epoch: u32, base_id: u32) -> io::Result<ParentSocket> {
        let name = format!("envoy_domain_socket_parent_{}", socket_number(epoch, base_id));
        let mut padded = [0; NAME_LENGTH];
        padded.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        let _socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(padded)?)?;
        Ok(ParentSocket { _socket })
    }
}

/// Envoy computes with signed 32-bit numbers and prints the sum as an unsigned 64-bit one.
fn socket_number(epoch: u32, base_id: u32) -> u64 {
    let base = i64::from(base_id.wrapping_mul(10).cast_signed());
    base.cast_unsigned().wrapping_add(u64::from(epoch % MAX_CONCURRENT))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{clear, socket_number};

    #[test]
    fn sockets_are_numbered_as_envoy_does() {
        // As /proc/net/unix shows them for Envoy 1.40.
        assert_eq!(socket_number(0, 257_393_387), 18_446_744_071_988_518_190);
        assert_eq!(socket_number(1, 260_787_307), 18_446_744_072_022_457_391);
        assert_eq!(socket_number(4, 1234), 12341);
    }

    #[test]
    fn only_a_known_layout_is_changed() {
        let memory = |version: u64, flags: u64| {
            let mut file = tempfile::tempfile().unwrap();
            let words = [104, version, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, flags];
            words.iter().for_each(|word: &u64| file.write_all(&word.to_ne_bytes()).unwrap());
            std::io::Seek::rewind(&mut file).unwrap();
            file
        };
        let marked = memory(11, 1);
        assert!(clear(&marked).unwrap());
        assert!(!clear(&memory(11, 0)).unwrap());
        assert!(clear(&memory(12, 1)).unwrap_err().to_string().contains("version 12"));
    }
}
