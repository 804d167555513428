//! Encoded resources of a response, shared by all streams that send the same resources.

use std::sync::Arc;

use api::{Body, Resource, TypeUrl};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};

/// The variant of the protocol that a stream uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Sotw,
    Delta,
}

/// Resources of at least this size are sent without a copy; smaller ones are joined into one chunk.
pub(crate) const LARGE: usize = 8 * 1024;

/// The `resources` field of a response, encoded, in pieces that streams share.
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    pub(crate) chunks: Arc<[Bytes]>,
}

impl Payload {
    pub(crate) fn of<'a>(
        content: &TypeUrl,
        resources: impl IntoIterator<Item = &'a Resource>,
        protocol: Protocol,
    ) -> Self {
        let mut writer = Writer { content: message_type(content), protocol, chunks: Vec::new(), open: BytesMut::new() };
        resources.into_iter().for_each(|resource| writer.resource(resource));
        writer.cut();
        Self { chunks: writer.chunks.into() }
    }

    /// Payloads one after the other; repeated fields of a message may be concatenated.
    pub(crate) fn joined(payloads: impl IntoIterator<Item = Self>) -> Self {
        let mut payloads = payloads.into_iter();
        let first = payloads.next().unwrap_or(Self { chunks: Arc::new([]) });
        payloads.fold(first, |all, more| all.followed_by(&more))
    }

    /// This payload followed by another; repeated fields of a message may be concatenated.
    pub(crate) fn followed_by(&self, more: &Self) -> Self {
        if more.chunks.is_empty() {
            return self.clone();
        }
        Self { chunks: self.chunks.iter().chain(more.chunks.iter()).cloned().collect() }
    }
}

/// The type URL of the messages. Only for debug types it differs from the requested type.
fn message_type(kind: &TypeUrl) -> &str {
    match kind {
        kind if *kind == TypeUrl::DEBUG_SYNCZ => "type.googleapis.com/envoy.service.status.v3.ClientConfig",
        kind if *kind == TypeUrl::DEBUG_CONFIG_DUMP => CONFIG_DUMP,
        kind => kind.as_str(),
    }
}

const CONFIG_DUMP: &str = "type.googleapis.com/envoy.admin.v3.ConfigDump";

/// The sections of an `envoy.admin.v3.ConfigDump`, each an encoded `Any`.
#[derive(Clone, PartialEq, Message)]
struct DumpSections {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    configs: Vec<Bytes>,
}

/// Writes `repeated Any resources = 2` (SotW) or `repeated Resource resources = 2` (delta).
struct Writer<'a> {
    content: &'a str,
    protocol: Protocol,
    chunks: Vec<Bytes>,
    open: BytesMut,
}

impl Writer<'_> {
    fn resource(&mut self, resource: &Resource) {
        if self.content == CONFIG_DUMP && self.protocol == Protocol::Sotw {
            return self.sections(&resource.body);
        }
        let any = field_len(self.content.len()) + field_len(resource.body.len());
        match self.protocol {
            Protocol::Sotw => self.header(2, any),
            Protocol::Delta => {
                let version = resource.version.to_string();
                self.header(2, field_len(version.len()) + field_len(any) + field_len(resource.name.len()));
                self.field(1, version.as_bytes());
                self.field(3, resource.name.as_bytes());
                self.header(2, any);
            }
        }
        self.field(1, self.content.as_bytes());
        self.header(2, resource.body.len());
        self.body(&resource.body);
    }

    /// The sections of a dump as separate resources, as upstream sends them and istioctl reads them.
    fn sections(&mut self, dump: &Body) {
        for section in DumpSections::decode(dump.joined()).unwrap_or_default().configs {
            self.header(2, section.len());
            self.body(&section.into());
        }
    }

    fn body(&mut self, body: &Body) {
        if body.len() < LARGE {
            body.pieces().iter().for_each(|piece| self.open.put_slice(piece));
        } else {
            self.cut();
            self.chunks.extend_from_slice(body.pieces());
        }
    }

    fn field(&mut self, number: u8, bytes: &[u8]) {
        self.header(number, bytes.len());
        self.open.put_slice(bytes);
    }

    /// Key of a length-delimited field. All field numbers used here fit the short form.
    fn header(&mut self, number: u8, len: usize) {
        self.open.put_u8(number << 3 | 2);
        encode_varint(len as u64, &mut self.open);
    }

    fn cut(&mut self) {
        if !self.open.is_empty() {
            self.chunks.push(self.open.split().freeze());
        }
    }
}

fn field_len(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
}
