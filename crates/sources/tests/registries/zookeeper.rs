//! A real ZooKeeper with the layouts of Curator and Dubbo.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use sources::health::SourceState;
use sources::registry::adapter::SourcePlace;
use sources::registry::diff::MassLossGuard;
use sources::registry::shared_options::GoDuration;
use sources::registry::zookeeper::{ZooKeeperLayout, ZooKeeperOptions, ZooKeeperRegistry};
use sources::source::Source;
use testkit::servers;
use testkit::zookeeper::{NodeWrite, ZooKeeper};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::conformance::{Edit, Instance, RegistryServer, conforms, place};
use crate::follower::Follower;

fn options(address: SocketAddr, layout: ZooKeeperLayout) -> ZooKeeperOptions {
    ZooKeeperOptions { addresses: vec![address.to_string()], layout, ..ZooKeeperOptions::default() }
}

/// The registration as Curator writes it.
fn curator(instance: &Instance, serves: bool) -> NodeWrite {
    let Instance { service, id, address } = instance;
    let payload = json!({"@class": "org.springframework.cloud.zookeeper.discovery.ZookeeperInstance", "metadata": {}});
    let node = json!({
        "name": service, "id": id, "address": address, "port": 8080, "sslPort": null, "payload": payload,
        "registrationTimeUTC": 1, "serviceType": "DYNAMIC", "uriSpec": null, "enabled": serves,
    });
    NodeWrite::Put(format!("/services/{service}/{id}"), node.to_string().into_bytes())
}

/// The node of a Dubbo provider.
fn provider(instance: &Instance, serves: bool) -> String {
    let Instance { service, id, address } = instance;
    let url = format!("tri://{address}:8080/{service}?application={id}&disabled={}&side=provider", !serves);
    let encoded =
        url.replace(':', "%3A").replace('/', "%2F").replace('?', "%3F").replace('&', "%26").replace('=', "%3D");
    format!("/dubbo/{service}/providers/{encoded}")
}

struct RealZooKeeper {
    server: ZooKeeper,
    layout: ZooKeeperLayout,
}

impl RealZooKeeper {
    fn writes(&self, edit: Edit<'_>) -> Vec<NodeWrite> {
        let put = |path: String| NodeWrite::Put(path, Vec::new());
        match (self.layout, edit) {
            (ZooKeeperLayout::Curator, Edit::Add(instances)) => instances.iter().map(|i| curator(i, true)).collect(),
            (ZooKeeperLayout::Curator, Edit::Serving(instance, serves)) => vec![curator(instance, serves)],
            (ZooKeeperLayout::Curator, Edit::Remove(instance)) => {
                vec![NodeWrite::Delete(format!("/services/{}/{}", instance.service, instance.id))]
            }
            (ZooKeeperLayout::Dubbo, Edit::Add(instances)) => {
                instances.iter().map(|i| put(provider(i, true))).collect()
            }
            // The state is in the name of the node.
            (ZooKeeperLayout::Dubbo, Edit::Serving(instance, serves)) => {
                vec![put(provider(instance, serves)), NodeWrite::Delete(provider(instance, !serves))]
            }
            (ZooKeeperLayout::Dubbo, Edit::Remove(instance)) => vec![NodeWrite::Delete(provider(instance, true))],
        }
    }
}

impl RegistryServer for RealZooKeeper {
    fn source(&self) -> impl Source {
        ZooKeeperRegistry::new(options(self.server.address(), self.layout), place("ZooKeeper"))
    }

    fn described(&self, namespace: &str) -> Option<String> {
        let layout = if self.layout == ZooKeeperLayout::Dubbo { "dubbo" } else { "curator" };
        let address = self.server.address();
        Some(format!("zookeeper: {{addresses: ['{address}'], layout: {layout}, namespace: {namespace}}}"))
    }

    fn host(&self, service: &str) -> String {
        match self.layout {
            ZooKeeperLayout::Curator => format!("{service}.zookeeper"),
            ZooKeeperLayout::Dubbo => format!("{service}.dubbo"),
        }
    }

    async fn edit(&mut self, edit: Edit<'_>) {
        self.server.write(&self.writes(edit)).await;
    }

    async fn stop(&mut self) {
        self.server.kill();
    }

    async fn start_again(&mut self) {
        self.server.restart().await;
    }
}

