//! Rules of HTTP headers: names that may be matched or changed, and values with Envoy's command operators.

use api::istio::networking::v1alpha3::Headers;
use api::istio::networking::v1alpha3::headers::HeaderOperations;

use super::report::{Report, Rule, Violation};

const PSEUDO_HEADERS: &[&str] = &[":method", ":scheme", ":authority", ":path", ":status"];

/// Whether a header match is for a JWT claim: `@request.auth.claims.x` or `@request.auth.claims[x]`.
pub(super) fn is_jwt_claim(name: &str) -> bool {
    const PREFIX: &str = "@request.auth.claims";
    let Some((head, rest)) = name.split_at_checked(PREFIX.len()) else {
        return false;
    };
    head.eq_ignore_ascii_case(PREFIX)
        && ((rest.starts_with('.') && rest.len() > 1)
            || (rest.starts_with('[') && rest.ends_with(']') && rest.len() > 2))
}

/// A token of RFC 7230.
fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn not_empty(name: &str) -> Rule {
    if name.is_empty() { Err(Violation::from("header name cannot be empty".to_owned())) } else { Ok(()) }
}

fn valid(name: &str, fits: bool) -> Rule {
    not_empty(name)?;
    if fits { Ok(()) } else { Err(Violation::from(format!("header name {name} is not a valid header name"))) }
}

/// A header that a route matches on.
pub(super) fn matched_name(name: &str) -> Rule {
    valid(name, is_jwt_claim(name) || PSEUDO_HEADERS.contains(&name) || is_token(name))
}

/// A header that CORS allows or exposes.
pub(super) fn cors_name(name: &str) -> Rule {
    valid(name, name == "*" || is_token(name))
}

/// A header for JWT claims; stricter than HTTP for compatibility.
pub(super) fn strict_name(name: &str) -> Rule {
    valid(name, name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)))
}

/// A header of a probe, by the rules of Kubernetes.
pub(super) fn probe_name(name: &str) -> Rule {
    valid(name, name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
}

pub(super) fn is_authority(name: &str) -> bool {
    name.eq_ignore_ascii_case(":authority") || name.eq_ignore_ascii_case("host")
}

fn no_colon(name: &str) -> Rule {
    match name.starts_with(':') {
        true => Err(Violation::from(format!("invalid header {name:?}: header cannot have \":\" prefix"))),
        false => Ok(()),
    }
}

/// A request header that is set or added: `host` is allowed, other pseudo-headers are not.
fn request_operation(name: &str) -> Rule {
    not_empty(name)?;
    if is_authority(name) { Ok(()) } else { no_colon(name) }
}

/// A header that is removed, or changed in a response.
fn operation(name: &str) -> Rule {
    not_empty(name)?;
    if name.eq_ignore_ascii_case("host") {
        return Err(Violation::from(format!("invalid header {name:?}: cannot set Host header")));
    }
    no_colon(name)
}

/// Header changes of a route or destination.
pub(super) fn changes(headers: &Headers, report: &mut Report) {
    report.given("request", headers.request.as_ref(), |report, changes| operations(changes, request_operation, report));
    report.given("response", headers.response.as_ref(), |report, changes| operations(changes, operation, report));
}

fn operations(changes: &HeaderOperations, written: fn(&str) -> Rule, report: &mut Report) {
    for (name, text) in changes.add.iter().chain(&changes.set) {
        report.check(written(name));
        report.check(value(text));
    }
    for name in &changes.remove {
        report.check(operation(name));
    }
}

/// A value without control characters, whose `%OPERATORS(...)%` are complete. Envoy checks their content.
fn value(text: &str) -> Rule {
    if text.chars().any(|c| (c < ' ' && c != '\t') || c == '\u{7f}') {
        return Err(Violation::from(format!("header value configuration {text} is invalid")));
    }
    variables(text)
        .map_err(|why| Violation::from(format!("header value configuration: invalid header configuration. {why}")))
}

/// Parser state within a header value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeaderState {
    Literal,
    Name,
    ExpectArray,
    ExpectText,
    Text,
    ExpectDelimiter,
    ExpectParenthesis,
    ExpectPercent,
}

