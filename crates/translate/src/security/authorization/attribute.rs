//! Attributes in AuthorizationPolicy conditions.

use model::names::{Namespace, Str};

/// One attribute of a request or connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attribute {
    Host,
    Method,
    Path,
    DestinationIp,
    DestinationPort,
    ServerName,
    /// Dynamic metadata: filter name and key.
    FilterMetadata(Str, Str),
    SourceIp,
    RemoteIp,
    Namespace,
    TrustDomain,
    /// With the policy's namespace, which is the default of names without one.
    ServiceAccount(Namespace),
    Principal,
    RequestPrincipal,
    Audience,
    Presenter,
    Header(Str),
    /// The path of a JWT claim.
    Claim(Vec<Str>),
}

impl Attribute {
    /// Parses a key of `when`; `namespace` is the policy's. `None` for an unknown key.
    pub fn parse(key: &str, namespace: &Namespace) -> Option<Attribute> {
        let plain = match key {
            "destination.ip" => Attribute::DestinationIp,
            "destination.port" => Attribute::DestinationPort,
            "connection.sni" => Attribute::ServerName,
            "source.ip" => Attribute::SourceIp,
            "remote.ip" => Attribute::RemoteIp,
            "source.namespace" => Attribute::Namespace,
            "source.trustDomain" => Attribute::TrustDomain,
            "source.serviceAccount" => Attribute::ServiceAccount(namespace.clone()),
            "source.principal" => Attribute::Principal,
            "request.auth.principal" => Attribute::RequestPrincipal,
            "request.auth.audiences" => Attribute::Audience,
            "request.auth.presenter" => Attribute::Presenter,
            _ => return Attribute::parse_keyed(key),
        };
        Some(plain)
    }

    fn parse_keyed(key: &str) -> Option<Attribute> {
        if let Some(rest) = key.strip_prefix("request.headers") {
            return in_brackets(rest).map(|name| Attribute::Header(name.into()));
        }
        if let Some(rest) = key.strip_prefix("request.auth.claims") {
            return claim_path(rest).map(Attribute::Claim);
        }
        let filter = key.strip_prefix("experimental.").filter(|k| k.starts_with("envoy.filters."))?;
        let (name, key) = filter.strip_suffix(']').unwrap_or(filter).split_once('[')?;
        Some(Attribute::FilterMetadata(name.into(), key.into()))
    }

    /// Whether it is an attribute of the operation rather than of the source.
    pub fn is_of_operation(&self) -> bool {
        matches!(
            self,
            Attribute::Host
                | Attribute::Method
                | Attribute::Path
                | Attribute::DestinationIp
                | Attribute::DestinationPort
                | Attribute::ServerName
                | Attribute::FilterMetadata(..)
        )
    }

    /// Whether servers treat several spellings as the same value.
    pub fn has_spellings(&self) -> bool {
        match self {
            Attribute::Host | Attribute::Path => true,
            Attribute::Header(name) => ["host", ":authority"].iter().any(|host| name.eq_ignore_ascii_case(host)),
            _ => false,
        }
    }

    /// Whether only HTTP requests have this attribute.
    pub fn is_http_only(&self) -> bool {
        matches!(
            self,
            Attribute::Host
                | Attribute::Method
                | Attribute::Path
                | Attribute::RequestPrincipal
                | Attribute::Audience
                | Attribute::Presenter
                | Attribute::Header(_)
                | Attribute::Claim(_)
        )
    }
}

fn in_brackets(text: &str) -> Option<&str> {
    text.strip_prefix('[')?.strip_suffix(']')
}

/// `[a][b]` is a path; any other text in one pair of brackets is a single name.
fn claim_path(text: &str) -> Option<Vec<Str>> {
    let inner = in_brackets(text)?;
    let parts: Vec<&str> = inner.split("][").collect();
    if parts.iter().any(|part| part.contains(['[', ']'])) {
        return Some(vec![inner.into()]);
    }
    Some(parts.into_iter().map(Str::from).collect())
}

#[cfg(test)]
mod tests {
    use super::Attribute;

    fn parse(key: &str) -> Option<Attribute> {
        Attribute::parse(key, &"shop".into())
    }

    #[test]
    fn keyed_attributes_carry_their_names() {
        assert_eq!(parse("request.headers[User-Agent]"), Some(Attribute::Header("User-Agent".into())));
        assert_eq!(parse("request.auth.claims[a][b]"), Some(Attribute::Claim(vec!["a".into(), "b".into()])));
        assert_eq!(parse("request.auth.claims[a[b]]"), Some(Attribute::Claim(vec!["a[b]".into()])));
        let metadata = Attribute::FilterMetadata("envoy.filters.network.mysql_proxy".into(), "db.table".into());
        assert_eq!(parse("experimental.envoy.filters.network.mysql_proxy[db.table]"), Some(metadata));
    }

    #[test]
    fn unknown_attributes_are_rejected() {
        for key in ["", "request.headers", "request.headers[", "source.planet", "experimental.envoy.filters.x"] {
            assert_eq!(parse(key), None, "{key}");
        }
    }
}
