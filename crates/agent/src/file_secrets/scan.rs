//! Finds file secret names in relayed configuration without decoding it: a name is field 1 of Envoy's SdsSecretConfig, a
//! string after its tag and length. False matches are harmless: authors of configuration may name files anyway.

use memchr::memmem;

use super::{FileSecretNames, MAX_NAME, PAIR, ROOT};

/// Common prefix of both kinds of names.
const START: &[u8] = b"file-";

/// Protobuf tag of field 1, a string.
const TAG: u8 = 0x0a;

/// Maximum size of tag and length before a name.
const HEAD: usize = 3;

/// Scans one byte stream, in chunks of any size.
#[derive(Debug, Default)]
pub(crate) struct NameScanner {
    /// The unscanned end of the stream, in which a name may start.
    rest: Vec<u8>,
}

impl NameScanner {
    /// Scans the next chunk and records the names that are complete.
    pub(crate) fn feed(&mut self, bytes: &[u8], names: &FileSecretNames) {
        self.rest.extend_from_slice(bytes);
        // Everything before this was scanned.
        let mut keep = self.rest.len().saturating_sub(HEAD + PAIR.len() - 1);
        for at in memmem::find_iter(&self.rest, START) {
            match name_at(&self.rest, at) {
                NameMatch::Name(name) => names.add(name),
                NameMatch::Part => keep = keep.min(at.saturating_sub(HEAD)),
                NameMatch::Nothing => {}
            }
        }
        self.rest.drain(..keep);
    }
}

enum NameMatch<'a> {
    Name(&'a str),
    /// Incomplete: more bytes are needed.
    Part,
    Nothing,
}

fn name_at(bytes: &[u8], at: usize) -> NameMatch<'_> {
    let begins = |kind: &str| {
        let available = &bytes[at..bytes.len().min(at + kind.len())];
        kind.as_bytes().starts_with(available)
    };
    let length = match length_before(&bytes[..at]) {
        Some(length) if begins(ROOT) || begins(PAIR) => length,
        _ => return NameMatch::Nothing,
    };
    if length <= ROOT.len() || length > MAX_NAME {
        return NameMatch::Nothing;
    }
    match bytes.get(at..at + length) {
        None => NameMatch::Part,
        Some(name) => std::str::from_utf8(name).map_or(NameMatch::Nothing, NameMatch::Name),
    }
}

/// The length of the string of field 1 that follows these bytes.
fn length_before(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [.., TAG, length] if *length < 0x80 => Some(usize::from(*length)),
        [.., TAG, low, high] if *low >= 0x80 && *high < 0x80 => Some(usize::from(low & 0x7f) | usize::from(*high) << 7),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use api::envoy::extensions::transport_sockets::tls::v3::{CommonTlsContext, SdsSecretConfig};
    use prost::Message;

    use super::{FileSecretNames, NameScanner};

    fn configuration(names: &[&str]) -> Vec<u8> {
        let secret = |name: &&str| SdsSecretConfig { name: (*name).to_owned(), ..Default::default() };
        let context = CommonTlsContext {
            tls_certificate_sds_secret_configs: names.iter().map(secret).collect(),
            ..Default::default()
        };
        [vec![0; 300], context.encode_to_vec(), b"some file-root:/etc/text file-".to_vec()].concat()
    }

    #[test]
    fn hole_10_names_are_found_in_chunks_of_any_size() {
        let long = format!("file-cert:/etc/{}/chain.pem~/etc/key.pem", "x".repeat(1000));
        let expected = ["file-root:/etc/root.pem", "file-cert:/etc/a~/etc/b", long.as_str()];
        let bytes = configuration(&[expected[0], "default", expected[1], expected[2], "kubernetes://x"]);
        for piece in [1, 2, 7, 64, 1000, bytes.len()] {
            let (names, mut scanner) = (FileSecretNames::default(), NameScanner::default());
            bytes.chunks(piece).for_each(|bytes| scanner.feed(bytes, &names));
            for name in expected {
                assert!(names.contains(name), "{name} in pieces of {piece}");
            }
            assert!(!names.contains("file-root:/etc/text"));
            assert!(scanner.rest.len() < 32, "{} bytes are kept", scanner.rest.len());
        }
    }

    #[test]
    fn hole_10_buffered_bytes_are_bounded() {
        let (names, mut scanner) = (FileSecretNames::default(), NameScanner::default());
        for _ in 0..1000 {
            // Each claims to be longer than the bytes that follow.
            scanner.feed(b"\x0a\xff\x3ffile-root:/etc/a", &names);
            assert!(scanner.rest.len() < 3 * super::MAX_NAME, "{}", scanner.rest.len());
        }
    }
}
