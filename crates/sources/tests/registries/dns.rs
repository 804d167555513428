//! The DNS registry with a DNS server of these tests. An instance is an address record.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use hickory_proto::rr::RecordType;
use sources::registry::dns::{DnsOptions, DnsRegistry};
use sources::source::Source;

use crate::conformance::{Edit, Instances, RegistryServer, WithoutInstances, conforms, place};
use crate::name_server::{NameServer, address};

struct Zone {
    server: NameServer,
    address: SocketAddr,
    instances: Instances,
}

impl Zone {
    /// Publishes the records. DNS has no health, so unhealthy instances have no record.
    fn write(&self) {
        let mut records: BTreeMap<(String, RecordType), Vec<_>> = BTreeMap::new();
        for (instance, _) in self.instances.all().filter(|(_, serves)| *serves) {
            let name = format!("{}.zone.", instance.service);
            records.entry((name, RecordType::A)).or_default().push(address(&instance.address));
        }
        self.server.edit(|zone| zone.records = records);
    }

    /// The options of the registry.
    fn text(&self, namespace: &str) -> String {
        let names = ["web".to_owned(), "other".to_owned()].into_iter().chain((0..20).map(|n| format!("many-{n}")));
        let services: Vec<String> = names.map(|name| format!("{{host: {name}.zone, port: 8080}}")).collect();
        format!(
            "{{servers: ['{}'], namespace: {namespace}, shortest: 20ms, longest: 20ms, services: [{}]}}",
            self.address,
            services.join(", ")
        )
    }
}

impl RegistryServer for Zone {
    fn source(&self) -> impl Source {
        let options: DnsOptions = serde_saphyr::from_str(&self.text("default")).unwrap();
        DnsRegistry::new(options, place("DNS"))
    }

    fn described(&self, namespace: &str) -> Option<String> {
        Some(format!("dns: {}", self.text(namespace)))
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

    fn without_instances(&self) -> WithoutInstances {
        WithoutInstances::Empty
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
