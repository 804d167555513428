//! Dubbo's registration of providers: the key is `INTERFACE/providers/URL`, with the URL percent-encoded.

use percent_encoding::percent_decode_str;

use super::{MalformedValue, RegisteredInstance};

/// The folder of an interface with its providers.
pub(in crate::registry) const PROVIDERS: &str = "providers";
/// Children of Dubbo's root that are no interfaces.
pub(in crate::registry) const OTHER_FOLDERS: [&str; 3] = ["config", "mapping", "metadata"];
/// The weight that Dubbo gives by default.
const DEFAULT_WEIGHT: u32 = 100;

/// The instance of a provider. Its service is the interface, with version and group where it has them.
pub(in crate::registry) fn provider(interface: &str, encoded: &str) -> Result<RegisteredInstance, MalformedValue> {
    let url = percent_decode_str(encoded).decode_utf8().map_err(|_| "the URL is not UTF-8".to_owned())?;
    let (protocol, rest) = url.split_once("://").ok_or("expected a URL such as dubbo://HOST:PORT/INTERFACE")?;
    let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = location.split('/').next().unwrap_or_default();
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (address, port) = host_and_port(authority)?;
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let mut metadata: std::collections::BTreeMap<String, String> =
        pairs.map(|(key, value)| (decoded(key), decoded(value))).collect();
    let value = |key: &str| metadata.get(key).map_or("", String::as_str);
    let parts = [interface, value("version"), value("group")];
    let service = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
    let is_disabled = value("disabled") == "true" || value("enabled") == "false";
    let weight = value("weight").parse().unwrap_or(0);
    // Lists of methods are long, and no labels.
    metadata.retain(|key, _| !["methods", "interface", "pid", "timestamp"].contains(&key.as_str()));
    Ok(RegisteredInstance {
        service: service.into(),
        id: format!("{address}:{port}"),
        address: address.to_owned(),
        port,
        protocol: protocol.to_owned(),
        weight: if weight == DEFAULT_WEIGHT { 0 } else { weight },
        is_disabled,
        metadata,
    })
}

/// Host and port of `HOST:PORT`; brackets of IPv6 addresses are removed.
pub(in crate::registry) fn host_and_port(text: &str) -> Result<(&str, u16), MalformedValue> {
    let malformed = || format!("{text:?} is not HOST:PORT");
    let (host, port) = text.rsplit_once(':').ok_or_else(malformed)?;
    let host = host.trim_matches(['[', ']']);
    let port: u16 = port.parse().map_err(|_| malformed())?;
    if host.is_empty() || port == 0 { Err(malformed()) } else { Ok((host, port)) }
}

#[cfg(test)]
mod tests {
    use super::provider;

    #[test]
    fn a_provider_is_read_from_its_url() {
        let url = "tri%3A%2F%2F10.0.0.1%3A50051%2Fcom.shop.Cart%3Fversion%3D1.0.0%26group%3Dblue%26weight%3D50\
                   %26methods%3Dadd%2Cremove%26zone%3Da";
        let found = provider("com.shop.Cart", url).unwrap();
        assert_eq!(&*found.service, "com.shop.Cart.1.0.0.blue");
        assert_eq!((found.address.as_str(), found.port, found.protocol.as_str()), ("10.0.0.1", 50051, "tri"));
        assert_eq!((found.weight, found.is_disabled), (50, false));
        assert_eq!(found.metadata.get("zone").map(String::as_str), Some("a"));
        assert!(!found.metadata.contains_key("methods"));
    }

    #[test]
    fn addresses_and_flags() {
        let read = |url: &str| provider("a.B", url);
        assert!(read("dubbo%3A%2F%2F10.0.0.1%3A20880%2Fa.B%3Fdisabled%3Dtrue").unwrap().is_disabled);
        assert!(read("dubbo://10.0.0.1:20880/a.B?enabled=false").unwrap().is_disabled);
        assert_eq!(read("dubbo://[fd00::1]:20880/a.B").unwrap().address, "fd00::1");
        assert_eq!(read("rest://user:secret@web.example:80/a.B").unwrap().address, "web.example");
    }

    #[test]
    fn malformed_urls_are_refused() {
        for bad in ["", "10.0.0.1:80", "dubbo://10.0.0.1/a.B", "dubbo://:80/a.B", "dubbo://a:x/", "%FF%FE"] {
            assert!(provider("a.B", bad).is_err(), "{bad}");
        }
    }
}
