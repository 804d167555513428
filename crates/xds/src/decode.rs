//! Decodes requests within limits: a field that is too large or repeated too often is refused before it is stored.
//! Two bytes on the wire can become two dozen bytes in memory, as an empty `String` does.

use api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use api::wire::google::rpc;
use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};
use tonic::Status;

use crate::encoded::{bad, content};
use crate::held::HeldVersions;
use crate::limits::Limits;

/// The kinds of the fields of a request message, by field number.
pub(crate) trait Fields: Default {
    type Message: Message;
    fn field(tag: u32) -> Field;
    fn message(&mut self) -> &mut Self::Message;
    fn set_error(&mut self, error: rpc::Status);
    /// Adds a name with the version that the client holds.
    fn add_held(&mut self, entry: Bytes) -> Result<(), Status>;
}

/// A delta request. Its `initial_resource_versions` are in `held`, not in the message.
#[derive(Debug, Default)]
pub(crate) struct DeltaRequest {
    pub(crate) message: DeltaDiscoveryRequest,
    pub(crate) held: HeldVersions,
}

/// The kind of a field, as far as limits differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Node,
    Type,
    Name,
    /// A resource name with the version that the client holds.
    Held,
    /// A nonce or a version.
    Text,
    Error,
    /// A field that is skipped.
    Other,
}

impl Fields for DiscoveryRequest {
    type Message = Self;

    fn message(&mut self) -> &mut Self {
        self
    }

    fn add_held(&mut self, _: Bytes) -> Result<(), Status> {
        // This protocol has no such field.
        Ok(())
    }

    fn field(tag: u32) -> Field {
        match tag {
            1 | 5 => Field::Text,
            2 => Field::Node,
            3 => Field::Name,
            4 => Field::Type,
            6 => Field::Error,
            _ => Field::Other,
        }
    }

    fn set_error(&mut self, error: rpc::Status) {
        self.error_detail = Some(error);
    }
}

impl Fields for DeltaRequest {
    type Message = DeltaDiscoveryRequest;

    fn message(&mut self) -> &mut DeltaDiscoveryRequest {
        &mut self.message
    }

    fn add_held(&mut self, entry: Bytes) -> Result<(), Status> {
        self.held.add(entry)
    }

    fn field(tag: u32) -> Field {
        match tag {
            1 => Field::Node,
            2 => Field::Type,
            3 | 4 => Field::Name,
            5 => Field::Held,
            6 => Field::Text,
            7 => Field::Error,
            _ => Field::Other,
        }
    }

    fn set_error(&mut self, error: rpc::Status) {
        self.message.error_detail = Some(error);
    }
}

/// The type and the nonce of a delta request that has nothing else. Most requests are such acknowledgements; this reads
/// them without an allocation.
pub(crate) fn acknowledgement(mut rest: &[u8]) -> Option<(&str, &str)> {
    let (mut kind, mut nonce) = ("", "");
    while !rest.is_empty() {
        let (tag, wire) = decode_key(&mut rest).ok()?;
        let field = match (DeltaRequest::field(tag), wire) {
            (Field::Type, WireType::LengthDelimited) => &mut kind,
            (Field::Text, WireType::LengthDelimited) => &mut nonce,
            _ => return None,
        };
        *field = std::str::from_utf8(content(&mut rest).ok()?).ok()?;
    }
    (!nonce.is_empty()).then_some((kind, nonce))
}

/// Decodes a request. Empty resource names are dropped.
pub(crate) fn decode<R: Fields>(message: &Bytes, limits: &Limits) -> Result<R, Status> {
    let (mut request, mut rest, mut counted) = (R::default(), &**message, Counted::default());
    while !rest.is_empty() {
        let whole = rest;
        let (tag, wire) = decode_key(&mut rest).map_err(bad)?;
        let field = R::field(tag);
        if wire != WireType::LengthDelimited || field == Field::Other {
            // Unknown fields are skipped, and so are known ones with a wrong wire type.
            skip_field(wire, tag, &mut rest, DecodeContext::default()).map_err(bad)?;
            continue;
        }
        let content = content(&mut rest)?;
        counted.check(field, content.len(), limits)?;
        match field {
            Field::Error => request.set_error(rejection(content, limits).map_err(bad)?),
            Field::Name | Field::Held if content.is_empty() => {}
            Field::Held => request.add_held(message.slice_ref(content))?,
            _ => request.message().merge(&whole[..whole.len() - rest.len()]).map_err(bad)?,
        }
    }
    Ok(request)
}

