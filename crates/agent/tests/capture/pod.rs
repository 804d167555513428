//! A pod: its namespace, a cable to the world, an application, and an Envoy that runs as Envoy's user.

use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use agent::certificates::{Material, Store};
use agent::{relay, sds};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::backend::HttpBackend;
use testkit::envoy::{Bootstrap, Transport};
use testkit::process::Process;
use testkit::{servers, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::namespace::Namespace;
use crate::{POD, WORLD};

/// Where Envoy asks for its admin port; its namespace is its own, so the port may be fixed.
const ADMIN: u16 = 15000;

pub(crate) struct Pod {
    namespace: Namespace,
    envoy: RefCell<Option<Process>>,
    agent: RefCell<Option<DropGuard>>,
    folder: TempDir,
}

impl Pod {
    /// Called inside the world: lays a cable from there.
    pub(crate) fn new() -> Pod {
        let namespace = Namespace::new("the pod");
        let thread = namespace.thread();
        for command in [
            format!("ip link add world type veth peer name eth0 netns {thread}"),
            format!("ip address add {WORLD}/24 dev world"),
            "ip link set world up".to_owned(),
        ] {
            let words: Vec<&str> = command.split(' ').collect();
            let done = Command::new(words[0]).args(&words[1..]).output().expect("ip");
            assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
        }
        namespace.run(&format!("ip address add {POD}/24 dev eth0"));
        namespace.run("ip link set eth0 up");
        namespace.run(&format!("ip route add default via {WORLD}"));
        // Best effort: a kernel may have no IPv6, and then nothing is captured there.
        namespace.run("ip -6 address add fd77::2/64 dev eth0 nodad");
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("open to Envoy's user");
        Pod { namespace, envoy: RefCell::new(None), agent: RefCell::new(None), folder }
    }

    /// Starts the application and gives its port.
    pub(crate) async fn app(&self) -> u16 {
        let (port, told) = std::sync::mpsc::channel();
        let namespace = self.namespace.path().to_owned();
        std::thread::spawn(move || {
            enter(&namespace);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let app = HttpBackend::start_at("app", (Ipv4Addr::UNSPECIFIED, 0).into()).await;
                port.send(app.port()).expect("somebody waits");
                std::future::pending::<()>().await;
            });
        });
        told.recv().expect("an application")
    }

    /// Starts Envoy as user 1337; its control plane is in the world, on loopback there.
    pub(crate) async fn start_envoy(&self, control_plane: SocketAddr) {
        *self.agent.borrow_mut() = Some(serve(self.folder.path(), control_plane));
        let config = self.folder.path().join("bootstrap.json");
        fs::write(&config, bootstrap(self.folder.path()).to_string()).expect("a bootstrap");
        // The cache may lie where only its owner can look.
        let binary = self.folder.path().join("envoy");
        fs::copy(servers::binary("envoy"), &binary).expect("a copy of Envoy");
        fs::set_permissions(&binary, Permissions::from_mode(0o755)).expect("executable");
        let net = format!("--net={}", self.namespace.path().display());
        let args = [
            &*net,
            "--setuid=1337",
            "--setgid=1337",
            "--",
            &binary.to_string_lossy(),
            "--config-path",
            &config.to_string_lossy(),
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "--log-level",
            "warning",
        ];
        *self.envoy.borrow_mut() = Some(Process::start("envoy", Path::new("/usr/bin/nsenter"), &args, &[]));
        wait::until("a ready Envoy", async || {
            self.envoy.borrow_mut().as_mut().expect("started").check_alive();
            let reply = self.request(([127, 0, 0, 1], ADMIN).into(), "admin", "/ready").await?;
            if reply.contains("LIVE") { Ok(()) } else { Err(reply) }
        })
        .await;
    }

    /// Runs the product's own command on the pod's namespace, from outside it.
    pub(crate) fn iptables(&self, flags: &str) {
        let namespace = self.namespace.path();
        let mut arguments = vec!["istio-iptables".to_owned()];
        arguments.extend(flags.split_whitespace().map(str::to_owned));
        // The addresses that decide on IPv6 are the pod's, so the command itself runs inside.
        let (program, net) = (env!("CARGO_BIN_EXE_pilot-agent"), format!("--net={}", namespace.display()));
        let done = Command::new("nsenter").arg(net).arg("--").arg(program).args(&arguments).output().expect("nsenter");
        let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{flags}: {said}");
    }

    pub(crate) fn saved_rules(&self, tool: &str) -> String {
        let saved = self.namespace.run(tool);
        // Comments tell the time, counters the traffic.
        let line = |line: &str| {
            if line.starts_with(':') { line.split(" [").next().unwrap_or(line).to_owned() } else { line.to_owned() }
        };
        saved.lines().filter(|l| !l.starts_with('#')).map(|l| line(l) + "\n").collect()
    }

    /// A plain call out of the pod, as any program would make it: the whole answer as text.
    pub(crate) async fn get(&self, to: SocketAddr, host: &str) -> Result<String, String> {
        self.request(to, host, "/").await
    }

    async fn request(&self, to: SocketAddr, host: &str, path: &str) -> Result<String, String> {
        let text = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let asked = self.namespace.inside(move || async move {
            let asked = async {
                let mut stream = TcpStream::connect(to).await?;
                stream.write_all(text.as_bytes()).await?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await?;
                std::io::Result::Ok(answer)
            };
            timeout(Duration::from_secs(3), asked).await
        });
        match asked.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer".to_owned()),
        }
    }
}

