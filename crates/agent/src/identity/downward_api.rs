//! Labels and annotations of the pod from downward API files with `key="value"` lines.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use tracing::warn;

/// Mount paths in an injected pod.
pub const LABELS: &str = "./etc/istio/pod/labels";
pub const ANNOTATIONS: &str = "./etc/istio/pod/annotations";

/// Reads a downward API file. `None` if it does not exist. Invalid lines are logged and skipped.
pub fn read(path: &Path) -> Option<BTreeMap<String, String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let (values, problems) = parse(&text);
            problems
                .iter()
                .for_each(|line| warn!(file = %path.display(), line, "ignoring a line that is not key=\"value\""));
            Some(values)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            warn!(file = %path.display(), %error, "could not read pod labels or annotations");
            None
        }
    }
}

/// The pairs, and the line numbers of invalid lines.
fn parse(text: &str) -> (BTreeMap<String, String>, Vec<usize>) {
    let (mut values, mut problems) = (BTreeMap::new(), Vec::new());
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match line.split_once('=').and_then(|(key, value)| Some((key, unquoted(value)?))) {
            Some((key, value)) => {
                values.insert(key.to_owned(), value);
            }
            None => problems.push(index + 1),
        }
    }
    (values, problems)
}

/// Decodes a string quoted by Go's `%q`.
fn unquoted(text: &str) -> Option<String> {
    let inside = text.trim().strip_prefix('"')?.strip_suffix('"')?;
    let mut bytes = Vec::with_capacity(inside.len());
    let mut chars = inside.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            bytes.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        match chars.next()? {
            'x' => bytes.push(u8::try_from(hex(&mut chars, 2)?).ok()?),
            'u' => bytes.extend(char::from_u32(hex(&mut chars, 4)?)?.encode_utf8(&mut [0; 4]).as_bytes()),
            'U' => bytes.extend(char::from_u32(hex(&mut chars, 8)?)?.encode_utf8(&mut [0; 4]).as_bytes()),
            c => bytes.push(match c {
                'n' => b'\n',
                't' => b'\t',
                'r' => b'\r',
                'a' => 7,
                'b' => 8,
                'f' => 12,
                'v' => 11,
                '"' | '\\' | '\'' => c as u8,
                _ => return None,
            }),
        }
    }
    String::from_utf8(bytes).ok()
}

fn hex(chars: &mut std::str::Chars<'_>, digits: usize) -> Option<u32> {
    (0..digits).try_fold(0u32, |value, _| Some(value.checked_mul(16)? + chars.next()?.to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::{parse, unquoted};

    #[test]
    fn invalid_lines_are_reported_by_number() {
        let (values, problems) = parse("app=\"cart\"\n\nnote=\"a=\\\"b\\\"\\nc\"\nbad\nworse=x\n");
        assert_eq!(values["app"], "cart");
        assert_eq!(values["note"], "a=\"b\"\nc");
        assert_eq!((values.len(), problems), (2, vec![4, 5]));
    }

    #[test]
    fn all_go_escapes_are_decoded() {
        assert_eq!(unquoted(r#""\x41\u00e9\U0001F600\\""#).as_deref(), Some("Aé😀\\"));
        for bad in [r#""\q""#, r#""\x4""#, "\"", "\"a", r#""\xff""#] {
            assert_eq!(unquoted(bad), None, "{bad}");
        }
    }
}
