//! URLs that may contain secrets: credentials become headers, and messages show neither credentials nor queries.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderName, HeaderValue};

use crate::http::error::HttpError;

/// The URL without user and password, and the authorization header that carries them.
pub(super) fn without_user(url: &str) -> Result<(String, Option<(HeaderName, HeaderValue)>), HttpError> {
    let Some((scheme, rest)) = url.split_once("://") else { return Ok((url.to_owned(), None)) };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let Some((user, _)) = rest[..end].rsplit_once('@') else { return Ok((url.to_owned(), None)) };
    let value = format!("Basic {}", BASE64_STANDARD.encode(unescaped(user)));
    Ok((format!("{scheme}://{}", &rest[user.len() + 1..]), Some(header("authorization", &value)?)))
}

/// Percent-decoded bytes of a part of a URL.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let hex = more.get(..2).and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            _ => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    bytes
}

/// A sensitive header with a value from a file or a flag.
pub fn header(name: &'static str, value: &str) -> Result<(HeaderName, HeaderValue), HttpError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| HttpError::Header(name))?;
    value.set_sensitive(true);
    Ok((HeaderName::from_static(name), value))
}

/// The URL without user, password and query, which may be secrets.
pub(crate) fn shown(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_once('/').map_or((rest, ""), |(a, p)| (a, p));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}/{path}")
        }
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{shown, without_user};

    #[test]
    fn user_and_password_of_a_url_become_a_header() {
        let check = |url: &str, plain: &str, value: Option<&str>| {
            let (found, header) = without_user(url).unwrap();
            assert_eq!(found, plain, "{url}");
            assert_eq!(header.as_ref().map(|(_, value)| value.to_str().unwrap()), value, "{url}");
        };
        check("http://h:1/a@b", "http://h:1/a@b", None);
        // "me:secret" and "me:p@ss"
        check("http://me:secret@h:1/a", "http://h:1/a", Some("Basic bWU6c2VjcmV0"));
        check("https://me:p%40ss@h?x=@", "https://h?x=@", Some("Basic bWU6cEBzcw=="));
    }

    #[test]
    fn secrets_of_a_url_are_not_in_messages() {
        assert_eq!(shown("http://me:secret@host:1/a?token=x"), "http://host:1/a");
        assert_eq!(shown("http://host"), "http://host/");
    }
}
