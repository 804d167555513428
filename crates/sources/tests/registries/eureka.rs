//! A real Eureka server.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde_json::json;
use sources::registry::eureka::{EurekaOptions, EurekaRegistry};
use sources::registry::shared_options::GoDuration;
use sources::source::Source;
use testkit::eureka::{self, Eureka};
use testkit::servers;

use crate::conformance::{Edit, Instance, RegistryServer, conforms, place};
use crate::follower::Follower;

pub(crate) fn options(addresses: Vec<String>) -> EurekaOptions {
    let period = |millis| GoDuration(Duration::from_millis(millis));
    EurekaOptions { addresses, interval: period(200), recheck: period(2000), ..EurekaOptions::default() }
}

pub(crate) fn adapter(options: EurekaOptions) -> EurekaRegistry {
    EurekaRegistry::new(options, place("Eureka"))
}

struct RealEureka {
    server: Eureka,
    /// Instances that their clients would register again after a restart.
    registered: BTreeMap<String, Instance>,
}

fn registration(instance: &Instance) -> eureka::Instance {
    let Instance { service, id, address } = instance.clone();
    let metadata = json!({"istio.protocol": "http"});
    eureka::Instance { app: service, id, address, port: 8080, status: "UP".to_owned(), metadata }
}

impl RealEureka {
    async fn register(&self, instances: &[Instance]) {
        let all = stream::iter(instances).map(|i| async { self.server.register(&registration(i)).await });
        all.buffer_unordered(8).collect::<Vec<()>>().await;
        // Polling a list of thousands would dominate the load.
        if let Some(instance) = instances.last().filter(|_| instances.len() <= 10) {
            self.server.lists(&instance.id).await;
        }
    }
}

impl RegistryServer for RealEureka {
    fn source(&self) -> impl Source {
        adapter(options(vec![self.server.url()]))
    }

    fn described(&self, namespace: &str) -> Option<String> {
        let url = self.server.url();
        Some(format!("eureka: {{addresses: ['{url}'], namespace: {namespace}, interval: 200ms}}"))
    }

    fn host(&self, service: &str) -> String {
        format!("{service}.eureka")
    }

    async fn edit(&mut self, edit: Edit<'_>) {
        match edit {
            Edit::Add(instances) => {
                self.register(instances).await;
                self.registered.extend(instances.iter().map(|i| (i.id.clone(), i.clone())));
            }
            Edit::Serving(instance, serves) => {
                let status = if serves { "UP" } else { "OUT_OF_SERVICE" };
                self.server.set_status(&instance.service, &instance.id, status).await;
            }
            Edit::Remove(instance) => {
                self.server.deregister(&instance.service, &instance.id).await;
                self.registered.remove(&instance.id);
            }
        }
    }

    async fn stop(&mut self) {
        self.server.kill();
    }

    async fn start_again(&mut self) {
        self.server.restart().await;
        let all: Vec<Instance> = self.registered.values().cloned().collect();
        self.register(&all).await;
    }
}

/// One server for all checks: it takes 15 s to start.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_conforms_under_every_layout_of_its_paths() {
    if servers::without("eureka.jar") {
        return;
    }
    let mut stage = RealEureka { server: Eureka::start().await, registered: BTreeMap::new() };
    stage.edit(Edit::Add(&[Instance::new("layout", 1)])).await;
    let server = format!("http://{}", stage.server.address());
    for layout in ["", "/", "/eureka", "/eureka/", "/eureka/v2"] {
        let seen = Follower::synced(adapter(options(vec![format!("{server}{layout}")]))).await;
        assert_eq!(seen.serving("layout.eureka"), ["10.0.0.1"], "{layout}");
    }
    stage.edit(Edit::Remove(&Instance::new("layout", 1))).await;
    conforms(&mut stage).await;
}
