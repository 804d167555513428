//! Writes DER. Certificates are encoded here and not by a library because the issuer's name and the caller's public key
//! must be copied byte for byte: verifiers compare names as bytes.

/// Object identifiers, encoded.
pub(crate) mod oid {
    pub(crate) const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
    pub(crate) const SHA256_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11];
    pub(crate) const SHA384_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 12];
    pub(crate) const SHA512_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 13];
    pub(crate) const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
    pub(crate) const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
    pub(crate) const P384: &[u8] = &[0x2b, 0x81, 4, 0, 34];
    pub(crate) const P521: &[u8] = &[0x2b, 0x81, 4, 0, 35];
    pub(crate) const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
    pub(crate) const ECDSA_SHA384: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3];
    pub(crate) const ECDSA_SHA512: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4];
    pub(crate) const COMMON_NAME: &[u8] = &[0x55, 4, 3];
    pub(crate) const ORGANIZATION: &[u8] = &[0x55, 4, 10];
    pub(crate) const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 14];
    pub(crate) const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
    pub(crate) const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 17];
    pub(crate) const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
    pub(crate) const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 35];
    pub(crate) const EXT_KEY_USAGE: &[u8] = &[0x55, 0x1d, 37];
    pub(crate) const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
    pub(crate) const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
    pub(crate) const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 14];
}

/// One element: tag, length, content.
pub(crate) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(content.len() + 6);
    bytes.push(tag);
    match content.len() {
        short @ 0..=0x7f => bytes.push(short as u8),
        long => {
            let length = long.to_be_bytes();
            let used = &length[length.iter().take_while(|byte| **byte == 0).count()..];
            bytes.push(0x80 | used.len() as u8);
            bytes.extend_from_slice(used);
        }
    }
    bytes.extend_from_slice(content);
    bytes
}

pub(crate) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(0x30, &parts.concat())
}

pub(crate) fn set(part: &[u8]) -> Vec<u8> {
    element(0x31, part)
}

/// A constructed element with context-specific tag `number`.
pub(crate) fn context(number: u8, content: &[u8]) -> Vec<u8> {
    element(0xa0 | number, content)
}

/// A non-negative integer from its big-endian bytes.
pub(crate) fn integer(bytes: &[u8]) -> Vec<u8> {
    let digits = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
    let mut content = Vec::with_capacity(digits.len() + 1);
    if digits.first().is_none_or(|first| first & 0x80 != 0) {
        content.push(0);
    }
    content.extend_from_slice(digits);
    element(0x02, &content)
}

pub(crate) fn object_id(encoded: &[u8]) -> Vec<u8> {
    element(0x06, encoded)
}

pub(crate) fn bit_string(bytes: &[u8], unused_bits: u8) -> Vec<u8> {
    element(0x03, &[&[unused_bits], bytes].concat())
}

pub(crate) fn octet_string(bytes: &[u8]) -> Vec<u8> {
    element(0x04, bytes)
}

pub(crate) fn utf8(text: &str) -> Vec<u8> {
    element(0x0c, text.as_bytes())
}

pub(crate) const TRUE: &[u8] = &[0x01, 0x01, 0xff];
pub(crate) const NULL: &[u8] = &[0x05, 0x00];

/// The algorithm of a key or signature: RSA's have NULL parameters, those of signatures with EC keys none.
pub(crate) fn algorithm(oid: &[u8], parameters: &[u8]) -> Vec<u8> {
    sequence(&[&object_id(oid), parameters])
}

/// An extension of a certificate.
pub(crate) fn extension(oid: &[u8], is_critical: bool, value: &[u8]) -> Vec<u8> {
    sequence(&[&object_id(oid), if is_critical { TRUE } else { &[] }, &octet_string(value)])
}

/// A time as RFC 5280 requires: two digits for the year until 2049.
pub(crate) fn time(unix_seconds: i64) -> Vec<u8> {
    let (days, seconds) = (unix_seconds.div_euclid(86_400), unix_seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let rest = format!("{month:02}{day:02}{hour:02}{minute:02}{second:02}Z");
    match year {
        1950..=2049 => element(0x17, format!("{:02}{rest}", year % 100).as_bytes()),
        _ => element(0x18, format!("{year:04}{rest}").as_bytes()),
    }
}

/// Year, month and day of a day counted from 1970-01-01. Years begin in March here, so that the leap day is the last.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::{civil, element, integer, time};

    #[test]
    fn lengths_and_integers_are_minimal() {
        assert_eq!(element(4, &[7; 3]), [4, 3, 7, 7, 7]);
        assert_eq!(element(4, &[7; 128])[..4], [4, 0x81, 128, 7]);
        assert_eq!(element(4, &[7; 300])[..4], [4, 0x82, 1, 44]);
        assert_eq!(integer(&[0, 0, 5]), [2, 1, 5]);
        assert_eq!(integer(&[0x80]), [2, 2, 0, 0x80]);
        assert_eq!(integer(&[]), [2, 1, 0]);
    }

    #[test]
    fn times_have_the_form_of_their_year() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(time(0)[2..], *b"700101000000Z");
        assert_eq!(time(951_827_696)[2..], *b"000229123456Z");
        assert_eq!(time(2_524_607_999)[2..], *b"491231235959Z");
        assert_eq!(time(2_524_608_000)[2..], *b"20500101000000Z");
    }
}