fn enter(namespace: &PathBuf) {
    let file = fs::File::open(namespace).expect("the namespace");
    nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).expect("inside");
}

/// A sidecar whose connections are redirected to it.
fn bootstrap(folder: &Path) -> Value {
    let mut bootstrap = Bootstrap::sidecar(0, Transport::Delta, "app", "shop", json!({"app": "app"}));
    bootstrap.node_id = format!("sidecar~{POD}~app.shop~shop.svc.cluster.local");
    bootstrap.metadata["INSTANCE_IPS"] = POD.to_string().into();
    bootstrap.metadata["INTERCEPTION_MODE"] = "REDIRECT".into();
    let mut json = bootstrap.over_socket(&folder.join("XDS"));
    let clusters = &mut json["static_resources"]["clusters"];
    let mut secrets = bootstrap.over_socket(&folder.join("SDS"))["static_resources"]["clusters"][0].take();
    secrets["name"] = "sds-grpc".into();
    secrets["load_assignment"]["cluster_name"] = "sds-grpc".into();
    clusters.as_array_mut().expect("clusters").push(secrets);
    json["admin"] = json!({"address": {"socket_address": {"address": "127.0.0.1", "port_value": ADMIN}}});
    json
}

/// What Envoy asks of an agent, served from the world: sockets of the file system know no network namespaces.
fn serve(folder: &Path, control_plane: SocketAddr) -> DropGuard {
    let stop = CancellationToken::new();
    let options = relay::Options::new(folder.join("XDS"), relay::Upstream::plain(&control_plane.to_string()));
    let relay = relay::Relay::bind(options, None, Arc::default()).expect("a relay");
    tokio::spawn(relay.serve(stop.clone()));
    let store = Store::new();
    store.publish(material());
    let secrets = sds::Server::bind(&folder.join("SDS"), store).expect("secrets");
    tokio::spawn(secrets.serve(stop.clone()));
    stop.drop_guard()
}

/// Envoy wants a certificate before it takes calls, even if none of them is encrypted.
fn material() -> Material {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["app.shop".to_owned()]).expect("a name");
    let chain = params.self_signed(&key).expect("a certificate").pem();
    Material { root: chain.clone().into(), chain: chain.into(), key: key.serialize_pem().into() }
}