/// Sizes and counts of the fields of one request that were read so far.
#[derive(Default)]
struct Counted {
    names: usize,
    node_bytes: usize,
}

impl Counted {
    fn check(&mut self, field: Field, bytes: usize, limits: &Limits) -> Result<(), Status> {
        match field {
            Field::Node => {
                self.node_bytes += bytes;
                within("node", self.node_bytes, limits.metadata_bytes + limits.node_bytes)
            }
            Field::Type if bytes > limits.type_bytes => {
                let most = limits.type_bytes;
                Err(Status::invalid_argument(format!("type of {bytes} bytes, at most {most}")))
            }
            Field::Text => within("nonce or version", bytes, limits.name_bytes),
            Field::Name | Field::Held => {
                self.names += 1;
                if self.names > limits.request_names {
                    let most = limits.request_names;
                    return Err(Status::resource_exhausted(format!("more than {most} resource names in a request")));
                }
                // A map entry also has a version, and two keys and lengths.
                within("resource name", bytes, limits.name_bytes + VERSION_BYTES)
            }
            Field::Type | Field::Error | Field::Other => Ok(()),
        }
    }
}

/// More than any of our versions, with the framing of a map entry.
const VERSION_BYTES: usize = 256;

fn within(what: &str, bytes: usize, most: usize) -> Result<(), Status> {
    if bytes > most {
        return Err(Status::resource_exhausted(format!("{what} of {bytes} bytes, at most {most}")));
    }
    Ok(())
}

