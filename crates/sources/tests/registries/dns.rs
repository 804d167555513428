//! DNS against a small server of these tests: an instance is an address record.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use hickory_proto::rr::RecordType;
use model::change::SourceId;
use model::names::ClusterId;
use sources::registry::config::{Adapter, RegistryConfig};
use sources::registry::diff::MassLossGuard;
use sources::registry::dns::DnsRegistry;
use sources::source::Source;

use crate::conformance::{Edit, Emptied, Instances, Stage, conforms};
use crate::name_server::{NameServer, address};

struct Zone {
    server: NameServer,
    address: SocketAddr,
    instances: Instances,
}

impl Zone {
    /// Records do not tell who is ill: what does not serve has none.
    fn write(&self) {
        let mut records: BTreeMap<(String, RecordType), Vec<_>> = BTreeMap::new();
        for (instance, _) in self.instances.all().filter(|(_, serves)| *serves) {
            let name = format!("{}.zone.", instance.service);
            records.entry((name, RecordType::A)).or_default().push(address(&instance.address));
        }
        self.server.edit(|zone| zone.records = records);
    }

    /// The registry as a file describes it.
    fn text(&self, namespace: &str) -> String {
        let names = ["web".to_owned(), "other".to_owned()].into_iter().chain((0..20).map(|n| format!("many-{n}")));
        let services: Vec<String> = names.map(|name| format!("{{host: {name}.zone, port: 8080}}")).collect();
        format!(
            "dns: {{servers: ['{}'], namespace: {namespace}, shortest: 20ms, longest: 20ms, services: [{}]}}",
            self.address,
            services.join(", ")
        )
    }
}

impl Stage for Zone {
    fn source(&self) -> impl Source {
        let text = format!("registries:\n- {}\n", self.text("default"));
        let Adapter::Dns(options) = RegistryConfig::parse(&text).unwrap().registries[0].adapter().unwrap() else {
            panic!("{text}")
        };
        DnsRegistry::new(SourceId("DNS".into()), options, ClusterId::from("c1"), MassLossGuard::default())
    }

    fn described(&self, namespace: &str) -> Option<String> {
        Some(self.text(namespace))
    }

    fn host(&self, service: &str) -> String {
        format!("{service}.zone")
    }

    async fn edit(&mut self, edit: Edit<'_>) {
        self.instances.take(edit);
        self.write();
    }

    async fn stop(&mut self) {
        self.server.stop();
    }

    async fn start_again(&mut self) {
        self.server.start_at(self.address).await;
    }

    fn emptied(&self) -> Emptied {
        Emptied::Empty
    }

    fn held(&self) -> (usize, usize) {
        (22, 10_001)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_conform() {
    let server = NameServer::default();
    let address = server.start().await;
    conforms(&mut Zone { server, address, instances: Instances::default() }).await;
}
