//! Go durations (`1h30m`, `300ms`), which Istio's config uses.

use api::Duration;

const NANOS: &[(&str, i128)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a Go duration. `None` if the text is not one or exceeds 64 bits of nanoseconds.
pub fn parse(text: &str) -> Option<Duration> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(Duration::default());
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: i128 = 0;
    while !rest.is_empty() {
        let (amount, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, tail) = tail.split_at(tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len()));
        let scale = NANOS.iter().find(|(name, _)| *name == unit)?.1;
        nanos = nanos.checked_add(scaled(amount, scale)?)?;
        rest = tail;
    }
    let nanos = if negative { -nanos } else { nanos };
    let nanos = i128::from(i64::try_from(nanos).ok()?);
    Some(Duration { seconds: (nanos / 1_000_000_000) as i64, nanos: (nanos % 1_000_000_000) as i32 })
}

/// A decimal such as `1.5` times a unit, in nanoseconds.
fn scaled(amount: &str, scale: i128) -> Option<i128> {
    let (whole, fraction) = amount.split_once('.').unwrap_or((amount, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut total = if whole.is_empty() { 0 } else { whole.parse::<i128>().ok()?.checked_mul(scale)? };
    let mut digit_scale = scale;
    for digit in fraction.bytes() {
        digit_scale /= 10;
        total = total.checked_add(i128::from(digit.checked_sub(b'0').filter(|d| *d < 10)?) * digit_scale)?;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn go_durations_are_parsed() {
        let of = |text| parse(text).map(|d| (d.seconds, d.nanos));
        assert_eq!(of("24h"), Some((86_400, 0)));
        assert_eq!(of("1m30s"), Some((90, 0)));
        assert_eq!(of("300ms"), Some((0, 300_000_000)));
        assert_eq!(of("1.5s"), Some((1, 500_000_000)));
        assert_eq!(of("-2s"), Some((-2, 0)));
        assert_eq!(of("0"), Some((0, 0)));
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "5", "s", "1d", "1.2.3s", ".s", "99999999999999999999h", "5 s"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
