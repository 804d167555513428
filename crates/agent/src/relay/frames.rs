//! gRPC framing: message boundaries in a byte stream, and a message's type URL without decoding the message.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Compression flag and length.
const HEAD: usize = 5;

/// Maximum message length. A larger length is an error, so that it cannot cause a huge allocation.
const MAX: usize = 1 << 30;

/// Tracks message boundaries without buffering.
#[derive(Debug, Default)]
pub(super) struct BoundaryTracker {
    head: Vec<u8>,
    /// Remaining bytes of the current message.
    rest: usize,
}

impl BoundaryTracker {
    /// Processes the next bytes and returns how many messages start in them.
    pub(super) fn advance(&mut self, mut bytes: &[u8]) -> u64 {
        let mut started = 0;
        loop {
            let passed = self.rest.min(bytes.len());
            self.rest -= passed;
            bytes = &bytes[passed..];
            if bytes.is_empty() {
                return started;
            }
            let missing = (HEAD - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if self.head.len() < HEAD {
                return started;
            }
            self.rest = length(&self.head);
            self.head.clear();
            started += 1;
        }
    }

    /// True between two messages, where another one can be inserted.
    pub(super) fn at_boundary(&self) -> bool {
        self.rest == 0 && self.head.is_empty()
    }
}

fn length(head: &[u8]) -> usize {
    match head {
        [_, a, b, c, d, ..] => u32::from_be_bytes([*a, *b, *c, *d]) as usize,
        _ => 0,
    }
}

/// Splits a byte stream into messages.
#[derive(Debug, Default)]
pub(super) struct FrameSplitter {
    pending: BytesMut,
}

/// A message with its gRPC header.
#[derive(Debug)]
pub(super) struct GrpcFrame(Bytes);

impl GrpcFrame {
    /// Header and message.
    pub(super) fn bytes(&self) -> Bytes {
        self.0.clone()
    }

    /// The protobuf message; `None` if it is compressed, which neither Envoy nor the control plane does.
    pub(super) fn body(&self) -> Option<Bytes> {
        (self.0.first() == Some(&0)).then(|| self.0.slice(HEAD..))
    }
}

/// The bytes are not gRPC messages.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FramingError;

impl FrameSplitter {
    /// Processes the next bytes and returns the messages that are complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<GrpcFrame>, FramingError> {
        self.pending.extend_from_slice(bytes);
        let mut frames = Vec::new();
        while self.pending.len() >= HEAD {
            let length = length(&self.pending);
            if length > MAX {
                return Err(FramingError);
            }
            if self.pending.len() < HEAD + length {
                break;
            }
            frames.push(GrpcFrame(self.pending.split_to(HEAD + length).freeze()));
        }
        if self.pending.is_empty() {
            // Releases the buffer of a large message.
            self.pending = BytesMut::new();
        }
        Ok(frames)
    }
}

/// A protobuf message with its gRPC header.
pub(super) fn framed(message: &impl prost::Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(HEAD + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    bytes.extend_from_slice(&message.encode_to_vec());
    bytes.freeze()
}

/// Reads one string field without decoding the message. `None` if absent or malformed.
pub(super) fn text_field(mut message: Bytes, number: u64) -> Option<String> {
    while message.has_remaining() {
        let key = varint(&mut message)?;
        let (field, wire) = (key >> 3, key & 7);
        let skipped = match wire {
            0 => {
                varint(&mut message)?;
                0
            }
            1 => 8,
            5 => 4,
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                if length > message.remaining() {
                    return None;
                }
                if field == number {
                    return String::from_utf8(message.split_to(length).to_vec()).ok();
                }
                length
            }
            _ => return None,
        };
        if skipped > message.remaining() {
            return None;
        }
        message.advance(skipped);
    }
    None
}

fn varint(bytes: &mut Bytes) -> Option<u64> {
    prost::encoding::decode_varint(bytes).ok()
}

#[cfg(test)]
mod tests {
    use api::envoy::service::discovery::v3::DiscoveryResponse;
    use prost::Message;

    use super::{BoundaryTracker, Bytes, FrameSplitter, FramingError, framed, text_field};

    fn response(kind: &str, size: usize) -> DiscoveryResponse {
        let any = api::Any { type_url: "t".into(), value: vec![7; size] };
        DiscoveryResponse {
            version_info: "1".into(),
            resources: vec![any],
            type_url: kind.into(),
            ..Default::default()
        }
    }

    #[test]
    fn messages_are_found_in_chunks_of_any_size() {
        let messages: Vec<Bytes> = [0, 3, 300].map(|size| framed(&response("kind", size))).into();
        let stream = messages.concat();
        for piece in [1, 2, 5, 7, 64, stream.len()] {
            let (mut boundaries, mut splitter) = (BoundaryTracker::default(), FrameSplitter::default());
            let (mut started, mut frames) = (0, Vec::new());
            for bytes in stream.chunks(piece) {
                started += boundaries.advance(bytes);
                frames.extend(splitter.feed(bytes).unwrap().into_iter().map(|message| message.bytes()));
            }
            assert_eq!((started, &frames), (3, &messages), "{piece} bytes at a time");
            assert!(boundaries.at_boundary());
        }
    }

    #[test]
    fn there_is_no_boundary_inside_a_message() {
        let mut boundaries = BoundaryTracker::default();
        let bytes = framed(&response("kind", 10));
        assert!(boundaries.at_boundary());
        boundaries.advance(&bytes[..3]);
        assert!(!boundaries.at_boundary());
        boundaries.advance(&bytes[3..bytes.len() - 1]);
        assert!(!boundaries.at_boundary());
    }

    #[test]
    fn string_field_is_found_after_other_fields() {
        let message = Bytes::from(response("kind", 5000).encode_to_vec());
        assert_eq!(text_field(message.clone(), 4).as_deref(), Some("kind"));
        assert_eq!(text_field(message.clone(), 5), None);
        for cut in 0..message.len() {
            let found = text_field(message.slice(..cut), 4);
            assert!(found.is_none(), "{cut}");
        }
        assert_eq!(text_field(Bytes::from_static(&[0xff; 20]), 4), None);
    }

    #[test]
    fn oversized_length_is_rejected() {
        assert_eq!(FrameSplitter::default().feed(&[0, 0xff, 0xff, 0xff, 0xff]).map(|w| w.len()), Err(FramingError));
    }
}
