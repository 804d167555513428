//! Shared immutable values whose hash is computed once, so that plans that contain them hash in constant time.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use prost::Message;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// An immutable value behind `Arc`. Equality and hash use the fingerprint computed at construction.
pub struct Hashed<T> {
    value: Arc<T>,
    hash: u128,
}

impl<T: Hash> Hashed<T> {
    pub fn new(value: T) -> Hashed<T> {
        let hash = fingerprint(&value);
        Hashed { value: Arc::new(value), hash }
    }
}

impl<T: Message + Clone> Hashed<T> {
    /// For protobuf messages, which do not implement `Hash`: the fingerprint is that of the encoded bytes.
    pub fn from_message(value: T) -> Hashed<T> {
        let hash = xxh3_128(&value.encode_to_vec());
        // A list that grew while it was decoded has room for up to four times its elements; that of a copy has none.
        Hashed { value: Arc::new(value.clone()), hash }
    }
}

impl<T: Message> Hashed<T> {
    pub fn encode(&self) -> Vec<u8> {
        self.value.encode_to_vec()
    }
}

impl<T> Hashed<T> {
    /// Equal values have equal fingerprints.
    pub fn fingerprint(&self) -> u128 {
        self.hash
    }

    pub fn as_arc(&self) -> &Arc<T> {
        &self.value
    }
}

impl<T> Clone for Hashed<T> {
    fn clone(&self) -> Self {
        Hashed { value: self.value.clone(), hash: self.hash }
    }
}

impl<T> Deref for Hashed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> PartialEq for Hashed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl<T> Eq for Hashed<T> {}

impl<T> Hash for Hashed<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.hash);
    }
}

impl<T: fmt::Debug> fmt::Debug for Hashed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// The 128-bit fingerprint of a value; equal values have equal fingerprints.
pub fn fingerprint<T: Hash + ?Sized>(value: &T) -> u128 {
    let mut hasher = FingerprintHasher(Xxh3::new());
    value.hash(&mut hasher);
    hasher.0.digest128()
}

struct FingerprintHasher(Xxh3);

impl Hasher for FingerprintHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        self.0.digest()
    }
}
