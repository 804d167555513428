//! Informers of client-go, as controllers use them: lists, watches, and what they miss.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use configapi::store::cache::HistoryLimits;
use testkit::forwarder::TcpForwarder;
use testkit::{servers, wait};

use super::{SERVICE, virtual_service};
use crate::server::Server;

/// A program with informers for some kinds. It is killed on drop.
struct Informer {
    child: Child,
    input: ChildStdin,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Informer {
    fn start(url: &str) -> Informer {
        let resources = ["virtualservices.v1.networking.istio.io", "httproutes.v1.gateway.networking.k8s.io"];
        let mut command = Command::new(servers::binary("informer"));
        command.arg(format!("-server={url}")).args(resources).env_clear();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("an informer");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = lines.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                kept.lock().expect("no holder panics").push(line);
            }
        });
        Informer { child, input, lines }
    }

    /// Waits for a line that begins with this text.
    async fn prints(&self, start: &str) {
        wait::until_within(LIMIT, start, async || {
            let lines = self.lines.lock().expect("no holder panics");
            if lines.iter().any(|line| line.starts_with(start)) { Ok(()) } else { Err(format!("{lines:#?}")) }
        })
        .await;
    }

    /// The content of its caches.
    async fn state(&mut self) -> Vec<String> {
        let is_state = |line: &&String| line.starts_with("STATE");
        let known = self.lines.lock().expect("no holder panics").iter().filter(is_state).count();
        self.input.write_all(b"\n").expect("its input");
        let line = wait::until_within(LIMIT, "the state", async || {
            let lines = self.lines.lock().expect("no holder panics");
            lines.iter().filter(is_state).nth(known).cloned().ok_or_else(|| "none".to_owned())
        })
        .await;
        line["STATE ".len()..].split(',').filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
    }

    /// Waits until its caches have what the server has.
    async fn agrees(&mut self, server: &Server) {
        let expected = objects(server).await;
        let end = std::time::Instant::now() + LIMIT;
        loop {
            let found = self.state().await;
            if found == expected {
                return;
            }
            assert!(std::time::Instant::now() < end, "{found:#?}\ninstead of\n{expected:#?}");
        }
    }
}

impl Drop for Informer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// The objects of the followed kinds, as the informer prints them.
async fn objects(server: &Server) -> Vec<String> {
    let form =
        "jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {.metadata.resourceVersion}{\"\\n\"}{end}";
    let mut all = Vec::new();
    for resource in ["virtualservices", "httproutes", "services", "configmaps"] {
        let listed = server.kubectl(&["get", resource, "-A", "-o", form], "").await;
        all.extend(listed.lines().map(|line| format!("{resource} {line}")));
    }
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn informers_follow_every_change_and_recover_from_what_they_missed() {
    if servers::without("informer") {
        return;
    }
    let server = Server::start_with(HistoryLimits { events: 20, bytes: 1 << 20 }).await;
    let link = TcpForwarder::start().await;
    link.forward_to(server.address);
    server.kubectl(&["apply", "-f", "-"], &format!("{SERVICE}---\n{}", virtual_service("a", "a.shop"))).await;
    let mut informer = Informer::start(&link.url());
    informer.prints("SYNCED").await;
    informer.prints("ADDED virtualservices shop/a ").await;
    informer.prints("ADDED services shop/cart ").await;

    server.kubectl(&["apply", "-f", "-"], &virtual_service("b", "b.shop")).await;
    informer.prints("ADDED virtualservices shop/b ").await;
    server.kubectl(&["label", "vs", "b", "-n", "shop", "x=y"], "").await;
    informer.prints("UPDATED virtualservices shop/b ").await;
    server.kubectl(&["create", "configmap", "c", "-n", "shop", "--from-literal=a=b"], "").await;
    informer.prints("ADDED configmaps shop/c ").await;
    server.kubectl(&["delete", "vs", "b", "-n", "shop"], "").await;
    informer.prints("DELETED virtualservices shop/b ").await;
    informer.agrees(&server).await;

    // Missed within the history, and beyond it: the second time the server answers 410 and the informer lists again.
    for (round, count) in [2, 30].into_iter().enumerate() {
        link.cut();
        for number in 0..count {
            let name = format!("missed-{round}-{number}");
            server.kubectl(&["create", "configmap", &name, "-n", "shop", "--from-literal=a=b"], "").await;
        }
        server.kubectl(&["delete", "configmap", &format!("missed-{round}-0"), "-n", "shop"], "").await;
        link.forward_to(server.address);
        informer.prints(&format!("ADDED configmaps shop/missed-{round}-{} ", count - 1)).await;
        informer.agrees(&server).await;
    }
    let lines = informer.lines.lock().expect("no holder panics").clone();
    assert!(!lines.iter().any(|line| line.contains("missed-1-0 ")), "deleted before it was seen: {lines:#?}");
}
