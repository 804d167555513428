//! The encoded message of a resource: one piece, or pieces that it shares with other resources. Route tables of different
//! namespaces differ in a few virtual hosts, so they share most of their pieces.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

/// Encoded bytes. Cloning copies none of them.
#[derive(Clone)]
pub struct Body(BodyBytes);

#[derive(Clone)]
enum BodyBytes {
    Whole(Bytes),
    Pieces { pieces: Arc<[Bytes]>, len: usize },
}

impl Body {
    /// The bytes of all pieces, one after the other.
    pub fn of_pieces(pieces: Vec<Bytes>) -> Body {
        let len = pieces.iter().map(Bytes::len).sum();
        Body(BodyBytes::Pieces { pieces: pieces.into(), len })
    }

    pub fn len(&self) -> usize {
        match &self.0 {
            BodyBytes::Whole(bytes) => bytes.len(),
            BodyBytes::Pieces { len, .. } => *len,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn pieces(&self) -> &[Bytes] {
        match &self.0 {
            BodyBytes::Whole(bytes) => std::slice::from_ref(bytes),
            BodyBytes::Pieces { pieces, .. } => pieces,
        }
    }

    /// All bytes in one piece; copied if there are several.
    pub fn joined(&self) -> Bytes {
        match &self.0 {
            BodyBytes::Whole(bytes) => bytes.clone(),
            BodyBytes::Pieces { pieces, len } => {
                let mut joined = BytesMut::with_capacity(*len);
                pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
                joined.freeze()
            }
        }
    }

    /// Whether no other resource or response uses these bytes or this list of pieces.
    pub fn is_unique(&self) -> bool {
        match &self.0 {
            BodyBytes::Whole(bytes) => bytes.is_unique(),
            BodyBytes::Pieces { pieces, .. } => Arc::strong_count(pieces) == 1,
        }
    }

    /// Bytes in memory that are not shared with other bodies.
    pub fn own_bytes(&self) -> usize {
        match &self.0 {
            BodyBytes::Whole(bytes) => bytes.len(),
            BodyBytes::Pieces { pieces, .. } => size_of_val(&**pieces),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Body(BodyBytes::Whole(bytes))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.joined() == other.joined()
    }
}

impl Eq for Body {}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::{Body, Bytes};
    use crate::Resource;

    #[test]
    fn pieces_are_the_same_content_as_one_piece() {
        let pieces = Body::of_pieces(vec![Bytes::from_static(b"ab"), Bytes::new(), Bytes::from_static(b"c")]);
        let whole = Body::from(Bytes::from_static(b"abc"));
        assert_eq!((pieces.len(), pieces.joined()), (3, Bytes::from_static(b"abc")));
        assert_eq!(pieces, whole);
        let version = |body| Resource::encoded("a", body).version;
        assert_eq!(version(pieces), version(whole));
    }

    #[test]
    fn clones_share_pieces() {
        let one = Body::of_pieces(vec![Bytes::from(vec![7; 100])]);
        assert!(one.is_unique());
        let two = one.clone();
        assert!(!one.is_unique());
        assert_eq!(one.pieces()[0].as_ptr(), two.pieces()[0].as_ptr());
    }
}
