//! PEM: finds and writes blocks of base64 between BEGIN and END lines.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use thiserror::Error;
use zeroize::Zeroizing;

/// One block.
#[derive(Clone, PartialEq, Eq)]
pub struct PemBlock {
    pub label: String,
    pub content: Zeroizing<Vec<u8>>,
}

/// Why a text is not PEM.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum PemError {
    #[error("there is no PEM block")]
    NoBlock,
    #[error("PEM block {0:?} has no end")]
    Unterminated(String),
    #[error("PEM block {0:?} is not base64")]
    NotBase64(String),
}

const BEGIN: &str = "-----BEGIN ";
const DASHES: &str = "-----";

/// All blocks of a text; an error if there is none. Text between blocks is ignored.
pub fn blocks(text: &str) -> Result<Vec<PemBlock>, PemError> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((block, after)) = next_block(rest)? {
        found.push(block);
        rest = after;
    }
    if found.is_empty() { Err(PemError::NoBlock) } else { Ok(found) }
}

/// The first block of a text.
pub fn first_block(text: &str) -> Result<PemBlock, PemError> {
    next_block(text)?.map(|(block, _)| block).ok_or(PemError::NoBlock)
}

fn next_block(text: &str) -> Result<Option<(PemBlock, &str)>, PemError> {
    let Some(start) = text.find(BEGIN) else { return Ok(None) };
    let text = &text[start + BEGIN.len()..];
    let Some((label, text)) = text.split_once(DASHES).filter(|(label, _)| is_label(label)) else {
        return Err(PemError::Unterminated(excerpt(text)));
    };
    let end = format!("-----END {label}-----");
    let Some((body, after)) = text.split_once(&end) else { return Err(PemError::Unterminated(label.to_owned())) };
    let mut packed = Zeroizing::new(String::with_capacity(body.len()));
    packed.extend(body.chars().filter(|c| !c.is_ascii_whitespace()));
    let content = BASE64_STANDARD.decode(packed.as_bytes()).map_err(|_| PemError::NotBase64(label.to_owned()))?;
    Ok(Some((PemBlock { label: label.to_owned(), content: content.into() }, after)))
}

fn is_label(label: &str) -> bool {
    label.len() <= 64 && label.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == ' ')
}

fn excerpt(text: &str) -> String {
    text.chars().take(20).collect()
}

/// A block with lines of 64 characters and a newline at the end.
pub fn encode(label: &str, content: &[u8]) -> String {
    let packed = Zeroizing::new(BASE64_STANDARD.encode(content));
    let mut text = String::with_capacity(packed.len() * 65 / 64 + 2 * label.len() + 40);
    text.push_str(&format!("{BEGIN}{label}{DASHES}\n"));
    for line in packed.as_bytes().chunks(64) {
        text.extend(line.iter().map(|byte| char::from(*byte)));
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::{PemError, blocks, encode, first_block};

    #[test]
    fn blocks_survive_writing_and_reading() {
        for length in [0, 1, 47, 48, 49, 1000] {
            let content = vec![7; length];
            let text = format!("# a\n{}b\n{}", encode("CERTIFICATE", &content), encode("EC PRIVATE KEY", b"x"));
            let found = blocks(&text).unwrap();
            assert_eq!((&*found[0].label, &**found[0].content), ("CERTIFICATE", &content[..]));
            assert_eq!(found[1].label, "EC PRIVATE KEY");
        }
    }

    #[test]
    fn malformed_text_is_an_error() {
        let check = |text: &str, expected| assert_eq!(blocks(text).err(), Some(expected), "{text}");
        check("", PemError::NoBlock);
        check("-----BEGIN A-----\nAAAA", PemError::Unterminated("A".to_owned()));
        check("-----BEGIN A-----\n\0\n-----END A-----", PemError::NotBase64("A".to_owned()));
        check("-----BEGIN a\u{e9}-----\n", PemError::Unterminated("a\u{e9}-----\n".to_owned()));
        assert!(first_block("-----BEGIN A-----\nAAAA\n-----END A-----\n-----BEGIN B").is_ok());
    }
}
