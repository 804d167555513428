//! Pieces of encoded messages, for the decoders of requests.

use prost::encoding::decode_varint;
use tonic::Status;

/// The content of a length-delimited field, removed from the front of `rest`.
pub(crate) fn content<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Status> {
    let len = usize::try_from(decode_varint(rest).map_err(bad)?).unwrap_or(usize::MAX);
    let (content, after) = rest.split_at_checked(len).ok_or_else(|| bad("a field is cut off"))?;
    *rest = after;
    Ok(content)
}

pub(crate) fn bad(error: impl std::fmt::Display) -> Status {
    Status::invalid_argument(format!("could not decode message: {error}"))
}
