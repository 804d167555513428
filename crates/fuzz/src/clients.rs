//! What proxies and workloads send: their node, xDS requests of both protocols, DNS queries.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use agent::dns::{self, ClientDomain, DnsTable};
use api::envoy::config::core::v3::Node;
use api::nds::{NameInfo, NameTable};
use api::{Resource, TypeUrl};
use prost::Message;
use xds::{Client, Event, ResourceSet, replay_delta, replay_sotw};

use crate::configuration::{self, RENDERED};
use crate::input::messages;

/// A node: all its resources in a small mesh.
pub(crate) fn node(data: &[u8]) {
    let Ok(node) = Node::decode(data) else { return };
    for kind in RENDERED {
        let _ = configuration::MESH.resources(&node, &kind, &[]);
    }
}

/// A client with two worlds, which take turns.
struct TwoWorlds {
    worlds: [BTreeMap<TypeUrl, Arc<ResourceSet>>; 2],
    current: usize,
}

impl TwoWorlds {
    fn new() -> TwoWorlds {
        let set = |kind: &TypeUrl, names: &[&str], content: &str| {
            let resources = names.iter().map(|name| Resource::encoded(*name, content.as_bytes().to_vec()));
            (kind.clone(), Arc::new(ResourceSet::new(kind.clone(), resources)))
        };
        let kinds = [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER, TypeUrl::ROUTE, TypeUrl::SECRET];
        let world = |names: &[&str], content| kinds.iter().map(|kind| set(kind, names, content)).collect();
        TwoWorlds { worlds: [world(&["a", "b", "c"], "1"), world(&["b", "c", "d"], "2")], current: 0 }
    }
}

impl Client for TwoWorlds {
    async fn changed(&mut self) {
        std::future::pending().await
    }

    fn adopt(&mut self) {
        self.current = 1 - self.current;
    }

    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        self.worlds[self.current].get(kind).cloned()
    }

    fn observe(&mut self, _: &Event<'_>) {}
}

/// State-of-the-world requests of one stream.
pub(crate) fn discovery_request(data: &[u8]) {
    let _ = replay_sotw(TwoWorlds::new(), messages(data));
}

/// Delta requests of one stream.
pub(crate) fn delta_discovery_request(data: &[u8]) {
    let _ = replay_delta(TwoWorlds::new(), messages(data));
}

static NAMES: LazyLock<DnsTable> = LazyLock::new(|| {
    let info = |ips: &[&str]| NameInfo { ips: ips.iter().map(|ip| (*ip).to_owned()).collect(), ..NameInfo::default() };
    let many: Vec<String> = (0..200).map(|n| format!("10.0.0.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let table = [("a.com", info(&["1.2.3.4", "::1"])), ("*.b.com", info(&["1.2.3.5"])), ("many.com", info(&many))];
    let names = NameTable { table: table.into_iter().map(|(name, info)| (name.to_owned(), info)).collect() };
    DnsTable::new(&names, &ClientDomain::new("shop", "", Some("shop.svc.cluster.local")))
});

/// A DNS query.
pub(crate) fn dns(data: &[u8]) {
    for table in [None, Some(&*NAMES)] {
        if let Some(reply) = dns::answer(data, table) {
            assert_eq!(reply.get(..2), data.get(..2), "the id of the query");
            assert!(reply.len() <= usize::from(u16::MAX));
        }
    }
}
