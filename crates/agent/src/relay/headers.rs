//! Serializes HTTP headers in the handover, as pairs of bytes.

use http::{HeaderName, HeaderValue};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

type Headers = Vec<(HeaderName, HeaderValue)>;

pub(super) fn serialize<S: Serializer>(headers: &Headers, serializer: S) -> Result<S::Ok, S::Error> {
    let pairs: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    pairs.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Headers, D::Error> {
    let header = |(name, value): (String, Vec<u8>)| {
        let name = name.parse().map_err(D::Error::custom)?;
        Ok((name, HeaderValue::from_bytes(&value).map_err(D::Error::custom)?))
    };
    Vec::<(String, Vec<u8>)>::deserialize(deserializer)?.into_iter().map(header).collect()
}
