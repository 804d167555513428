//! Reports the state of a service to systemd (`Type=notify`): ready, stopping, a line of status, and signs of life for its
//! watchdog. Without systemd nothing is sent.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The connection to systemd, if it started this process.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// From the values of `$NOTIFY_SOCKET` and `$WATCHDOG_USEC`. An address that cannot be used counts as none.
    pub fn new(notify_socket: Option<&str>, watchdog_usec: Option<&str>) -> ServiceManager {
        let socket = notify_socket.and_then(|path| Some((UnixDatagram::unbound().ok()?, address(path).ok()?)));
        let watchdog = watchdog_usec.and_then(|text| text.parse().ok()).filter(|usec| *usec > 0);
        ServiceManager { watchdog: watchdog.map(Duration::from_micros).filter(|_| socket.is_some()), socket }
    }

    /// Whether systemd waits for messages.
    pub fn is_connected(&self) -> bool {
        self.socket.is_some()
    }

    /// How often a sign of life is due: twice in the time that systemd waits for one.
    pub fn heartbeat(&self) -> Option<Duration> {
        self.watchdog.map(|limit| limit / 2)
    }

    /// The service has started.
    pub fn ready(&self) {
        self.send("READY=1\nSTATUS=ready");
    }

    /// The service is about to exit.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// Sets the line that `systemctl status` shows.
    pub fn status(&self, text: &str) {
        self.send(&format!("STATUS={}", text.replace('\n', " ")));
    }

    /// A sign of life.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// A message that cannot be delivered is dropped: systemd then acts as it does for a service that hangs.
    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}

/// A path, or an abstract name after an `@`.
fn address(text: &str) -> io::Result<SocketAddr> {
    match text.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name.as_bytes()),
        None => SocketAddr::from_pathname(text),
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::time::Duration;

    use super::ServiceManager;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 200];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn messages_arrive_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("pilotage-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let sockets = [
            (UnixDatagram::bind(&path).unwrap(), path.display().to_string()),
            (UnixDatagram::bind_addr(&abstract_address).unwrap(), format!("@{name}")),
        ];
        for (socket, address) in sockets {
            let manager = ServiceManager::new(Some(&address), Some("3000000"));
            assert_eq!(manager.heartbeat(), Some(Duration::from_millis(1500)));
            manager.status("waiting\nfor consul");
            manager.ready();
            manager.alive();
            manager.stopping();
            let all: Vec<String> = (0..4).map(|_| received(&socket)).collect();
            let expected =
                ["STATUS=waiting for consul", "READY=1\nSTATUS=ready", "WATCHDOG=1", "STOPPING=1\nSTATUS=stopping"];
            assert_eq!(all, expected);
        }
    }

    #[test]
    fn without_systemd_nothing_happens() {
        for manager in [ServiceManager::new(None, Some("5")), ServiceManager::new(Some("/nonexistent/socket"), None)] {
            manager.ready();
            assert_eq!(manager.heartbeat(), None);
        }
    }
}
