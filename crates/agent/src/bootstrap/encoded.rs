//! A message inside of a plan that is handed over: as its own encoding, which needs no descriptors.

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
