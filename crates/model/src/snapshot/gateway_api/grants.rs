//! ReferenceGrants: references across namespaces.

use std::collections::BTreeSet;

use crate::config::gateway_api::GROUP;
use crate::config::{Kind, Spec};
use crate::snapshot::objects::Objects;

/// One permission: from a kind in a namespace to a kind, and perhaps a name, in another namespace.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Grant {
    from: (String, String),
    to: (String, String),
    /// All objects of the kind if unset.
    name: Option<String>,
}

/// All ReferenceGrants.
#[derive(Debug, Default)]
pub(super) struct Grants(BTreeSet<Grant>);

const FROM: &[&str] = &["Gateway", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "ListenerSet"];
/// Groups and kinds that can be granted.
const TO: &[(&str, &str)] = &[("", "ConfigMap"), ("", "Secret"), ("", "Service"), (INFERENCE_GROUP, "InferencePool")];
pub(super) const INFERENCE_GROUP: &str = "inference.networking.k8s.io";

impl Grants {
    pub(super) fn new(objects: &Objects) -> Grants {
        let mut grants = BTreeSet::new();
        for object in objects.of(Kind::ReferenceGrant) {
            let Spec::ReferenceGrant(spec) = &object.spec else { continue };
            let from = spec.from.iter().filter(|f| f.group == GROUP && FROM.contains(&f.kind.as_str()));
            for from in from {
                for to in spec.to.iter().filter(|t| is_known(&t.group, &t.kind)) {
                    grants.insert(Grant {
                        from: (from.kind.clone(), from.namespace.clone()),
                        to: (to.kind.clone(), object.meta.namespace.to_string()),
                        name: to.name.clone(),
                    });
                }
            }
        }
        Grants(grants)
    }

    /// Whether objects of kind and namespace `from` may refer to this object.
    pub(super) fn admit(&self, from: (Kind, &str), to: (&str, &str), name: &str) -> bool {
        let grant = |name: Option<&str>| Grant {
            from: (from.0.as_str().to_owned(), from.1.to_owned()),
            to: (to.0.to_owned(), to.1.to_owned()),
            name: name.map(str::to_owned),
        };
        self.0.contains(&grant(None)) || self.0.contains(&grant(Some(name)))
    }
}

/// Whether grants to this kind are supported.
pub(super) fn is_known(group: &str, kind: &str) -> bool {
    TO.contains(&(group, kind))
}
