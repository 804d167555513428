//! An encoded resource and its type URL: all that serving and the xDS protocol handle. A message is encoded once and
//! never decoded again.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::Body;

/// One encoded resource. Cloning it copies no bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Resource {
    pub name: Arc<str>,
    pub version: Version,
    /// The encoded message, to be wrapped in an `Any` of its type.
    pub body: Body,
}

impl Resource {
    /// Encodes a message; the version is the hash of its bytes.
    pub fn new(name: impl Into<Arc<str>>, message: &impl Message) -> Self {
        Self::encoded(name, message.encode_to_vec())
    }

    /// Like [`Resource::new`], for an encoded message.
    pub fn encoded(name: impl Into<Arc<str>>, body: impl Into<Body>) -> Self {
        let body = body.into();
        Self { name: name.into(), version: Version::of_pieces(body.pieces()), body }
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} ({} bytes)", self.name, self.version, self.body.len())
    }
}

/// A content hash: equal bytes have equal versions on every replica and after every restart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version(u64);

impl Version {
    /// The version of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxh3_64(bytes))
    }

    /// The version of these bytes, one after the other.
    fn of_pieces(pieces: &[Bytes]) -> Self {
        if let [whole] = pieces {
            return Self::of(whole);
        }
        let mut hasher = Xxh3::new();
        pieces.iter().for_each(|piece| hasher.update(piece));
        Self(hasher.digest())
    }

    /// Parses the format of `Display`; `None` for versions of other control planes.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        hex.then(|| u64::from_str_radix(text, 16).ok().map(Self))?
    }

    /// The hash as bytes, for combined hashes.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The type URL of a resource, as in requests and in `Any`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeUrl(Cow<'static, str>);

impl TypeUrl {
    pub const CLUSTER: Self = Self::constant("type.googleapis.com/envoy.config.cluster.v3.Cluster");
    pub const ENDPOINT: Self = Self::constant("type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment");
    pub const LISTENER: Self = Self::constant("type.googleapis.com/envoy.config.listener.v3.Listener");
    pub const ROUTE: Self = Self::constant("type.googleapis.com/envoy.config.route.v3.RouteConfiguration");
    pub const SECRET: Self = Self::constant("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret");
    pub const EXTENSION: Self = Self::constant("type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig");
    pub const NAME_TABLE: Self = Self::constant("type.googleapis.com/istio.networking.nds.v1.NameTable");
    pub const PROXY_CONFIG: Self = Self::constant("type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig");
    /// Sent by agents to report their workload's health; has no response.
    pub const HEALTH: Self = Self::constant("type.googleapis.com/istio.v1.HealthInformation");
    /// Debug pages over xDS; the page is the resource name or the rest of the type.
    pub const DEBUG: Self = Self::constant("istio.io/debug");
    pub const DEBUG_SYNCZ: Self = Self::constant("istio.io/debug/syncz");
    pub const DEBUG_CONFIG_DUMP: Self = Self::constant("istio.io/debug/config_dump");

    const fn constant(url: &'static str) -> Self {
        Self(Cow::Borrowed(url))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for the debug pages.
    pub fn is_debug(&self) -> bool {
        self.0.strip_prefix("istio.io/debug").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The usual abbreviation (`CDS`), or the whole type URL without one.
    pub fn short(&self) -> &str {
        ABBREVIATIONS.iter().find(|(url, _)| url == self).map_or(self.as_str(), |(_, short)| short)
    }
}

const ABBREVIATIONS: &[(TypeUrl, &str)] = &[
    (TypeUrl::CLUSTER, "CDS"),
    (TypeUrl::ENDPOINT, "EDS"),
    (TypeUrl::LISTENER, "LDS"),
    (TypeUrl::ROUTE, "RDS"),
    (TypeUrl::SECRET, "SDS"),
    (TypeUrl::EXTENSION, "ECDS"),
    (TypeUrl::NAME_TABLE, "NDS"),
    (TypeUrl::PROXY_CONFIG, "PCDS"),
];

impl From<String> for TypeUrl {
    /// Known types become their constant, so that they cost no memory per stream.
    fn from(url: String) -> Self {
        match ABBREVIATIONS.iter().find(|(known, _)| known.as_str() == url) {
            Some((known, _)) => known.clone(),
            None => Self(Cow::Owned(url)),
        }
    }
}

impl fmt::Display for TypeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TypeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short())
    }
}

#[cfg(test)]
mod tests {
    use prost::Name;

    use super::{Bytes, Resource, TypeUrl, Version};
    use crate::envoy::config::cluster::v3::Cluster;
    use crate::envoy::config::core::v3::TypedExtensionConfig;
    use crate::envoy::config::endpoint::v3::ClusterLoadAssignment;
    use crate::envoy::config::listener::v3::Listener;
    use crate::envoy::config::route::v3::RouteConfiguration;
    use crate::envoy::extensions::transport_sockets::tls::v3::Secret;
    use crate::nds::NameTable;

    #[test]
    fn constants_equal_the_type_urls_of_the_messages() {
        assert_eq!(TypeUrl::CLUSTER.as_str(), Cluster::type_url());
        assert_eq!(TypeUrl::ENDPOINT.as_str(), ClusterLoadAssignment::type_url());
        assert_eq!(TypeUrl::LISTENER.as_str(), Listener::type_url());
        assert_eq!(TypeUrl::ROUTE.as_str(), RouteConfiguration::type_url());
        assert_eq!(TypeUrl::SECRET.as_str(), Secret::type_url());
        assert_eq!(TypeUrl::EXTENSION.as_str(), TypedExtensionConfig::type_url());
        assert_eq!(TypeUrl::NAME_TABLE.as_str(), NameTable::type_url());
    }

    #[test]
    fn version_depends_on_content_only_and_survives_text() {
        let one = Resource::encoded("a", Bytes::from_static(b"same"));
        let two = Resource::encoded("b", Bytes::from_static(b"same"));
        assert_eq!(one.version, two.version);
        assert_eq!(Version::parse(&one.version.to_string()), Some(one.version));
    }

    #[test]
    fn versions_of_other_control_planes_do_not_parse() {
        for text in ["", "1", "2024-01-01T00:00:00Z/7", "+00000000000000f", "0123456789ABCDEF"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }

    #[test]
    fn debug_types_are_recognised_by_path_not_by_prefix() {
        assert!(TypeUrl::DEBUG.is_debug() && TypeUrl::DEBUG_SYNCZ.is_debug());
        assert!(!TypeUrl::from("istio.io/debugger".to_owned()).is_debug());
        assert_eq!(TypeUrl::from(TypeUrl::CLUSTER.to_string()).short(), "CDS");
    }
}
