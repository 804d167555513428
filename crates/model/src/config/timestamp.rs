//! RFC 3339 timestamps.

use jiff::Timestamp;

/// Seconds since 1970 and nanoseconds; `None` if the text is not an RFC 3339 timestamp.
pub fn parse(text: &str) -> Option<(i64, i32)> {
    let time: Timestamp = text.parse().ok().filter(|_| is_rfc3339(text))?;
    let nanos = time.as_nanosecond();
    Some((nanos.div_euclid(1_000_000_000).try_into().ok()?, nanos.rem_euclid(1_000_000_000).try_into().ok()?))
}

/// `2024-01-02T03:04:05Z`; 1970 for seconds outside of the years -9999 to 9999.
pub fn format(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

/// jiff also parses other forms of ISO 8601, and leap seconds, which Go and therefore upstream reject.
fn is_rfc3339(text: &str) -> bool {
    const SHAPE: &[u8] = b"0000-00-00T00:00:00";
    let fits = |(shape, byte): (&u8, u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        mark => byte.to_ascii_uppercase() == *mark,
    };
    let Some((start, rest)) = text.split_at_checked(SHAPE.len()) else { return false };
    let zone =
        rest.strip_prefix('.').map_or(rest, |fraction| fraction.trim_start_matches(|c: char| c.is_ascii_digit()));
    let is_offset = || matches!(zone.as_bytes(), [b'+' | b'-', _, _, b':', _, _]);
    SHAPE.iter().zip(start.bytes()).all(fits)
        && !start.ends_with(":60")
        && (zone.eq_ignore_ascii_case("z") || is_offset())
}

#[cfg(test)]
mod tests {
    use super::{format, parse};

    #[test]
    fn timestamps_are_parsed() {
        assert_eq!(parse("1970-01-01T00:00:00Z"), Some((0, 0)));
        assert_eq!(parse("2024-02-29T12:30:45Z"), Some((1_709_209_845, 0)));
        assert_eq!(parse("2024-02-29T12:30:45.25+02:00"), Some((1_709_202_645, 250_000_000)));
        assert_eq!(parse("1969-12-31T23:59:59Z"), Some((-1, 0)));
        assert_eq!(parse("1969-12-31t23:59:59.5z"), Some((-1, 500_000_000)));
    }

    #[test]
    fn other_text_is_rejected() {
        for text in ["", "2024-01-01", "2023-02-29T00:00:00Z", "2024-13-01T00:00:00Z", "2024-01-01T24:00:00Z"] {
            assert_eq!(parse(text), None, "{text}");
        }
        for text in ["2024-01-01T00:00:00", "2024-01-01T00:00:00.Z", "+024-01-01T00:00:00Z", "2024-01-01T00:00:00+é"] {
            assert_eq!(parse(text), None, "{text}");
        }
        for text in ["2024-01-01 00:00:00Z", "20240101T000000Z", "2024-01-01T00:00Z", "2024-01-01T00:00:60Z"] {
            assert_eq!(parse(text), None, "{text}");
        }
        for text in ["2024-01-01T00:00:00+02", "2024-01-01T00:00:00,5Z", "2024-01-01T00:00:00Z[UTC]"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn formatted_timestamps_parse_to_the_same() {
        for seconds in (-4_000_000_000..9_000_000_000i64).step_by(86_399_983) {
            assert_eq!(parse(&format(seconds)), Some((seconds, 0)), "{}", format(seconds));
        }
    }
}
