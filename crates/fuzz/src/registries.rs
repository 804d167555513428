//! Responses of registries and config servers.

use bytes::Bytes;
use prost::Message;
use sources::registry::cloudfoundry::schema::{InternalRoutesResponse, RoutesResponse};
use sources::registry::cloudfoundry::{self, CloudFoundryOptions};
use sources::registry::consul::{self, ConsulOptions};
use sources::registry::etcd::{self, EtcdLayout, EtcdRegistryOptions};
use sources::registry::eureka::{self, EurekaOptions};
use sources::registry::zookeeper::{self, ZooKeeperLayout, ZooKeeperOptions};
use sources::store::mcp::schema::Resources;
use sources::store::mcp::{McpOptions, McpSink};

use crate::input::messages;

/// Instances of a Consul service.
pub(crate) fn consul(data: &[u8]) {
    let _ = consul::published_service("cart", data, &ConsulOptions::default());
}

/// Applications of Eureka.
pub(crate) fn eureka(data: &[u8]) {
    let _ = eureka::published_services(data, &EurekaOptions::default());
}

/// The layouts of etcd, by the first byte of an input.
const ETCD_LAYOUTS: [EtcdLayout; 5] =
    [EtcdLayout::SkyDns, EtcdLayout::GoMicro, EtcdLayout::Kratos, EtcdLayout::Grpc, EtcdLayout::Dubbo];

/// Keys and values of etcd, in one of its layouts.
pub(crate) fn etcd(data: &[u8]) {
    let Some((layout, rest)) = data.split_first() else { return };
    let layout = ETCD_LAYOUTS[usize::from(*layout) % ETCD_LAYOUTS.len()];
    let messages = messages(rest);
    let pairs: Vec<(String, &Bytes)> =
        messages.chunks_exact(2).map(|pair| (String::from_utf8_lossy(&pair[0]).into_owned(), &pair[1])).collect();
    let entries = pairs.iter().map(|(key, value)| (key.as_str(), &value[..]));
    let _ = etcd::published_services(entries, &EtcdRegistryOptions { layout, ..EtcdRegistryOptions::default() });
}

/// Frames of a ZooKeeper server, without their lengths, in one of the layouts.
pub(crate) fn zookeeper(data: &[u8]) {
    let Some((layout, rest)) = data.split_first() else { return };
    let layout = if layout % 2 == 0 { ZooKeeperLayout::Curator } else { ZooKeeperLayout::Dubbo };
    let _ = zookeeper::published_services(messages(rest), &ZooKeeperOptions { layout, ..ZooKeeperOptions::default() });
}

/// Routes and internal routes of Copilot.
pub(crate) fn copilot(data: &[u8]) {
    let mut messages = messages(data).into_iter();
    let (routes, internal) = (messages.next().unwrap_or_default(), messages.next().unwrap_or_default());
    let (Ok(routes), Ok(internal)) = (RoutesResponse::decode(routes), InternalRoutesResponse::decode(internal)) else {
        return;
    };
    let _ = cloudfoundry::published_services(routes, internal, &CloudFoundryOptions::default());
}

/// Responses of one MCP stream.
pub(crate) fn mcp(data: &[u8]) {
    let options = McpOptions { address: "a:1".to_owned(), incremental: true, tls: None, node: "fuzz".to_owned() };
    let mut sink = McpSink::new(options);
    for response in messages(data).into_iter().filter_map(|message| Resources::decode(message).ok()) {
        let _ = sink.apply(&response);
    }
}
