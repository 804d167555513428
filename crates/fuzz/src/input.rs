//! How several values are read from one input.

use bytes::Bytes;

/// Messages with two bytes of length before each; the last may be shorter than that.
pub(crate) fn messages(mut data: &[u8]) -> Vec<Bytes> {
    let mut found = Vec::new();
    while let [high, low, rest @ ..] = data {
        let (message, after) = rest.split_at(rest.len().min(usize::from(u16::from_be_bytes([*high, *low]))));
        found.push(Bytes::copy_from_slice(message));
        data = after;
    }
    found
}

/// Lines until the first empty one, and the rest.
pub(crate) fn head_and_body(data: &[u8]) -> (Vec<String>, &[u8]) {
    let end = data.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = end.map_or((data, &[][..]), |end| (&data[..end], &data[end + 2..]));
    (String::from_utf8_lossy(head).lines().map(str::to_owned).collect(), body)
}
