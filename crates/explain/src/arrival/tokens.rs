//! RequestAuthentication: whether the jwt_authn filter accepts the tokens of a request. Signatures and times are not
//! checked: a token that names the right issuer and audience is taken to be valid.

use std::collections::BTreeMap;

use api::envoy::extensions::filters::http::jwt_authn::v3::jwt_requirement::RequiresType;
use api::envoy::extensions::filters::http::jwt_authn::v3::requirement_rule::RequirementType;
use api::envoy::extensions::filters::http::jwt_authn::v3::{JwtAuthentication, JwtProvider, JwtRequirement};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::request::Request;
use crate::route;

/// The tokens of a request, as far as a filter reads them.
#[derive(Debug, PartialEq)]
pub(super) enum TokenCheck {
    /// No rule of the filter applies, or no token is there and none is required.
    NoToken,
    /// Claims of a token that is accepted if its signature and times are valid.
    Accepted {
        issuer: String,
        claims: Value,
    },
    Rejected(String),
}

enum TokenState<'a> {
    Missing,
    Valid(&'a Value),
    Bad(String),
}

/// What the filter does with the request.
pub(super) fn check(filter: &JwtAuthentication, request: &Request) -> TokenCheck {
    let rule = filter.rules.iter().find(|rule| route::mismatch(rule.r#match.as_ref(), request).is_none());
    let requirement = match rule.and_then(|rule| rule.requirement_type.as_ref()) {
        Some(RequirementType::Requires(requirement)) => requirement,
        Some(RequirementType::RequirementName(name)) => match filter.requirement_map.get(name) {
            Some(requirement) => requirement,
            None => return TokenCheck::NoToken,
        },
        None => return TokenCheck::NoToken,
    };
    let tokens: BTreeMap<&str, Vec<Option<Value>>> =
        filter.providers.iter().map(|(name, provider)| (&**name, tokens_for(provider, request))).collect();
    let found = tokens.iter().map(|(name, tokens)| (*name, finding(&filter.providers[*name], tokens))).collect();
    if let Err(reason) = satisfied(requirement, &found, &[]) {
        return TokenCheck::Rejected(reason);
    }
    let valid = found.iter().find_map(|(name, finding)| match finding {
        TokenState::Valid(claims) => Some((filter.providers[*name].issuer.clone(), claims)),
        _ => None,
    });
    match valid {
        Some((issuer, claims)) => TokenCheck::Accepted { issuer, claims: (*claims).clone() },
        None => TokenCheck::NoToken,
    }
}

/// Whether a requirement is met; the error says why not. `siblings` are the providers of the enclosing list.
fn satisfied(
    requirement: &JwtRequirement,
    found: &BTreeMap<&str, TokenState<'_>>,
    siblings: &[&str],
) -> Result<(), String> {
    match &requirement.requires_type {
        Some(RequiresType::ProviderName(name)) => of_provider(found, name),
        Some(RequiresType::ProviderAndAudiences(both)) => of_provider(found, &both.provider_name),
        Some(RequiresType::RequiresAny(list)) => {
            let names: Vec<&str> = list.requirements.iter().filter_map(provider_of).collect();
            let mut first = Ok(());
            for requirement in &list.requirements {
                match satisfied(requirement, found, &names) {
                    Ok(()) => return Ok(()),
                    // The last reason is that of `allow_missing`; earlier ones say more.
                    Err(reason) if first.is_ok() => first = Err(reason),
                    Err(_) => {}
                }
            }
            first
        }
        Some(RequiresType::RequiresAll(list)) => {
            list.requirements.iter().try_for_each(|requirement| satisfied(requirement, found, siblings))
        }
        Some(RequiresType::AllowMissing(())) => {
            let bad = siblings.iter().filter_map(|name| found.get(name)).find_map(|finding| match finding {
                TokenState::Bad(reason) => Some(reason.clone()),
                _ => None,
            });
            bad.map_or(Ok(()), Err)
        }
        Some(RequiresType::AllowMissingOrFailed(()) | RequiresType::ExtractOnlyWithoutValidation(_)) | None => Ok(()),
    }
}

fn provider_of(requirement: &JwtRequirement) -> Option<&str> {
    match &requirement.requires_type {
        Some(RequiresType::ProviderName(name)) => Some(name),
        _ => None,
    }
}

fn of_provider(found: &BTreeMap<&str, TokenState<'_>>, name: &str) -> Result<(), String> {
    match found.get(name) {
        Some(TokenState::Valid(_)) => Ok(()),
        Some(TokenState::Bad(reason)) => Err(reason.clone()),
        Some(TokenState::Missing) | None => Err("a token is required, and there is none".to_owned()),
    }
}

fn finding<'a>(provider: &JwtProvider, tokens: &'a [Option<Value>]) -> TokenState<'a> {
    let mut finding = TokenState::Missing;
    for token in tokens {
        match acceptable(provider, token.as_ref()) {
            Ok(claims) => return TokenState::Valid(claims),
            Err(reason) => finding = TokenState::Bad(reason),
        }
    }
    finding
}

