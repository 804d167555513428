//! A pod: its namespace, a veth link to the outside world, an application, and a pilot-agent with Envoy, both running as
//! user 1337.

use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RData, RecordType};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use testkit::backend::HttpBackend;
use testkit::process::Process;
use testkit::{servers, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::namespace::Namespace;
use crate::{POD, WORLD};

/// The agent's status port. It can be fixed, because the pod has its own namespace.
const STATUS: u16 = 15020;

/// Timeout of a request from the pod.
const TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) struct Pod {
    namespace: Namespace,
    agent: RefCell<Option<Process>>,
    folder: TempDir,
}

impl Pod {
    /// Must be called in the namespace of the outside world: creates a link from there.
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
        namespace.run("ip -6 address add fd77::2/64 dev eth0 nodad");
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("open to Envoy's user");
        Pod { namespace, agent: RefCell::new(None), folder }
    }

    /// Starts the application and returns its port.
    pub(crate) fn app(&self) -> u16 {
        let (port, received) = std::sync::mpsc::channel();
        self.namespace.spawn(async move {
            let app = HttpBackend::start_at("app", (Ipv4Addr::UNSPECIFIED, 0).into()).await;
            port.send(app.port()).expect("the caller waits");
            std::future::pending::<()>().await;
        });
        received.recv().expect("an application")
    }

    /// Starts pilot-agent as user 1337 and waits until Envoy is ready.
    pub(crate) async fn start_agent(&self, discovery: SocketAddr) {
        // Copied, because the build directory may not be accessible to that user.
        let [agent, envoy] = [Path::new(env!("CARGO_BIN_EXE_pilot-agent")), &servers::binary("envoy")].map(|program| {
            let copy = self.folder.path().join(program.file_name().expect("a name"));
            fs::copy(program, &copy).expect("a copy");
            fs::set_permissions(&copy, Permissions::from_mode(0o755)).expect("executable");
            copy.display().to_string()
        });
        let net = format!("--net={}", self.namespace.path().display());
        let config = self.folder.path().join("proxy");
        let line = format!(
            "{net} --setuid=1337 --setgid=1337 -- {agent} proxy sidecar --ip {POD} --id app-1.shop \
             --domain shop.svc.cluster.local --serviceCluster app --discoveryAddress {discovery} --configPath {} \
             --binaryPath {envoy} --proxyAdminPort 15000 --statusPort {STATUS} --concurrency 1 \
             --controlPlaneAuthPolicy NONE",
            config.display()
        );
        let mut env = vec![
            ("ISTIO_META_DNS_CAPTURE".to_owned(), "true".to_owned()),
            ("ISTIO_META_INTERCEPTION_MODE".to_owned(), "REDIRECT".to_owned()),
        ];
        env.extend(self.certificates());
        let words: Vec<&str> = line.split_whitespace().collect();
        *self.agent.borrow_mut() = Some(Process::start("pilot-agent", Path::new("/usr/bin/nsenter"), &words, &env));
        wait::until("a ready agent", async || {
            self.agent.borrow_mut().as_mut().expect("started").check_alive();
            let reply = self.request(([127, 0, 0, 1], STATUS).into(), "agent", "/healthz/ready").await?;
            if reply.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(reply) }
        })
        .await;
    }

    /// Envoy needs a certificate before it accepts connections, even without TLS.
    fn certificates(&self) -> Vec<(String, String)> {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["app.shop".to_owned()]).expect("a name");
        let chain = params.self_signed(&key).expect("a certificate").pem();
        let files = [
            ("TLS_CLIENT_CERT_CHAIN", "chain.pem", &chain),
            ("TLS_CLIENT_KEY", "key.pem", &key.serialize_pem()),
            ("TLS_CLIENT_ROOT_CERT", "root.pem", &chain),
        ];
        let written = files.map(|(name, file, text)| {
            let path = self.folder.path().join(file);
            fs::write(&path, text).expect("a file");
            fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("open to Envoy's user");
            (format!("ISTIO_META_{name}"), path.display().to_string())
        });
        written.into()
    }

    /// Runs istio-iptables in the pod's namespace, whose addresses determine IPv6 support.
    pub(crate) fn iptables(&self, flags: &str) {
        let mut arguments = vec!["istio-iptables"];
        arguments.extend(flags.split_whitespace());
        let (program, net) = (env!("CARGO_BIN_EXE_pilot-agent"), format!("--net={}", self.namespace.path().display()));
        let done = Command::new("nsenter").arg(net).arg("--").arg(program).args(&arguments).output().expect("nsenter");
        let output = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{flags}: {output}");
    }

    /// The installed rules without comments (timestamps) and counters.
    pub(crate) fn saved_rules(&self, tool: &str) -> String {
        let saved = self.namespace.run(tool);
        let uncounted = |line: &str| match line.strip_prefix(':') {
            Some(chain) => chain.split(" [").next().unwrap_or(chain).to_owned(),
            None => line.to_owned(),
        };
        saved.lines().filter(|l| !l.starts_with('#')).map(|l| uncounted(l) + "\n").collect()
    }

    /// Sends a plain HTTP request from the pod; returns the whole response as text.
    pub(crate) async fn get(&self, to: SocketAddr, host: &str) -> Result<String, String> {
        self.request(to, host, "/").await
    }

    async fn request(&self, to: SocketAddr, host: &str, path: &str) -> Result<String, String> {
        let text = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let result = self.namespace.inside(move || async move {
            let exchange = async {
                let mut stream = TcpStream::connect(to).await?;
                stream.write_all(text.as_bytes()).await?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await?;
                std::io::Result::Ok(answer)
            };
            timeout(TIMEOUT, exchange).await
        });
        flat(result.await)
    }

    /// Resolves a name with a DNS server over UDP.
    pub(crate) async fn resolve(&self, server: SocketAddr, name: &str) -> Result<Vec<IpAddr>, String> {
        let mut query = Message::query();
        query.add_query(Query::query(Name::from_ascii(name).expect("a name"), RecordType::A));
        let bytes = query.to_vec().expect("a query");
        let result = self.namespace.inside(move || async move {
            let exchange = async {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
                socket.connect(server).await?;
                socket.send(&bytes).await?;
                let mut buffer = vec![0; 4096];
                let length = socket.recv(&mut buffer).await?;
                buffer.truncate(length);
                std::io::Result::Ok(buffer)
            };
            timeout(TIMEOUT, exchange).await
        });
        let answer = Message::from_vec(&flat(result.await)?).map_err(|e| e.to_string())?;
        let address = |data: &RData| match data {
            RData::A(a) => Some(IpAddr::V4(a.0)),
            _ => None,
        };
        Ok(answer.answers.iter().filter_map(|record| address(&record.data)).collect())
    }
}

fn flat<T>(result: Result<std::io::Result<T>, tokio::time::error::Elapsed>) -> Result<T, String> {
    match result {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no response".to_owned()),
    }
}