/// Code and message of a rejection. A long message is cut.
fn rejection(mut rest: &[u8], limits: &Limits) -> Result<rpc::Status, DecodeError> {
    let mut status = rpc::Status::default();
    while rest.has_remaining() {
        let whole = rest;
        let (tag, wire) = decode_key(&mut rest)?;
        skip_field(wire, tag, &mut rest, DecodeContext::default())?;
        let mut field = &whole[..whole.len() - rest.len()];
        match (tag, wire) {
            (1, WireType::Varint) => status.merge(field)?,
            (2, WireType::LengthDelimited) => {
                decode_key(&mut field)?;
                decode_varint(&mut field)?;
                status.message = String::from_utf8_lossy(&field[..field.len().min(limits.message_bytes)]).into_owned();
            }
            _ => {}
        }
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tonic::Code;

    use super::{DeltaDiscoveryRequest, DeltaRequest, DiscoveryRequest, Limits, Message, acknowledgement, decode, rpc};

    #[test]
    fn acknowledgements_have_a_type_and_a_nonce_and_nothing_else() {
        let (type_url, response_nonce) = ("type".to_owned(), "7".to_owned());
        let plain = DeltaDiscoveryRequest { type_url, response_nonce, ..DeltaDiscoveryRequest::default() };
        assert_eq!(acknowledgement(&plain.encode_to_vec()), Some(("type", "7")));
        let names = vec!["a".to_owned()];
        let more = DeltaDiscoveryRequest { resource_names_subscribe: names.clone(), ..plain.clone() };
        let less = DeltaDiscoveryRequest { resource_names_unsubscribe: names, ..plain.clone() };
        let refused = DeltaDiscoveryRequest { error_detail: Some(rpc::Status::default()), ..plain.clone() };
        let first = DeltaDiscoveryRequest { response_nonce: String::new(), ..plain };
        for other in [more, less, refused, first] {
            assert_eq!(acknowledgement(&other.encode_to_vec()), None, "{other:?}");
        }
        assert_eq!(acknowledgement(b"\x12\x05a"), None, "cut off");
    }

    #[test]
    fn ordinary_requests_are_read_as_they_are() {
        let error_detail = Some(rpc::Status { code: 13, message: "no".to_owned(), details: Vec::new() });
        let node = Some(api::envoy::config::core::v3::Node { id: "sidecar".to_owned(), ..Default::default() });
        let sotw = DiscoveryRequest {
            version_info: "1".to_owned(),
            node: node.clone(),
            resource_names: vec!["a".to_owned(), "b".to_owned()],
            type_url: "t".to_owned(),
            response_nonce: "n".to_owned(),
            error_detail: error_detail.clone(),
            ..Default::default()
        };
        assert_eq!(decode::<DiscoveryRequest>(&sotw.encode_to_vec().into(), &Limits::default()).unwrap(), sotw);
        let delta = DeltaDiscoveryRequest {
            node,
            type_url: "t".to_owned(),
            resource_names_subscribe: vec!["a".to_owned()],
            resource_names_unsubscribe: vec!["b".to_owned()],
            initial_resource_versions: [("c".to_owned(), "1".to_owned())].into(),
            response_nonce: "n".to_owned(),
            error_detail,
            ..Default::default()
        };
        let read = decode::<DeltaRequest>(&delta.encode_to_vec().into(), &Limits::default()).unwrap();
        assert_eq!(read.held.iter().collect::<Vec<_>>(), [("c", "1")]);
        assert_eq!(read.message, DeltaDiscoveryRequest { initial_resource_versions: Default::default(), ..delta });
    }

    #[test]
    fn hole_05_empty_names_and_endless_lists_cost_nothing() {
        let delta = |subscribe: usize, unsubscribe: usize| {
            let names = (0..subscribe).map(|i| format!("outbound|80||s{i}")).collect();
            DeltaDiscoveryRequest {
                resource_names_subscribe: names,
                resource_names_unsubscribe: vec![String::new(); unsubscribe],
                ..Default::default()
            }
        };
        let limits = Limits::default();
        let begun = Instant::now();
        let status = decode::<DeltaRequest>(&delta(49_000, 1_900_000).encode_to_vec().into(), &limits).unwrap_err();
        eprintln!("1,949,000 names refused in {:?}", begun.elapsed());
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(begun.elapsed() < Duration::from_secs(20));
        let read = decode::<DeltaRequest>(&delta(2, 10).encode_to_vec().into(), &limits).unwrap().message;
        assert_eq!((read.resource_names_subscribe.len(), read.resource_names_unsubscribe.len()), (2, 0));
    }

    #[test]
    fn hole_05_message_of_a_nack_is_cut_when_it_is_read() {
        let limits = Limits { message_bytes: 10, ..Limits::default() };
        let check = |message: &str, expected: &str| {
            let details = vec![api::Any::default(); 1000];
            let error_detail = Some(rpc::Status { code: 3, message: message.to_owned(), details });
            let request = DiscoveryRequest { error_detail, ..Default::default() };
            let read =
                decode::<DiscoveryRequest>(&request.encode_to_vec().into(), &limits).unwrap().error_detail.unwrap();
            assert_eq!((read.code, &*read.message, read.details.len()), (3, expected, 0));
        };
        check("short", "short");
        check("exactly 10", "exactly 10");
        check("more than that", "more than ");
        check(&"ä".repeat(2 << 20), "äääää");
        check("123456789ä and more", "123456789\u{fffd}");
    }

    #[test]
    fn hole_05_each_field_is_bounded_before_it_is_built() {
        let check = |request: DiscoveryRequest, expected: Code| {
            let read = decode::<DiscoveryRequest>(&request.encode_to_vec().into(), &Limits::default());
            assert_eq!(read.err().map(|status| status.code()), Some(expected));
        };
        let large = "x".repeat(2 << 20);
        check(DiscoveryRequest { type_url: large.clone(), ..Default::default() }, Code::InvalidArgument);
        check(DiscoveryRequest { response_nonce: large.clone(), ..Default::default() }, Code::ResourceExhausted);
        check(DiscoveryRequest { resource_names: vec![large.clone()], ..Default::default() }, Code::ResourceExhausted);
        let node = api::envoy::config::core::v3::Node { id: large, ..Default::default() };
        check(DiscoveryRequest { node: Some(node), ..Default::default() }, Code::ResourceExhausted);
    }

    #[test]
    fn garbage_is_an_invalid_argument() {
        for garbage in
            [&b"\xff\xff\xff"[..], b"\x1a\x05a", b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x1a\x01\xff"]
        {
            let read = decode::<DiscoveryRequest>(&garbage.into(), &Limits::default());
            assert_eq!(read.err().map(|status| status.code()), Some(Code::InvalidArgument), "{garbage:?}");
        }
    }
}
