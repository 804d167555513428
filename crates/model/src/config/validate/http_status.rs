//! HTTP status codes that have a name in Go's `net/http`, which upstream uses.

/// Whether the text is the number of a named status.
pub(super) fn is_named(text: &str) -> bool {
    let Ok(code) = text.parse::<u16>() else {
        return false;
    };
    matches!(
        code,
        100..=103 | 200..=208 | 226 | 300..=305 | 307 | 308 | 400..=418 | 421..=426 | 428 | 429 | 431 | 451 | 500..=508 | 510 | 511
    )
}
