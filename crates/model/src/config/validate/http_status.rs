//! HTTP status codes that have a name (those of Go's `net/http`, which upstream asks).

/// Whether the text is a number that names a status; anything else counts as 0.
pub(super) fn is_named(text: &str) -> bool {
    let Ok(code) = text.parse::<u16>() else {
        return false;
    };
    matches!(
        code,
        100..=103 | 200..=208 | 226 | 300..=305 | 307 | 308 | 400..=418 | 421..=426 | 428 | 429 | 431 | 451 | 500..=508 | 510 | 511
    )
}
