//! A real etcd with the layouts of frameworks.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde_json::json;
use sources::health::{SourceReport, SourceState};
use sources::registry::adapter::SourcePlace;
use sources::registry::diff::MassLossGuard;
use sources::registry::etcd::{EtcdLayout, EtcdRegistry, EtcdRegistryOptions};
use sources::registry::shared_options::TlsOptions;
use sources::source::Source;
use testkit::certificates::Authority;
use testkit::etcd::EtcdCluster;
use testkit::forwarder::TcpForwarder;
use testkit::servers;

use crate::conformance::{Edit, Instance, RegistryServer, conforms, place};
use crate::follower::Follower;

fn options(address: String, layout: EtcdLayout) -> EtcdRegistryOptions {
    EtcdRegistryOptions { addresses: vec![address], layout, ..EtcdRegistryOptions::default() }
}

fn adapter(cluster: &EtcdCluster, layout: EtcdLayout) -> EtcdRegistry {
    EtcdRegistry::new(options(format!("http://{}", cluster.address(0)), layout), place("Etcd"))
}

fn key(instance: &Instance) -> String {
    format!("/micro/registry/{}/{}", instance.service, instance.id)
}

/// What go-micro registers.
fn registration(instance: &Instance, serves: bool) -> String {
    let metadata = json!({"server": "http", "enabled": serves.to_string()});
    let node = json!({"id": instance.id, "address": format!("{}:8080", instance.address), "metadata": metadata});
    json!({"name": instance.service, "version": "v1", "metadata": null, "endpoints": [], "nodes": [node]}).to_string()
}

async fn register(cluster: &EtcdCluster, instances: &[Instance]) {
    let writes = stream::iter(instances).map(|i| async { cluster.put(0, &key(i), &registration(i, true)).await });
    writes.buffer_unordered(8).collect::<Vec<()>>().await;
}

fn several(service: &str, count: usize) -> Vec<Instance> {
    (1..=count).map(|number| Instance::new(service, number)).collect()
}

struct RealEtcd(EtcdCluster);

impl RegistryServer for RealEtcd {
    fn source(&self) -> impl Source {
        adapter(&self.0, EtcdLayout::GoMicro)
    }

    fn described(&self, namespace: &str) -> Option<String> {
        let address = self.0.address(0);
        Some(format!("etcd: {{addresses: ['http://{address}'], layout: goMicro, namespace: {namespace}}}"))
    }

    fn host(&self, service: &str) -> String {
        format!("{service}.etcd")
    }

    async fn edit(&mut self, edit: Edit<'_>) {
        match edit {
            Edit::Add(instances) => register(&self.0, instances).await,
            Edit::Serving(instance, serves) => self.0.put(0, &key(instance), &registration(instance, serves)).await,
            Edit::Remove(instance) => self.0.delete(0, &key(instance)).await,
        }
    }

    async fn stop(&mut self) {
        self.0.kill(0);
    }