/// Parses command operators as Envoy does.
fn variables(text: &str) -> Rule {
    let mut state = HeaderState::Literal;
    let mut bytes = text.bytes().peekable();
    while let Some(byte) = bytes.next() {
        state = match (state, byte) {
            (HeaderState::Literal, b'%') => match bytes.peek() {
                None => return Err(Violation::from("Un-escaped %".to_owned())),
                Some(b'%') => {
                    bytes.next();
                    HeaderState::Literal
                }
                Some(_) => HeaderState::Name,
            },
            (HeaderState::Text, b'\\') if bytes.next().is_none() => {
                return Err(Violation::from("Un-terminated backslash in JSON string".to_owned()));
            }
            (state, byte) => following(state, byte)?,
        };
    }
    match state {
        HeaderState::Literal => Ok(()),
        _ => Err(Violation::from(format!("Un-terminated variable expression '{text}'"))),
    }
}

fn following(state: HeaderState, byte: u8) -> Result<HeaderState, Violation> {
    Ok(match (state, byte) {
        (HeaderState::Name | HeaderState::ExpectPercent, b'%') => HeaderState::Literal,
        (HeaderState::Name, b'(') => HeaderState::ExpectArray,
        (HeaderState::ExpectArray, b'[') | (HeaderState::ExpectDelimiter, b',') => HeaderState::ExpectText,
        (HeaderState::ExpectDelimiter, b']') => HeaderState::ExpectParenthesis,
        (HeaderState::ExpectText, b'"') => HeaderState::Text,
        (HeaderState::Text | HeaderState::ExpectParenthesis, b')') => HeaderState::ExpectPercent,
        (HeaderState::Text, b'"') => HeaderState::ExpectDelimiter,
        (HeaderState::Literal | HeaderState::Name | HeaderState::Text, _) | (_, b' ') => state,
        (HeaderState::ExpectArray, _) => HeaderState::Text,
        (HeaderState::ExpectDelimiter, _) => {
            return Err(Violation::from("Expecting ',', ']', or whitespace".to_owned()));
        }
        (HeaderState::ExpectText, _) => return Err(Violation::from("Expecting '\"'".to_owned())),
        (HeaderState::ExpectParenthesis, _) => return Err(Violation::from("Expecting ')' or whitespace".to_owned())),
        (HeaderState::ExpectPercent, _) => return Err(Violation::from("Expecting '%' or whitespace after".to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::{is_jwt_claim, matched_name, operation, request_operation, value};

    #[test]
    fn variables_must_be_complete() {
        for good in [
            "",
            "foo",
            "%HOSTNAME%",
            "100%%",
            "a %HOSTNAME% b",
            "%REQ(x)%",
            "%UPSTREAM_METADATA([\"a\", \"b\"])%",
            "%DYNAMIC_METADATA( [\"a\" ] ) %",
            "%START_TIME(%s)%",
            "ünïcode",
        ] {
            assert_eq!(value(good), Ok(()), "{good}");
        }
        for bad in [
            "abc%123",
            "%START_TIME%%",
            "%",
            "%A([x])%",
            "%A([\"x\"y])%",
            "%A([\"x\"]y)%",
            "%A(x)y%",
            "%A(\\",
            "a\nb",
            "a\u{7f}",
        ] {
            assert!(value(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn host_may_be_set_but_not_removed() {
        assert!(request_operation("Host").is_ok() && request_operation(":authority").is_ok());
        assert!(request_operation(":path").is_err() && request_operation("").is_err());
        assert!(operation("host").is_err() && operation(":path").is_err() && operation("x-a").is_ok());
    }

    #[test]
    fn claims_and_pseudo_headers_can_be_matched() {
        assert!(is_jwt_claim("@request.auth.claims.a") && is_jwt_claim("@Request.Auth.Claims[a][b]"));
        assert!(!is_jwt_claim("@request.auth.claims") && !is_jwt_claim("@request.auth.claims[]") && !is_jwt_claim("ü"));
        assert!(matched_name(":path").is_ok() && matched_name("x-a").is_ok() && matched_name("a b").is_err());
    }
}
