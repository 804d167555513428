//! Attacks by other local users and by web pages in a local browser.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use testkit::client;

use crate::fixture::Agent;

/// Connects, sends the HTTP/2 preface and prints the number of received bytes, or the error.
const CONNECT: &str = "
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(20)
try:
    s.connect(sys.argv[1])
    s.sendall(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' + bytes(3) + bytes([4, 0, 0, 0, 0, 0]))
    print(len(s.recv(4096)))
except (PermissionError, BrokenPipeError, ConnectionResetError) as error:
    print(type(error).__name__)
";

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn connect_as(user: u32, socket: &Path) -> String {
    let mut command = Command::new("python3");
    let output = command.args(["-c", CONNECT]).arg(socket).uid(user).gid(user).current_dir("/").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_10_another_user_gets_neither_keys_nor_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let agent = Agent::start(folder, &[]).await;
    assert_eq!(mode(&path.join("proxy")), 0o700);
    let sockets = [agent.socket("XDS"), agent.socket("SDS")];
    for socket in &sockets {
        assert_eq!(mode(socket), 0o600, "{}", socket.display());
    }
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: to connect as another user needs root");
        return;
    }
    // As in a directory shared by a pod's containers: permissions do not help, peer credentials do.
    for (path, mode) in [(&path, 0o755), (&path.join("proxy"), 0o755), (&sockets[0], 0o666), (&sockets[1], 0o666)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    for socket in &sockets {
        let own = connect_as(0, socket);
        assert!(own.parse::<u32>().is_ok_and(|bytes| bytes > 0), "the agent's own user gets {own}");
        let other = connect_as(4711, socket);
        assert!(
            ["0", "BrokenPipeError", "ConnectionResetError"].contains(&other.as_str()),
            "another user gets {other}"
        );
    }
    agent.logs("refused a connection from another user").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_10_web_pages_cannot_drain_or_quit() {
    let mut agent = Agent::start(tempfile::tempdir().unwrap(), &[]).await;
    let post = async |path: &str, host: &str, headers: &[(&str, &str)]| {
        let mut request = http::Request::post(path).header("host", host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        client::send(agent.status, request.body(String::new()).unwrap()).await.unwrap().status.as_u16()
    };
    for path in ["/drain", "/quitquitquit"] {
        let localhost = "localhost:15020";
        for (host, headers) in [
            (localhost, &[("origin", "https://evil.example")][..]),
            (localhost, &[("origin", "null"), ("sec-fetch-site", "cross-site")]),
            (localhost, &[("sec-fetch-site", "same-site")]),
            ("rebound.evil.example:15020", &[]),
        ] {
            assert_eq!(post(path, host, headers).await, 403, "{path} {host} {headers:?}");
        }
    }
    let debug = client::get_with(agent.status, "rebound.evil.example", "/debug/ndsz", &[]).await.unwrap();
    assert_eq!(debug.status, 403);
    assert_eq!(post("/drain", "localhost:15020", &[]).await, 200);
    agent.process.check_alive();
}
