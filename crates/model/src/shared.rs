//! Shared values with their hash taken once, so that plans that hold them hash in no time, and
//! messages kept encoded.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use prost::Message;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// An immutable value behind `Arc`, equal and hashed by the fingerprint taken when it was made.
pub struct Shared<T> {
    value: Arc<T>,
    hash: u128,
}

impl<T: Message> Shared<T> {
    pub fn new(value: T) -> Shared<T> {
        let hash = xxh3_128(&value.encode_to_vec());
        Shared { value: Arc::new(value), hash }
    }

    pub fn encode(&self) -> Vec<u8> {
        self.value.encode_to_vec()
    }
}

impl<T: Hash> Shared<T> {
    /// Shares a value that is no message, by its own hash.
    pub fn hashed(value: T) -> Shared<T> {
        let hash = fingerprint(&value);
        Shared { value: Arc::new(value), hash }
    }
}

impl<T> Shared<T> {
    /// The hash that stands for the value: equal values have equal fingerprints.
    pub fn fingerprint(&self) -> u128 {
        self.hash
    }

    pub fn as_arc(&self) -> &Arc<T> {
        &self.value
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared { value: self.value.clone(), hash: self.hash }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl<T> Eq for Shared<T> {}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.hash);
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// A message kept encoded, far smaller than its structs: for what is held long and read seldom.
/// Encoding is deterministic, so equal bytes are equal messages.
pub struct Packed<T> {
    bytes: Arc<[u8]>,
    message: PhantomData<fn() -> T>,
}

impl<T: Message + Default> Packed<T> {
    pub fn new(message: T) -> Packed<T> {
        Packed { bytes: message.encode_to_vec().into(), message: PhantomData }
    }

    pub fn encode(&self) -> Vec<u8> {
        self.bytes.to_vec()
    }

    /// The message.
    pub fn open(&self) -> T {
        T::decode(&*self.bytes).expect("these bytes were encoded from a message of this type")
    }
}

impl<T> Clone for Packed<T> {
    fn clone(&self) -> Self {
        Packed { bytes: self.bytes.clone(), message: PhantomData }
    }
}

impl<T> PartialEq for Packed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl<T> Eq for Packed<T> {}

impl<T> Hash for Packed<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}

impl<T: Message + Default + fmt::Debug> fmt::Debug for Packed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.open().fmt(f)
    }
}

/// Any value behind `Arc` with its fingerprint taken once: what many plans have in common.
pub struct Part<T> {
    value: Arc<T>,
    hash: u128,
}

impl<T: Hash> Part<T> {
    pub fn new(value: T) -> Part<T> {
        let hash = fingerprint(&value);
        Part { value: Arc::new(value), hash }
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Part { value: self.value.clone(), hash: self.hash }
    }
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> PartialEq for Part<T> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl<T> Eq for Part<T> {}

impl<T> Hash for Part<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.hash);
    }
}

impl<T: fmt::Debug> fmt::Debug for Part<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// The 128-bit fingerprint of anything that can be hashed; equal values give equal fingerprints.
pub fn fingerprint<T: Hash + ?Sized>(value: &T) -> u128 {
    let mut hasher = Fingerprint(Xxh3::new());
    value.hash(&mut hasher);
    hasher.0.digest128()
}

struct Fingerprint(Xxh3);

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        self.0.digest()
    }
}
