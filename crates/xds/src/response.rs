//! Turns a plan into a message of either protocol, if there is anything to send.
//! Resource bytes are shared and come from `set`; only a short head belongs to the stream.

use std::sync::Arc;

use api::envoy::config::core::v3::ControlPlane;
use api::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};
use api::{Resource, TypeUrl, Version};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::payload::{Payload, Protocol};
use crate::set::ResourceSet;
use crate::watch::{Plan, Watch};

/// One encoded message, ready for the transport.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) version: Version,
    pub(crate) resources: usize,
    pub(crate) removed: usize,
    /// A gRPC message with its prefix; most pieces are shared with other streams.
    pub(crate) chunks: Vec<Bytes>,
}

/// Fields of a response that belong to the stream.
pub(crate) struct Head<'a> {
    pub(crate) nonce: &'a str,
    /// Who sends it, if the response says so.
    pub(crate) identifier: Option<&'a str>,
}

impl Head<'_> {
    fn control_plane(&self) -> Option<ControlPlane> {
        self.identifier.map(|identifier| ControlPlane { identifier: identifier.to_owned() })
    }
}

/// Types whose SotW responses list every resource, so that omitting one removes it. Responses of the other types
/// may contain any part; they cannot express a removal, so the resource that refers to it is removed instead.
pub(crate) fn lists_everything(kind: &TypeUrl) -> bool {
    ![TypeUrl::ENDPOINT, TypeUrl::ROUTE, TypeUrl::SECRET, TypeUrl::EXTENSION].contains(kind)
}

/// Whether a plan requires a message.
pub(crate) fn is_news(protocol: Protocol, watch: &Watch, plan: &Plan, target: &ResourceSet) -> bool {
    let changed = plan.everything || !plan.changed.is_empty();
    match protocol {
        Protocol::Sotw if lists_everything(&watch.kind) => watch.owed || changed || !plan.removed.is_empty(),
        Protocol::Sotw => plan.resource_count(target) > 0,
        Protocol::Delta => watch.owed || plan.resource_count(target) > 0 || gone(watch, plan).next().is_some(),
    }
}

/// The message for a plan.
pub(crate) fn response(
    protocol: Protocol,
    watch: &Watch,
    plan: &Plan,
    target: &ResourceSet,
    head: &Head<'_>,
) -> Response {
    match protocol {
        Protocol::Sotw if lists_everything(&watch.kind) => listing(watch, plan, target, head),
        Protocol::Sotw => {
            let payload = plan.payload(target, Protocol::Sotw);
            sotw(watch, target.version(), &payload, plan.resource_count(target), head)
        }
        Protocol::Delta => delta(watch, plan, target, head),
    }
}

/// SotW: everything the client subscribes to, and removed resources that are still in use.
fn listing(watch: &Watch, plan: &Plan, target: &ResourceSet, head: &Head<'_>) -> Response {
    let lingering = plan.lingering();
    let (payload, resources) = whole(watch, target);
    let payload = payload.followed_by(&Payload::of(target.content(), &lingering, Protocol::Sotw));
    sotw(watch, version_with(target, &lingering), &payload, resources + lingering.len(), head)
}

fn sotw(watch: &Watch, version: Version, payload: &Payload, resources: usize, head: &Head<'_>) -> Response {
    let own = DiscoveryResponse {
        version_info: version.to_string(),
        type_url: watch.kind.to_string(),
        nonce: head.nonce.to_owned(),
        control_plane: head.control_plane(),
        ..DiscoveryResponse::default()
    };
    Response { version, resources, removed: 0, chunks: framed(&own, payload) }
}

fn delta(watch: &Watch, plan: &Plan, target: &ResourceSet, head: &Head<'_>) -> Response {
    let removed: Vec<String> = gone(watch, plan).map(|name| name.to_string()).collect();
    let (version, removals) = (target.version(), removed.len());
    let own = DeltaDiscoveryResponse {
        system_version_info: version.to_string(),
        type_url: watch.kind.to_string(),
        nonce: head.nonce.to_owned(),
        removed_resources: removed,
        control_plane: head.control_plane(),
        ..DeltaDiscoveryResponse::default()
    };
    let chunks = framed(&own, &plan.payload(target, Protocol::Delta));
    Response { version, resources: plan.resource_count(target), removed: removals, chunks }
}

/// Names that a delta client is sent as removed. Never extensions: Envoy would drop their configuration at once,
/// while it must exist as long as its last user.
fn gone<'a>(watch: &Watch, plan: &'a Plan) -> impl Iterator<Item = &'a Arc<str>> {
    let is_sent = watch.kind != TypeUrl::EXTENSION;
    plan.removed.iter().chain(&plan.absent).filter(move |_| is_sent)
}

/// Everything the client subscribes to.
fn whole(watch: &Watch, target: &ResourceSet) -> (Payload, usize) {
    let names = &watch.subscription.names;
    if watch.subscription.wildcard {
        let unlisted = names.iter().filter(|name| target.listed(name).is_none());
        let unlisted: Vec<_> = unlisted.filter_map(|name| target.get(name)).collect();
        let more = Payload::of(target.content(), &unlisted, Protocol::Sotw);
        return (target.whole(Protocol::Sotw).followed_by(&more), target.len() + unlisted.len());
    }
    let named: Vec<_> = names.iter().filter_map(|name| target.get(name)).collect();
    (Payload::of(target.content(), &named, Protocol::Sotw), named.len())
}

/// The version of a listing, including removed resources that are still in it.
fn version_with(target: &ResourceSet, lingering: &[Resource]) -> Version {
    if lingering.is_empty() {
        return target.version();
    }
    let mut text = target.version().to_bytes().to_vec();
    for resource in lingering {
        text.extend_from_slice(resource.name.as_bytes());
        text.extend_from_slice(&resource.version.to_bytes());
    }
    Version::of(&text)
}

/// A gRPC message: prefix and the stream's fields first, shared bytes after. Protobuf allows any order of fields.
fn framed(own: &impl Message, payload: &Payload) -> Vec<Bytes> {
    const SMALL: usize = 4096;
    let shared: usize = payload.chunks.iter().map(Bytes::len).sum();
    let len = own.encoded_len();
    let joined = shared <= SMALL;
    let mut first = BytesMut::with_capacity(5 + len + if joined { shared } else { 0 });
    first.put_u8(0);
    first.put_u32(u32::try_from(len + shared).unwrap_or(u32::MAX));
    own.encode_raw(&mut first);
    if joined {
        payload.chunks.iter().for_each(|chunk| first.put_slice(chunk));
        return vec![first.freeze()];
    }
    std::iter::once(first.freeze()).chain(payload.chunks.iter().cloned()).collect()
}
