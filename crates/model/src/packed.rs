//! Protobuf messages kept in encoded form to save memory.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

use prost::Message;

/// A message kept encoded, which is far smaller than its structs: for messages held long and read seldom.
/// Encoding is deterministic, so equal bytes are equal messages.
pub struct Packed<T> {
    bytes: Arc<[u8]>,
    message: PhantomData<fn() -> T>,
}

impl<T: Message + Default> Packed<T> {
    pub fn from_message(message: T) -> Packed<T> {
        Packed { bytes: message.encode_to_vec().into(), message: PhantomData }
    }

    pub fn encode(&self) -> Vec<u8> {
        self.bytes.to_vec()
    }

    /// Decodes the message.
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