fn acceptable<'a>(provider: &JwtProvider, claims: Option<&'a Value>) -> Result<&'a Value, String> {
    let claims = claims.ok_or("the token is not a JWT")?;
    let issuer = claims["iss"].as_str().unwrap_or_default();
    if !provider.issuer.is_empty() && issuer != provider.issuer {
        return Err(format!("issuer {issuer:?} of the token is not {:?}", provider.issuer));
    }
    let audiences: Vec<&str> = match &claims["aud"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    // Envoy ignores the scheme and a slash at the end.
    let plain = |text: &str| {
        let text = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
        text.trim_end_matches('/').to_owned()
    };
    let is_wanted = |one: &&str| provider.audiences.iter().any(|wanted| plain(wanted) == plain(one));
    if !provider.audiences.is_empty() && !audiences.iter().any(is_wanted) {
        return Err(format!("the token is for {audiences:?}, not for {:?}", provider.audiences));
    }
    Ok(claims)
}

/// Claims of the tokens at the places where a provider looks; `None` for a text that is no token.
fn tokens_for(provider: &JwtProvider, request: &Request) -> Vec<Option<Value>> {
    let mut texts: Vec<String> = Vec::new();
    let is_default =
        provider.from_headers.is_empty() && provider.from_params.is_empty() && provider.from_cookies.is_empty();
    if is_default {
        let bearer = request.value("authorization");
        texts.extend(bearer.and_then(|text| Some(text.strip_prefix("Bearer ")?.to_owned())));
    }
    for header in &provider.from_headers {
        let value = request.value(&header.name);
        texts.extend(value.and_then(|text| Some(text.strip_prefix(&header.value_prefix)?.trim().to_owned())));
    }
    let default_parameter = is_default.then(|| "access_token".to_owned());
    for name in provider.from_params.iter().chain(&default_parameter) {
        texts.extend(request.query().filter(|(key, _)| key == name).map(|(_, value)| value.to_owned()));
    }
    let cookies = request.value("cookie").unwrap_or_default();
    for (name, value) in cookies.split(';').filter_map(|pair| pair.trim().split_once('=')) {
        if provider.from_cookies.iter().any(|wanted| wanted == name) {
            texts.push(value.to_owned());
        }
    }
    texts.iter().map(|text| claims_of(text, provider)).collect()
}

/// The claims of a JWT, with those that are lists in one text split as the filter does.
fn claims_of(token: &str, provider: &JwtProvider) -> Option<Value> {
    let mut parts = token.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    let bytes = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    let mut claims: Value = serde_json::from_slice(&bytes).ok()?;
    let split = provider.normalize_payload_in_metadata.iter().flat_map(|n| &n.space_delimited_claims);
    for name in split {
        let list = claims[name].as_str().map(|text| text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        if let (Some(list), Some(fields)) = (list, claims.as_object_mut()) {
            fields.insert(name.clone(), list.into());
        }
    }
    claims.is_object().then_some(claims)
}

#[cfg(test)]
mod tests {
    use api::envoy::config::route::v3::RouteMatch;
    use api::envoy::config::route::v3::route_match::PathSpecifier;
    use api::envoy::extensions::filters::http::jwt_authn::v3::{JwtRequirementOrList, RequirementRule};
    use serde_json::json;

    use super::*;

    fn required(kind: RequiresType) -> JwtRequirement {
        JwtRequirement { requires_type: Some(kind) }
    }

    /// A valid token of the issuer, or none.
    fn filter() -> JwtAuthentication {
        let provider =
            JwtProvider { issuer: "https://a".into(), audiences: vec!["shop".into()], ..JwtProvider::default() };
        let list = vec![required(RequiresType::ProviderName("p".into())), required(RequiresType::AllowMissing(()))];
        let any = required(RequiresType::RequiresAny(JwtRequirementOrList { requirements: list }));
        let all = RouteMatch { path_specifier: Some(PathSpecifier::Prefix("/".into())), ..RouteMatch::default() };
        let rule = RequirementRule { r#match: Some(all), requirement_type: Some(RequirementType::Requires(any)) };
        JwtAuthentication {
            providers: BTreeMap::from([("p".to_owned(), provider)]),
            rules: vec![rule],
            ..JwtAuthentication::default()
        }
    }

    fn sent(token: Option<Value>) -> TokenCheck {
        let mut request = Request::new("GET", "http://a/").unwrap();
        if let Some(claims) = token {
            let text = match claims {
                Value::String(text) => text,
                claims => format!("e30.{}.x", URL_SAFE_NO_PAD.encode(claims.to_string())),
            };
            request.header(&format!("Authorization: Bearer {text}")).unwrap();
        }
        check(&filter(), &request)
    }

    #[test]
    fn tokens_must_fit_if_there_are_any() {
        assert_eq!(sent(None), TokenCheck::NoToken);
        let good = json!({"iss": "https://a", "aud": ["x", "https://shop/"], "sub": "ann"});
        assert_eq!(sent(Some(good.clone())), TokenCheck::Accepted { issuer: "https://a".into(), claims: good });
        for (token, expected) in [
            (json!("abc"), "the token is not a JWT"),
            (json!({"iss": "b", "aud": "shop"}), "issuer \"b\" of the token is not \"https://a\""),
            (json!({"iss": "https://a", "aud": "other"}), "the token is for [\"other\"], not for [\"shop\"]"),
        ] {
            assert_eq!(sent(Some(token)), TokenCheck::Rejected(expected.into()));
        }
    }
}
