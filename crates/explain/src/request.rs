//! The request to follow, from a method, a URL and headers.

use std::net::IpAddr;

/// A request as Envoy sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub method: String,
    pub scheme: String,
    /// Host and port as in the `Host` header; the default port is left out.
    pub authority: String,
    pub port: u16,
    /// Path with its query.
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Addresses that the host resolves to, if known. A sidecar selects its listener by them.
    pub addresses: Vec<IpAddr>,
}

/// Why a request cannot be followed.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum RequestError {
    #[error("{0}: not a URL with http:// or https:// and a host")]
    Url(String),
    #[error("{0}: not a port")]
    Port(String),
    #[error("{0}: not a header of the form NAME: VALUE")]
    Header(String),
}

impl Request {
    /// A request with this method and URL.
    pub fn new(method: &str, url: &str) -> Result<Request, RequestError> {
        let bad = || RequestError::Url(url.to_owned());
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        let default = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return Err(bad()),
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, path) = rest.split_at(end);
        if host.is_empty() || host.contains('@') {
            return Err(bad());
        }
        let (name, port) = split_port(host);
        let port = match port {
            Some(text) => text.parse().map_err(|_| RequestError::Port(text.to_owned()))?,
            None => default,
        };
        let authority = if port == default { name.to_owned() } else { host.to_owned() };
        let slash = if path.starts_with('/') { "" } else { "/" };
        let path = format!("{slash}{}", path.split('#').next().unwrap_or_default());
        let (method, scheme, headers) = (method.to_uppercase(), scheme.to_owned(), Vec::new());
        let addresses = name.trim_matches(['[', ']']).parse().into_iter().collect();
        Ok(Request { method, scheme, authority, port, path, headers, addresses })
    }

    /// Adds a header of the form `name: value`. `Host` replaces the authority.
    pub fn header(&mut self, text: &str) -> Result<(), RequestError> {
        let bad = || RequestError::Header(text.to_owned());
        let (name, value) = text.split_once(':').ok_or_else(bad)?;
        let (name, value) = (name.trim().to_lowercase(), value.trim().to_owned());
        match &*name {
            "" => return Err(bad()),
            "host" => self.authority = value,
            _ => self.headers.push((name, value)),
        }
        Ok(())
    }

    /// The host without a port.
    pub fn host(&self) -> &str {
        split_port(&self.authority).0
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.scheme == "https"
    }

    /// The path without its query.
    pub(crate) fn plain_path(&self) -> &str {
        self.path.split('?').next().unwrap_or_default()
    }

    /// Query parameters in their order.
    pub(crate) fn query(&self) -> impl Iterator<Item = (&str, &str)> {
        let query = self.path.split_once('?').map_or("", |(_, query)| query);
        query.split('&').filter(|part| !part.is_empty()).map(|part| part.split_once('=').unwrap_or((part, "")))
    }

    /// The value of a header or pseudo-header; repeated headers are joined as Envoy does.
    pub(crate) fn value(&self, name: &str) -> Option<String> {
        let name = name.to_lowercase();
        match &*name {
            ":method" => Some(self.method.clone()),
            ":path" => Some(self.path.clone()),
            ":scheme" => Some(self.scheme.clone()),
            ":authority" | "host" => Some(self.authority.clone()),
            _ => {
                let values: Vec<&str> =
                    self.headers.iter().filter(|(key, _)| *key == name).map(|(_, value)| &**value).collect();
                (!values.is_empty()).then(|| values.join(","))
            }
        }
    }
}

/// Host and port of an authority. An IPv6 address keeps its brackets.
pub(crate) fn split_port(authority: &str) -> (&str, Option<&str>) {
    let after_address = authority.rfind(']').unwrap_or(0);
    match authority[after_address..].rfind(':') {
        Some(at) => (&authority[..after_address + at], Some(&authority[after_address + at + 1..])),
        None => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use super::{Request, RequestError, split_port};

    #[test]
    fn urls_are_split() {
        let request = Request::new("get", "http://cart.shop:8080/items?id=7&x#top").unwrap();
        assert_eq!((&*request.method, &*request.authority, request.port), ("GET", "cart.shop:8080", 8080));
        assert_eq!((request.path.as_str(), request.host()), ("/items?id=7&x", "cart.shop"));
        assert_eq!(request.query().collect::<Vec<_>>(), [("id", "7"), ("x", "")]);
        let plain = Request::new("GET", "https://cart.shop:443").unwrap();
        assert_eq!((&*plain.authority, &*plain.path, plain.port), ("cart.shop", "/", 443));
        assert_eq!(
            Request::new("GET", "http://[::1]:90/").unwrap().addresses,
            ["::1".parse::<std::net::IpAddr>().unwrap()]
        );
        assert_eq!(split_port("[fd00::1]"), ("[fd00::1]", None));
    }

    #[test]
    fn mistakes_are_named() {
        for url in ["cart.shop", "ftp://cart", "http://", "http://a@b/"] {
            assert_eq!(Request::new("GET", url), Err(RequestError::Url(url.to_owned())));
        }
        assert_eq!(Request::new("GET", "http://a:x/"), Err(RequestError::Port("x".to_owned())));
        let mut request = Request::new("GET", "http://a/").unwrap();
        assert_eq!(request.header("no colon"), Err(RequestError::Header("no colon".to_owned())));
        request.header("X-User: ann").unwrap();
        request.header("x-user: bob").unwrap();
        request.header("Host: b:8080").unwrap();
        assert_eq!(request.value("X-USER"), Some("ann,bob".to_owned()));
        assert_eq!((request.value(":authority"), request.port), (Some("b:8080".to_owned()), 80));
    }
}
