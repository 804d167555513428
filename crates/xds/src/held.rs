//! The versions that a reconnecting client holds, left encoded. Most clients hold exactly what they should, which a sum
//! over all entries shows; only where it differs are the entries read one by one.

use api::Version;
use bytes::Bytes;
use prost::encoding::{DecodeContext, WireType, decode_key, skip_field};
use tonic::Status;

use crate::encoded::{bad, content};
use crate::layer::Sum;

/// Entries of `initial_resource_versions`: resource names with versions.
#[derive(Debug, Default)]
pub(crate) struct HeldVersions {
    entries: Vec<Bytes>,
    sum: Sum,
    /// Some version is not one of ours.
    has_foreign: bool,
}

impl HeldVersions {
    /// Adds an encoded entry.
    pub(crate) fn add(&mut self, entry: Bytes) -> Result<(), Status> {
        let (name, version) = texts(&entry)?;
        match Version::parse(version) {
            Some(version) => self.sum = self.sum.plus(Sum::of(name, version)),
            None => self.has_foreign = true,
        }
        self.entries.push(entry);
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether these are as many resources with this sum.
    pub(crate) fn equals(&self, count: usize, sum: Sum) -> bool {
        !self.has_foreign && self.entries.len() == count && self.sum == sum
    }

    /// Names and versions. A name may be repeated; its last version counts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        // All entries were read once before they were added.
        self.entries.iter().filter_map(|entry| texts(entry).ok())
    }
}

/// The name and the version of an entry.
fn texts(mut rest: &[u8]) -> Result<(&str, &str), Status> {
    let (mut name, mut version) = ("", "");
    while !rest.is_empty() {
        let (tag, wire) = decode_key(&mut rest).map_err(bad)?;
        if wire != WireType::LengthDelimited || tag > 2 {
            skip_field(wire, tag, &mut rest, DecodeContext::default()).map_err(bad)?;
            continue;
        }
        let text = std::str::from_utf8(content(&mut rest)?).map_err(bad)?;
        *(if tag == 1 { &mut name } else { &mut version }) = text;
    }
    Ok((name, version))
}

#[cfg(test)]
mod tests {
    use api::Version;
    use bytes::Bytes;

    use super::{HeldVersions, Sum};

    fn entry(name: &str, version: &str) -> Bytes {
        let mut bytes = vec![10, name.len() as u8];
        bytes.extend(name.as_bytes());
        bytes.extend([18, version.len() as u8]);
        bytes.extend(version.as_bytes());
        bytes.into()
    }

    #[test]
    fn sum_covers_all_entries_and_none_but_ours() {
        let (one, two) = (Version::of(b"one"), Version::of(b"two"));
        let mut held = HeldVersions::default();
        held.add(entry("b", &two.to_string())).unwrap();
        held.add(entry("a", &one.to_string())).unwrap();
        let sum = Sum::of("a", one).plus(Sum::of("b", two));
        assert!(held.equals(2, sum) && !held.equals(1, sum) && !held.equals(2, Sum::of("a", one)));
        let texts: Vec<_> = held.iter().map(|(name, version)| (name, version.to_owned())).collect();
        assert_eq!(texts, [("b", two.to_string()), ("a", one.to_string())]);
        held.add(entry("c", "17")).unwrap();
        assert!(!held.equals(3, sum), "a version of another server");
    }

    #[test]
    fn garbage_is_an_error() {
        for garbage in [&b"\x0a\x05a"[..], b"\x0a\x01\xff", b"\xff\xff\xff"] {
            assert!(HeldVersions::default().add(Bytes::from_static(garbage)).is_err(), "{garbage:?}");
        }
    }
}
