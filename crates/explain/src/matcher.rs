//! Envoy's matchers of strings and headers.

use api::envoy::config::route::v3::HeaderMatcher;
use api::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use api::envoy::r#type::matcher::v3::StringMatcher;
use api::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use regex::RegexBuilder;

/// A matcher as text, such as `starts with "a"`.
pub(crate) fn described(matcher: &StringMatcher) -> String {
    let case = if matcher.ignore_case { " in any case" } else { "" };
    match &matcher.match_pattern {
        Some(MatchPattern::Exact(text)) => format!("is {text:?}{case}"),
        Some(MatchPattern::Prefix(text)) => format!("starts with {text:?}{case}"),
        Some(MatchPattern::Suffix(text)) => format!("ends with {text:?}{case}"),
        Some(MatchPattern::Contains(text)) => format!("contains {text:?}{case}"),
        Some(MatchPattern::SafeRegex(regex)) => format!("matches the regular expression {:?}", regex.regex),
        Some(MatchPattern::Custom(custom)) => format!("matches {}", custom.name),
        None => "matches nothing".to_owned(),
    }
}

pub(crate) fn is_match(matcher: &StringMatcher, value: &str) -> bool {
    let fold = |text: &str| if matcher.ignore_case { text.to_ascii_lowercase() } else { text.to_owned() };
    let value_folded = fold(value);
    match &matcher.match_pattern {
        Some(MatchPattern::Exact(text)) => value_folded == fold(text),
        Some(MatchPattern::Prefix(text)) => value_folded.starts_with(&fold(text)),
        Some(MatchPattern::Suffix(text)) => value_folded.ends_with(&fold(text)),
        Some(MatchPattern::Contains(text)) => value_folded.contains(&fold(text)),
        Some(MatchPattern::SafeRegex(regex)) => is_full_match(&regex.regex, value),
        Some(MatchPattern::Custom(_)) | None => false,
    }
}

/// Whether an expression matches all of a text. Envoy rejects expressions that do not compile, so none does here.
pub(crate) fn is_full_match(expression: &str, text: &str) -> bool {
    let whole = format!("^(?:{expression})$");
    RegexBuilder::new(&whole).dot_matches_new_line(false).build().is_ok_and(|regex| regex.is_match(text))
}

/// Why a header matcher does not match a header's value; `None` if it does.
pub(crate) fn header_mismatch(matcher: &HeaderMatcher, value: Option<&str>) -> Option<String> {
    let name = &matcher.name;
    let value = value.or(matcher.treat_missing_header_as_empty.then_some(""));
    let wanted = header_described(matcher);
    let not = if matcher.invert_match { "not " } else { "" };
    let had = value.map_or("it is missing".to_owned(), |value| format!("it is {value:?}"));
    let is_present_match = matches!(matcher.header_match_specifier, Some(HeaderMatchSpecifier::PresentMatch(_)) | None);
    let Some(value) = value else {
        // A missing header matches a negated matcher only where presence is what is asked for.
        let present_wanted = !matches!(matcher.header_match_specifier, Some(HeaderMatchSpecifier::PresentMatch(false)));
        let matches = is_present_match && (present_wanted == matcher.invert_match);
        return (!matches).then(|| format!("header {name} must {not}{wanted}; {had}"));
    };
    (header_matches(matcher, value) == matcher.invert_match).then(|| format!("header {name} must {not}{wanted}; {had}"))
}

fn header_matches(matcher: &HeaderMatcher, value: &str) -> bool {
    match &matcher.header_match_specifier {
        Some(HeaderMatchSpecifier::ExactMatch(text)) => value == text,
        Some(HeaderMatchSpecifier::PrefixMatch(text)) => value.starts_with(&**text),
        Some(HeaderMatchSpecifier::SuffixMatch(text)) => value.ends_with(&**text),
        Some(HeaderMatchSpecifier::ContainsMatch(text)) => value.contains(&**text),
        Some(HeaderMatchSpecifier::SafeRegexMatch(regex)) => is_full_match(&regex.regex, value),
        Some(HeaderMatchSpecifier::RangeMatch(range)) => {
            value.parse::<i64>().is_ok_and(|number| (range.start..range.end).contains(&number))
        }
        Some(HeaderMatchSpecifier::PresentMatch(present)) => *present,
        Some(HeaderMatchSpecifier::StringMatch(matcher)) => is_match(matcher, value),
        None => true,
    }
}

