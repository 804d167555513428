//! Newtypes for names: a `Namespace` cannot be passed where a `Hostname` is expected.
//! Host name rules (wildcards, matching) are in `host`.

use std::fmt;
use std::ops::Deref;

/// Shared, immutable text. One word wide where `Arc<str>` has two: an endpoint holds a dozen of them.
pub type Str = arcstr::ArcStr;

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(Str);

        impl $type {
            pub fn new(text: impl Into<Str>) -> Self {
                Self(text.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }

            pub fn text(&self) -> &Str {
                &self.0
            }
        }

        impl Deref for $type {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $type {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $type {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl Default for $type {
            fn default() -> Self {
                Self(Str::default())
            }
        }

        impl PartialEq<str> for $type {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }

        impl PartialEq<&str> for $type {
            fn eq(&self, other: &&str) -> bool {
                &*self.0 == *other
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

name! {
    /// A service's host name, possibly a wildcard (`*.example.com`).
    Hostname
}
name! {
    /// The namespace of an object or a proxy.
    Namespace
}
name! {
    /// A cluster (registry instance), such as `Kubernetes`.
    ClusterId
}
name! {
    /// A network; endpoints of another network are reached through its gateways.
    NetworkId
}

/// Identifies a service. Several namespaces may have a service of one host name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceKey {
    pub hostname: Hostname,
    pub namespace: Namespace,
}

/// Identifies a Secret or ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CredentialKey {
    pub kind: CredentialKind,
    pub namespace: Namespace,
    pub name: Str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CredentialKind {
    Secret,
    ConfigMap,
}
