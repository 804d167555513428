//! Responses of registries and config servers.

use prost::Message;
use sources::registry::cloudfoundry::schema::{InternalRoutesResponse, RoutesResponse};
use sources::registry::cloudfoundry::{self, CloudFoundryOptions};
use sources::registry::consul::{self, ConsulOptions};
use sources::registry::eureka::{self, EurekaOptions};
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
