//! Serializes a protobuf message in the handover in its binary encoding, which needs no descriptor pool.

use prost::Message;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(super) fn serialize<T: Message, S: Serializer>(message: &T, serializer: S) -> Result<S::Ok, S::Error> {
    message.encode_to_vec().serialize(serializer)
}

pub(super) fn deserialize<'de, T: Message + Default, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let bytes = Vec::<u8>::deserialize(deserializer)?;
    T::decode(bytes.as_slice()).map_err(D::Error::custom)
}
