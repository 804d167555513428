//! Envoy's matchers for the values that users write: `*`, `*suffix`, `prefix*` or the exact text.
//! Literal text goes into a regular expression only through `literal::quoted`.

use api::envoy::config::route::v3::HeaderMatcher;
use api::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use api::envoy::r#type::matcher::v3::metadata_matcher::{PathSegment, path_segment};
use api::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use api::envoy::r#type::matcher::v3::value_matcher::MatchPattern as ValuePattern;
use api::envoy::r#type::matcher::v3::{
    ListMatcher, MetadataMatcher, OrMatcher, RegexMatcher, StringMatcher, ValueMatcher, list_matcher,
};

use crate::literal::quoted;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    Exact,
    Ignored,
}

pub(super) fn exact(text: &str) -> StringMatcher {
    pattern(MatchPattern::Exact(text.to_owned()), Case::Exact)
}

pub(super) fn prefix(text: &str) -> StringMatcher {
    pattern(MatchPattern::Prefix(text.to_owned()), Case::Exact)
}

pub(super) fn suffix(text: &str) -> StringMatcher {
    pattern(MatchPattern::Suffix(text.to_owned()), Case::Exact)
}

pub(super) fn regex(expression: String) -> StringMatcher {
    let regex = RegexMatcher { regex: expression, ..RegexMatcher::default() };
    pattern(MatchPattern::SafeRegex(regex), Case::Exact)
}

/// Anything but nothing: Envoy refuses an empty prefix.
pub(super) fn present() -> StringMatcher {
    regex(".+".to_owned())
}

/// The value as written, after a fixed beginning that users leave out.
pub(super) fn text(value: &str, beginning: &str) -> StringMatcher {
    if value == "*" {
        return present();
    }
    if let Some(end) = value.strip_prefix('*') {
        let fixed = !beginning.is_empty();
        return if fixed { regex(format!("{beginning}.*{}", quoted(end))) } else { suffix(end) };
    }
    match value.strip_suffix('*') {
        Some(start) => prefix(&format!("{beginning}{start}")),
        None => exact(&format!("{beginning}{value}")),
    }
}

/// A header that is there, or has a value like this.
pub(super) fn header(name: &str, value: &str, case: Case) -> HeaderMatcher {
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

pub(super) fn value(matcher: StringMatcher) -> ValueMatcher {
    ValueMatcher { match_pattern: Some(ValuePattern::StringMatch(matcher)) }
}

/// A list that holds such a value.
pub(super) fn list_of(matcher: ValueMatcher) -> ValueMatcher {
    let one_of = list_matcher::MatchPattern::OneOf(Box::new(matcher));
    let list = ListMatcher { match_pattern: Some(one_of) };
    ValueMatcher { match_pattern: Some(ValuePattern::ListMatch(Box::new(list))) }
}

/// Any of these; one alone needs no wrapping.
pub(super) fn any_of(mut matchers: Vec<ValueMatcher>) -> ValueMatcher {
    if matchers.len() == 1 {
        return matchers.remove(0);
    }
    ValueMatcher { match_pattern: Some(ValuePattern::OrMatch(OrMatcher { value_matchers: matchers })) }
}

/// A value that a filter left in the request's metadata.
pub(super) fn metadata(filter: &str, path: &[&str], value: ValueMatcher) -> MetadataMatcher {
    let segment = |key: &&str| PathSegment { segment: Some(path_segment::Segment::Key((*key).to_owned())) };
    MetadataMatcher {
        filter: filter.to_owned(),
        path: path.iter().map(segment).collect(),
        value: Some(value),
        ..MetadataMatcher::default()
    }
}

fn pattern(pattern: MatchPattern, case: Case) -> StringMatcher {
    StringMatcher { ignore_case: case == Case::Ignored, match_pattern: Some(pattern) }
}