fn header_described(matcher: &HeaderMatcher) -> String {
    match &matcher.header_match_specifier {
        Some(HeaderMatchSpecifier::ExactMatch(text)) => format!("be {text:?}"),
        Some(HeaderMatchSpecifier::PrefixMatch(text)) => format!("start with {text:?}"),
        Some(HeaderMatchSpecifier::SuffixMatch(text)) => format!("end with {text:?}"),
        Some(HeaderMatchSpecifier::ContainsMatch(text)) => format!("contain {text:?}"),
        Some(HeaderMatchSpecifier::SafeRegexMatch(regex)) => format!("match the regular expression {:?}", regex.regex),
        Some(HeaderMatchSpecifier::RangeMatch(range)) => format!("be from {} to {}", range.start, range.end - 1),
        Some(HeaderMatchSpecifier::PresentMatch(false)) => "be missing".to_owned(),
        Some(HeaderMatchSpecifier::PresentMatch(true)) | None => "be present".to_owned(),
        Some(HeaderMatchSpecifier::StringMatch(matcher)) => match described(matcher).split_once(' ') {
            Some(("is", rest)) => format!("be {rest}"),
            Some((verb, rest)) => format!("{} {rest}", verb.trim_end_matches('s')),
            None => described(matcher),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{
        HeaderMatchSpecifier, HeaderMatcher, MatchPattern, StringMatcher, header_mismatch, is_full_match, is_match,
    };

    fn header(specifier: HeaderMatchSpecifier, invert_match: bool) -> HeaderMatcher {
        HeaderMatcher { name: "x".into(), invert_match, header_match_specifier: Some(specifier), ..Default::default() }
    }

    #[test]
    fn strings_match_as_in_envoy() {
        let matcher = |pattern, ignore_case| StringMatcher { ignore_case, match_pattern: Some(pattern) };
        assert!(is_match(&matcher(MatchPattern::Exact("Ab".into()), true), "aB"));
        assert!(!is_match(&matcher(MatchPattern::Exact("Ab".into()), false), "ab"));
        assert!(is_match(&matcher(MatchPattern::Contains("b".into()), false), "abc"));
        assert!(is_full_match("a|ab", "ab") && !is_full_match("a", "ab") && !is_full_match("(", "("));
    }

    #[test]
    fn headers_that_do_not_match_say_why() {
        let exact = header(HeaderMatchSpecifier::ExactMatch("a".into()), false);
        assert_eq!(header_mismatch(&exact, Some("a")), None);
        assert_eq!(header_mismatch(&exact, Some("b")).unwrap(), "header x must be \"a\"; it is \"b\"");
        assert_eq!(header_mismatch(&exact, None).unwrap(), "header x must be \"a\"; it is missing");
        let not = header(HeaderMatchSpecifier::ExactMatch("a".into()), true);
        assert_eq!(header_mismatch(&not, Some("b")), None);
        assert!(header_mismatch(&not, Some("a")).is_some());
        let absent = header(HeaderMatchSpecifier::PresentMatch(true), true);
        assert_eq!((header_mismatch(&absent, None), header_mismatch(&absent, Some("")).is_some()), (None, true));
        let prefix = StringMatcher { ignore_case: false, match_pattern: Some(MatchPattern::Prefix("v".into())) };
        let prefix = header(HeaderMatchSpecifier::StringMatch(prefix), false);
        assert_eq!(header_mismatch(&prefix, Some("x")).unwrap(), "header x must start with \"v\"; it is \"x\"");
    }
}
