//! Real Consul servers: the suite in both watch modes, the loss of a leader, and ACL tokens that lose rights.

use http::Method;
use serde_json::{Value, json};
use sources::health::SourceState;
use sources::registry::consul::{ConsulOptions, ConsulRegistry};
use sources::registry::shared_options::GoDuration;
use sources::source::Source;
use std::time::Duration;
use testkit::consul::Consul;
use testkit::servers;

use crate::conformance::{Edit, Instance, RegistryServer, conforms, place};
use crate::follower::Follower;

pub(crate) const NODE: &str = "outside";

pub(crate) fn options(addresses: Vec<String>) -> ConsulOptions {
    ConsulOptions { addresses, interval: GoDuration(Duration::from_millis(100)), ..ConsulOptions::default() }
}

pub(crate) fn adapter(options: ConsulOptions) -> ConsulRegistry {
    ConsulRegistry::new(options, place("Consul"))
}

struct RealConsul {
    server: Consul,
    watches: usize,
}

pub(crate) fn service(instance: &Instance) -> Value {
    let Instance { service, id, address } = instance;
    json!({"ID": id, "Service": service, "Address": address, "Port": 8080, "Meta": {"protocol": "http"}})
}

impl RealConsul {
    /// Registers many instances in transactions of 100; Consul accepts 128 operations. They have no checks, because a
    /// node with thousands of checks makes Consul slow.
    async fn add(&mut self, instances: &[Instance]) {
        self.server.put("/v1/catalog/register", json!({"Node": NODE, "Address": "127.0.0.1"})).await;
        if instances.len() <= 10 {
            for instance in instances {
                self.server.register(NODE, &service(instance), "passing").await;
            }
            return;
        }
        for some in instances.chunks(100) {
            let set = |instance| json!({"Service": {"Verb": "set", "Node": NODE, "Service": service(instance)}});
            self.server.put("/v1/txn", some.iter().map(set).collect()).await;
        }
    }
}

impl RegistryServer for RealConsul {
    fn source(&self) -> impl Source {
        adapter(ConsulOptions { watches: self.watches, ..options(vec![self.server.url()]) })
    }

    fn described(&self, namespace: &str) -> Option<String> {
        let (url, watches) = (self.server.url(), self.watches);
        Some(format!("consul: {{addresses: ['{url}'], namespace: {namespace}, watches: {watches}, interval: 100ms}}"))
    }

    fn host(&self, service: &str) -> String {
        format!("{service}.service.consul")
    }

    async fn edit(&mut self, edit: Edit<'_>) {
        match edit {
            Edit::Add(instances) => self.add(instances).await,
            Edit::Serving(instance, serves) => {
                let status = if serves { "passing" } else { "critical" };
                self.server.register(NODE, &service(instance), status).await;
            }
            Edit::Remove(instance) => self.server.deregister(NODE, &instance.id).await,
        }
    }

    async fn stop(&mut self) {
        self.server.kill();
    }

    async fn start_again(&mut self) {
        self.server.restart().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_each_service_conforms() {
    if servers::without("consul") {
        return;
    }
    conforms(&mut RealConsul { server: Consul::start().await, watches: 100 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_the_catalog_conforms() {
    if servers::without("consul") {
        return;
    }
    conforms(&mut RealConsul { server: Consul::start().await, watches: 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_a_leader_loses_no_endpoint() {
    if servers::without("consul") {
        return;
    }
    let mut servers = Consul::cluster(3).await;
    let [a, b] = [1, 2].map(|n| Instance::new("web", n));
    servers[0].register(NODE, &service(&a), "passing").await;
    let addresses = servers.iter().map(Consul::url).collect();
    let mut seen = Follower::synced(adapter(options(addresses))).await;
    let host = "web.service.consul";
    // The queried server may not have replicated the registration yet.
    seen.until("the instance", |f| f.serving(host) == ["10.0.0.1"]).await;

    let mut leader = 0;
    for (i, server) in servers.iter().enumerate() {
        if server.leads().await {
            leader = i;
        }
    }
    servers[leader].kill();
    let survivor = (leader + 1) % 3;
    // Writes fail until a new leader is elected.
    testkit::wait::until_within(Duration::from_secs(60), "a new leader", async || {
        let body = json!({"Node": NODE, "Address": "127.0.0.1", "Service": service(&b)});
        Ok(servers[survivor].call(Method::PUT, "/v1/catalog/register", Some(body)).await?)
    })
    .await;
    seen.until("a change after the election", |f| f.serving(host) == ["10.0.0.1", "10.0.0.2"]).await;
    println!("loss of a leader of 3: {} endpoints lost", seen.lost);
    assert_eq!(seen.lost, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_loses_rights_removes_nothing() {
    if servers::without("consul") {
        return;
    }
    let acl = json!({"acl": {
        "enabled": true, "default_policy": "deny", "tokens": {"initial_management": "root", "agent": "root"},
    }});
    let mut server = Consul::start_with(acl).await;
    server.use_token("root");
    testkit::wait::until("a valid token", async || Ok(server.call(Method::GET, "/v1/acl/token/self", None).await?))
        .await;
    server.register(NODE, &service(&Instance::new("web", 1)), "passing").await;
    let readable = r#"service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }"#;
    let policy: Value =
        serde_json::from_str(&server.put("/v1/acl/policy", json!({"Name": "mesh", "Rules": readable})).await).unwrap();
    let new_token = async |secret: &str| {
        let body = json!({"SecretID": secret, "Policies": [{"Name": "mesh"}]});
        let made: Value = serde_json::from_str(&server.put("/v1/acl/token", body).await).unwrap();
        made["AccessorID"].as_str().unwrap().to_owned()
    };
    let [first, second] = ["11111111", "22222222"].map(|tail| format!("00000000-0000-0000-0000-0000{tail}"));
    let accessor = new_token(&first).await;
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, format!("{first}\n")).unwrap();

    // A blocking query keeps the rights that it started with; the next one has the new rights.
    let wait = GoDuration(Duration::from_secs(1));
    let options = ConsulOptions { token_file: Some(token_file.clone()), wait, ..options(vec![server.url()]) };
    let mut seen = Follower::synced(adapter(options)).await;
    let host = "web.service.consul";
    assert_eq!(seen.serving(host), ["10.0.0.1"]);

    // With a narrower policy Consul returns fewer entries, and no error.
    let id = policy["ID"].as_str().unwrap();
    let narrow = json!({"ID": id, "Name": "mesh", "Rules": r#"node_prefix "" { policy = "read" }"#});
    server.put(&format!("/v1/acl/policy/{id}"), narrow).await;
    server.register(NODE, &service(&Instance::new("web", 2)), "passing").await;
    seen.until_state("a stale source", |r| matches!(r.state, SourceState::Stale { .. })).await;
    let wide = json!({"ID": id, "Name": "mesh", "Rules": readable});
    server.put(&format!("/v1/acl/policy/{id}"), wide).await;
    seen.until("the instance registered in between", |f| f.serving(host).len() == 2).await;

    // A revoked token is an error; a new one in the file is used without a restart.
    server.call(Method::DELETE, &format!("/v1/acl/token/{accessor}"), None).await.unwrap();
    server.register(NODE, &service(&Instance::new("web", 3)), "passing").await;
    seen.until_state("a stale source", |r| matches!(r.state, SourceState::Stale { .. })).await;
    new_token(&second).await;
    std::fs::write(&token_file, &second).unwrap();
    seen.until("the instance registered in between", |f| f.serving(host).len() == 3).await;
    println!("a policy narrowed and a token revoked: {} endpoints lost", seen.lost);
    assert_eq!(seen.lost, 0);
}