async fn conforms_with(layout: ZooKeeperLayout) {
    if servers::without("zookeeper.jar") {
        return;
    }
    conforms(&mut RealZooKeeper { server: ZooKeeper::start().await, layout }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_conforms_with_the_layout_of_curator() {
    conforms_with(ZooKeeperLayout::Curator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_conforms_with_the_layout_of_dubbo() {
    conforms_with(ZooKeeperLayout::Dubbo).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_malformed_and_forbidden_nodes_affect_nothing_else() {
    if servers::without("zookeeper.jar") {
        return;
    }
    let server = ZooKeeper::start().await;
    let layout = ZooKeeperLayout::Curator;
    let mut seen = Follower::synced(ZooKeeperRegistry::new(options(server.address(), layout), place("Zoo"))).await;
    seen.until("the missing folder", |f| f.has_problem(&["/services", "does not exist"])).await;
    let [one, two] = [1, 2].map(|number| Instance::new("web", number));
    server.write(&[curator(&one, true), curator(&two, true)]).await;
    seen.until("instances of a folder made later", |f| f.serving("web.zookeeper").len() == 2).await;
    seen.until("no problem", |f| f.problems.is_empty()).await;

    let malformed = NodeWrite::Put("/services/web/web-1".to_owned(), b"\xff\x00 no JSON".to_vec());
    let empty = NodeWrite::Put("/services/web/new".to_owned(), Vec::new());
    let forbidden = NodeWrite::Hidden("/services/secret".to_owned());
    server.write(&[malformed, empty, forbidden]).await;
    seen.until("the malformed node", |f| f.has_problem(&["/services/web/web-1", "keeping its last valid value"])).await;
    seen.until("the empty node", |f| f.has_problem(&["/services/web/new", "ignored"])).await;
    seen.until("the forbidden node", |f| f.has_problem(&["/services/secret", "may not read it"])).await;
    assert_eq!((seen.serving("web.zookeeper").len(), seen.lost), (2, 0));

    let dubbo = ZooKeeperLayout::Dubbo;
    server.write(&[NodeWrite::Put("/dubbo/a.B/providers/nonsense".to_owned(), Vec::new())]).await;
    server.write(&[NodeWrite::Put("/dubbo/metadata/a.B".to_owned(), Vec::new())]).await;
    let found = Follower::synced(ZooKeeperRegistry::new(options(server.address(), dubbo), place("Zoo"))).await;
    assert!(found.has_problem(&["/dubbo/a.B/providers/nonsense", "expected a URL"]), "{:?}", found.problems);
    assert_eq!(found.problems.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_most_endpoints_is_held_back() {
    if servers::without("zookeeper.jar") {
        return;
    }
    let server = ZooKeeper::start().await;
    let all: Vec<Instance> = (1..=20).map(|number| Instance::new("web", number)).collect();
    server.write(&all.iter().map(|i| curator(i, true)).collect::<Vec<_>>()).await;
    let guard = MassLossGuard { lost_percent: 90, at_least: 10, hold_for: Duration::from_secs(1) };
    let place = SourcePlace { guard, ..place("Zoo") };
    let mut seen =
        Follower::synced(ZooKeeperRegistry::new(options(server.address(), ZooKeeperLayout::Curator), place)).await;
    server.delete_together(&all.iter().map(|i| format!("/services/web/{}", i.id)).collect::<Vec<_>>()).await;
    seen.until("the report", |f| f.has_problem(&["20 of 20 endpoints vanished at once"])).await;
    assert_eq!((seen.serving("web.zookeeper").len(), seen.lost), (20, 0));
    seen.until("a loss that lasts", |f| !f.has_service("web.zookeeper")).await;
    seen.until("no problem", |f| f.problems.is_empty()).await;
}

/// A server that answers every connection with these bytes, and then nothing.
async fn answering(bytes: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(bytes).await;
            open.push(stream);
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_do_not_speak_the_protocol_are_reported() {
    // A session of 600 ms that is never answered again, a huge frame, a refused session, another protocol.
    let silent = b"\0\0\0\x25\0\0\0\0\0\0\x02\x58\0\0\0\0\0\0\0\x01\0\0\0\x10AAAAAAAAAAAAAAAA\0";
    let refused = b"\0\0\0\x25\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10AAAAAAAAAAAAAAAA\0";
    for (bytes, reason) in [
        (&silent[..], "no answer within 400ms"),
        (&b"\xff\xff\xff\xff"[..], "larger than"),
        (&refused[..], "refused the session"),
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "larger than"),
    ] {
        let address = answering(bytes).await;
        let options = ZooKeeperOptions {
            session_timeout: GoDuration(Duration::from_secs(1)),
            ..options(address, ZooKeeperLayout::Curator)
        };
        let mut seen = Follower::new(ZooKeeperRegistry::new(options, place("Zoo")));
        seen.until_state(reason, |r| r.last_failure.as_ref().is_some_and(|f| f.message.contains(reason))).await;
        assert!(!matches!(seen.report().state, SourceState::Live));
    }
}
