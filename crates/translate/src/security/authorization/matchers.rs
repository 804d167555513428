//! Envoy's matchers for policy values: `*`, `*suffix`, `prefix*` or exact text.
//! Literal text in a regular expression must be escaped with `regex_escape::escaped`.

use api::envoy::config::route::v3::HeaderMatcher;
use api::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use api::envoy::r#type::matcher::v3::metadata_matcher::{PathSegment, path_segment};
use api::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use api::envoy::r#type::matcher::v3::value_matcher::MatchPattern as ValuePattern;
use api::envoy::r#type::matcher::v3::{
    ListMatcher, MetadataMatcher, OrMatcher, RegexMatcher, StringMatcher, ValueMatcher, list_matcher,
};

use crate::regex_escape::escaped;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CaseMatch {
    Exact,
    Ignored,
}

/// Which spellings of a value match.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueSpelling {
    /// Only the configured one.
    Written,
    /// All that servers treat as the same.
    Any,
}

pub(super) fn exact(text: &str) -> StringMatcher {
    pattern(MatchPattern::Exact(text.to_owned()), CaseMatch::Exact)
}

pub(super) fn prefix(text: &str) -> StringMatcher {
    pattern(MatchPattern::Prefix(text.to_owned()), CaseMatch::Exact)
}

pub(super) fn suffix(text: &str) -> StringMatcher {
    pattern(MatchPattern::Suffix(text.to_owned()), CaseMatch::Exact)
}

pub(super) fn regex(expression: String) -> StringMatcher {
    let regex = RegexMatcher { regex: expression, ..RegexMatcher::default() };
    pattern(MatchPattern::SafeRegex(regex), CaseMatch::Exact)
}

/// Matches any non-empty text. A regex, because Envoy rejects an empty prefix.
pub(super) fn present() -> StringMatcher {
    regex(".+".to_owned())
}

/// Matches a policy value, with a fixed prefix that policies omit.
pub(super) fn text(value: &str, beginning: &str) -> StringMatcher {
    if value == "*" {
        return present();
    }
    if let Some(end) = value.strip_prefix('*') {
        let fixed = !beginning.is_empty();
        return if fixed { regex(format!("{beginning}.*{}", escaped(end))) } else { suffix(end) };
    }
    match value.strip_suffix('*') {
        Some(start) => prefix(&format!("{beginning}{start}")),
        None => exact(&format!("{beginning}{value}")),
    }
}

/// Matches a header's value, or its presence for `*`.
pub(super) fn header(name: &str, value: &str, case: CaseMatch) -> HeaderMatcher {
    let specifier = if value == "*" {
        HeaderMatchSpecifier::PresentMatch(true)
    } else {
        let found = if let Some(end) = value.strip_prefix('*') {
            MatchPattern::Suffix(end.to_owned())
        } else if let Some(start) = value.strip_suffix('*') {
            MatchPattern::Prefix(start.to_owned())
        } else {
            MatchPattern::Exact(value.to_owned())
        };
        HeaderMatchSpecifier::StringMatch(pattern(found, case))
    };
    HeaderMatcher { name: name.to_owned(), header_match_specifier: Some(specifier), ..HeaderMatcher::default() }
}

/// Matches a host, ignoring case and a trailing dot, with any port unless the value has one.
pub(super) fn host(header_name: &str, value: &str) -> HeaderMatcher {
    let (beginning, name) = match value.strip_prefix('*') {
        Some(end) => (".*", end),
        None => ("", value),
    };
    // A prefix match covers trailing dots and ports.
    if name.is_empty() || value.ends_with('*') {
        return header(header_name, value, CaseMatch::Ignored);
    }
    let is_port = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (name, port) = match name.rsplit_once(':').filter(|(_, port)| is_port(port)) {
        Some((name, port)) => (name, format!(":{port}")),
        None => (name, "(:[0-9]*)?".to_owned()),
    };
    let matcher = regex(format!("(?i){beginning}{}\\.?{port}", escaped(name.trim_end_matches('.'))));
    let specifier = Some(HeaderMatchSpecifier::StringMatch(matcher));
    HeaderMatcher { name: header_name.to_owned(), header_match_specifier: specifier, ..HeaderMatcher::default() }
}