    async fn start_again(&mut self) {
        self.0.resume(0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_conforms() {
    if servers::without("etcd") {
        return;
    }
    conforms(&mut RealEtcd(EtcdCluster::start(1).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_layout_is_read_and_malformed_values_affect_nothing_else() {
    if servers::without("etcd") {
        return;
    }
    let cluster = EtcdCluster::start(1).await;
    cluster.put(0, "/skydns/test/shop/web/a", r#"{"host":"10.0.0.1","port":80}"#).await;
    let kratos = json!({"id": "a", "name": "web", "endpoints": ["grpc://10.0.0.2:9000?isSecure=false"]});
    cluster.put(0, "/microservices/web/a", &kratos.to_string()).await;
    cluster.put(0, "team/web/10.0.0.3:80", r#"{"Op":0,"Addr":"10.0.0.3:80","Metadata":null}"#).await;
    cluster.put(0, "/dubbo/a.Web/providers/tri%3A%2F%2F10.0.0.4%3A80%2Fa.Web", "").await;
    let team = |mut options: EtcdRegistryOptions| {
        options.prefix = (options.layout == EtcdLayout::Grpc).then(|| "team".to_owned());
        EtcdRegistry::new(options, place("Etcd"))
    };
    for (layout, host, address) in [
        (EtcdLayout::SkyDns, "web.shop.test", "10.0.0.1"),
        (EtcdLayout::Kratos, "web.etcd", "10.0.0.2"),
        (EtcdLayout::Grpc, "web.etcd", "10.0.0.3"),
        (EtcdLayout::Dubbo, "a.web.dubbo", "10.0.0.4"),
    ] {
        let seen = Follower::synced(team(options(cluster.address(0).to_string(), layout))).await;
        assert_eq!(seen.serving(host), [address], "{layout:?}");
    }

    register(&cluster, &several("web", 2)).await;
    let mut seen = Follower::synced(adapter(&cluster, EtcdLayout::GoMicro)).await;
    let damaged = key(&Instance::new("web", 1));
    cluster.put(0, &damaged, "{\"name\":").await;
    cluster.put(0, "/micro/registry/web/large", &"x".repeat(300 * 1024)).await;
    seen.until("the damaged value", |f| f.has_problem(&[&damaged, "keeping its last valid value"])).await;
    seen.until("the large value", |f| f.has_problem(&["/web/large", "the limit is 262144"])).await;
    assert_eq!((seen.serving("web.etcd"), seen.lost), (vec!["10.0.0.1".to_owned(), "10.0.0.2".to_owned()], 0));
    cluster.delete(0, "/micro/registry/web/large").await;
    cluster.put(0, &damaged, &registration(&Instance::new("web", 1), true)).await;
    seen.until("no problem", |f| f.problems.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_most_endpoints_is_held_back() {
    if servers::without("etcd") {
        return;
    }
    let cluster = EtcdCluster::start(1).await;
    register(&cluster, &several("web", 20)).await;
    let guard = MassLossGuard { lost_percent: 90, at_least: 10, hold_for: Duration::from_secs(1) };
    let options = options(cluster.address(0).to_string(), EtcdLayout::GoMicro);
    let mut seen = Follower::synced(EtcdRegistry::new(options, SourcePlace { guard, ..place("Etcd") })).await;
    cluster.delete(0, "/micro/registry/web/").await;
    seen.until("the report", |f| f.has_problem(&["20 of 20 endpoints vanished at once"])).await;
    assert_eq!((seen.serving("web.etcd").len(), seen.lost), (20, 0));
    seen.until("a loss that lasts", |f| !f.has_service("web.etcd")).await;
    seen.until("no problem", |f| f.problems.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_during_an_outage_are_seen_after_it_even_if_compacted() {
    if servers::without("etcd") {
        return;
    }
    let cluster = EtcdCluster::start(1).await;
    let all = several("web", 4);
    register(&cluster, &all[..3]).await;
    let link = TcpForwarder::start().await;
    link.forward_to(cluster.address(0));
    let mut seen = Follower::synced(EtcdRegistry::new(options(link.url(), EtcdLayout::GoMicro), place("Etcd"))).await;
    for compacts in [false, true] {
        link.cut();
        seen.until_state("a stale source", |r| matches!(r.state, SourceState::Stale { .. })).await;
        let (added, removed) = if compacts { (&all[0], &all[3]) } else { (&all[3], &all[0]) };
        cluster.put(0, &key(added), &registration(added, true)).await;
        cluster.delete(0, &key(removed)).await;
        if compacts {
            cluster.compact(0).await;
        }
        assert_eq!(seen.serving("web.etcd").len(), 3, "kept during the outage");
        link.forward_to(cluster.address(0));
        let (added, removed) = (&added.address, &removed.address);
        seen.until("the changes", |f| {
            let serving = f.serving("web.etcd");
            serving.contains(added) && !serving.contains(removed)
        })
        .await;
        seen.until_state("a live source", |r| r.state == SourceState::Live).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn users_and_certificates_are_used_and_refusals_are_named() {
    if servers::without("etcd") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let cluster = EtcdCluster::start(1).await;
    register(&cluster, &several("web", 1)).await;
    cluster.require_user(0, "right").await;
    let user = |password: &str| {
        let password_file = file(password, &format!("{password}\n"));
        let options = options(cluster.address(0).to_string(), EtcdLayout::GoMicro);
        EtcdRegistryOptions { username: "root".to_owned(), password_file, ..options }
    };
    let seen = Follower::synced(EtcdRegistry::new(user("right"), place("Etcd"))).await;
    assert_eq!(seen.serving("web.etcd"), ["10.0.0.1"]);
    let mut refused = Follower::new(EtcdRegistry::new(user("wrong"), place("Etcd")));
    let is_named = |r: &SourceReport| r.last_failure.as_ref().is_some_and(|f| f.message.contains("user root"));
    refused.until_state("a refusal", is_named).await;

    let authority = Authority::new();
    let secure = EtcdCluster::start_with_tls(&authority).await;
    register(&secure, &several("web", 1)).await;
    let own = authority.workload("spiffe://test/registry");
    let tls = TlsOptions {
        ca_file: file("ca.pem", &authority.root()),
        cert_file: file("cert.pem", &own.chain),
        key_file: file("key.pem", &own.key),
        server_name: None,
    };
    let options = options(format!("https://{}", secure.address(1)), EtcdLayout::GoMicro);
    let seen = Follower::synced(EtcdRegistry::new(EtcdRegistryOptions { tls, ..options }, place("Etcd"))).await;
    assert_eq!(seen.serving("web.etcd"), ["10.0.0.1"]);
}
