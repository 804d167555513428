//! The built-in templates. Each renders a partial pod that is merged over the workload's. A custom template of the same
//! name replaces a built-in one.

mod gateway;
mod grpc;
mod input;
mod parts;
mod sidecar;

use crate::pod::JsonMap;

pub(crate) use input::{PROXY_ID, RenderInput};
pub(crate) use parts::{append_multus_network, exclude_inbound_port, otel_resource_attributes, without_nulls};

/// Names of the built-in templates.
pub(crate) const NAMES: &[&str] = &["sidecar", "gateway", "grpc-agent", "grpc-simple"];

/// The partial pod of a built-in template; `None` if there is none of that name.
pub(crate) fn render(name: &str, input: &RenderInput<'_>) -> Option<JsonMap> {
    let rendered = match name {
        "sidecar" => sidecar::render(input),
        "gateway" => gateway::render(input),
        "grpc-agent" => grpc::agent(input),
        "grpc-simple" => grpc::simple(input),
        _ => return None,
    };
    match rendered {
        serde_json::Value::Object(map) => Some(map),
        _ => None,
    }
}