/// Matches a path with or without a trailing slash.
pub(super) fn path(value: &str) -> StringMatcher {
    let (beginning, name) = match value.strip_prefix('*') {
        Some(end) => (".*", end),
        None => ("", value),
    };
    if name.is_empty() || value.ends_with('*') {
        return text(value, "");
    }
    regex(format!("{beginning}{}/?", escaped(name.trim_end_matches('/'))))
}

pub(super) fn value(matcher: StringMatcher) -> ValueMatcher {
    ValueMatcher { match_pattern: Some(ValuePattern::StringMatch(matcher)) }
}

/// Matches a list that contains such a value.
pub(super) fn list_of(matcher: ValueMatcher) -> ValueMatcher {
    let one_of = list_matcher::MatchPattern::OneOf(Box::new(matcher));
    let list = ListMatcher { match_pattern: Some(one_of) };
    ValueMatcher { match_pattern: Some(ValuePattern::ListMatch(Box::new(list))) }
}

/// Matches any of these.
pub(super) fn any_of(mut matchers: Vec<ValueMatcher>) -> ValueMatcher {
    if matchers.len() == 1 {
        return matchers.remove(0);
    }
    ValueMatcher { match_pattern: Some(ValuePattern::OrMatch(OrMatcher { value_matchers: matchers })) }
}

/// Matches a filter's dynamic metadata.
pub(super) fn metadata(filter: &str, path: &[&str], value: ValueMatcher) -> MetadataMatcher {
    let segment = |key: &&str| PathSegment { segment: Some(path_segment::Segment::Key((*key).to_owned())) };
    MetadataMatcher {
        filter: filter.to_owned(),
        path: path.iter().map(segment).collect(),
        value: Some(value),
        ..MetadataMatcher::default()
    }
}

fn pattern(pattern: MatchPattern, case: CaseMatch) -> StringMatcher {
    StringMatcher { ignore_case: case == CaseMatch::Ignored, match_pattern: Some(pattern) }
}

#[cfg(test)]
mod tests {
    use super::{HeaderMatchSpecifier, MatchPattern, StringMatcher, host, path};

    fn expression(matcher: &StringMatcher) -> &str {
        match &matcher.match_pattern {
            Some(MatchPattern::SafeRegex(regex)) => &regex.regex,
            Some(MatchPattern::Exact(text) | MatchPattern::Prefix(text) | MatchPattern::Suffix(text)) => text,
            _ => "",
        }
    }

    #[test]
    fn hole_14_other_spellings_of_hosts_and_paths_are_matched() {
        for (value, expected) in [
            ("admin.example", r"(?i)admin\.example\.?(:[0-9]*)?"),
            ("admin.example.", r"(?i)admin\.example\.?(:[0-9]*)?"),
            ("admin.example:8080", r"(?i)admin\.example\.?:8080"),
            ("*.example", r"(?i).*\.example\.?(:[0-9]*)?"),
            ("[::1]", r"(?i)\[::1\]\.?(:[0-9]*)?"),
            ("admin.*", "admin."),
        ] {
            let matcher = host(":authority", value);
            let Some(HeaderMatchSpecifier::StringMatch(matcher)) = &matcher.header_match_specifier else {
                panic!("{value}");
            };
            assert_eq!(expression(matcher), expected, "{value}");
        }
        assert_eq!(host("host", "*").header_match_specifier, Some(HeaderMatchSpecifier::PresentMatch(true)));
        for (value, expected) in [
            ("/admin", "/admin/?"),
            ("/admin/", "/admin/?"),
            ("/", "/?"),
            ("*/end", ".*/end/?"),
            ("/admin/*", "/admin/"),
        ] {
            assert_eq!(expression(&path(value)), expected, "{value}");
        }
    }
}
