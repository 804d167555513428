//! Which revision of the control plane owns an object: the one of its label, else of its namespace's label, else the default
//! one. A label may name a tag, which Services and webhook configurations define as upstream's tools write them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use model::config::{Kind, Meta, Object};
use model::labels::Labels;
use model::names::Str;

use super::{ClusterState, NamespacedName};
use crate::kubernetes::collection::Collection;
use crate::kubernetes::schema;

const REVISION: &str = "istio.io/rev";
/// The label with the name of a tag.
pub(in crate::kubernetes) const TAG: &str = "istio.io/tag";
/// The ValidatingWebhookConfiguration whose label names the default revision.
pub(in crate::kubernetes) const DEFAULT_VALIDATOR: &str = "istiod-default-validator";
/// The revision of a control plane that was installed without one, and the tag of objects without a label.
const DEFAULT: &str = "default";

/// The tags of all revisions.
#[derive(Clone, Debug, Default)]
pub(super) struct RevisionTags {
    /// By collection and name of the object that defines the tag.
    tags: BTreeMap<(Collection, NamespacedName), RevisionTag>,
    /// As the validating webhook says. A tag `default` has precedence.
    default_revision: Option<Str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RevisionTag {
    tag: Str,
    revision: Str,
}

impl RevisionTags {
    /// Records the labels of an object; `None` if it is gone. Returns whether a tag changed.
    fn put(&mut self, collection: &Collection, name: &NamespacedName, labels: Option<&Labels>) -> bool {
        let label = |key: &str| labels.and_then(|all| all.get(key)).filter(|value| !value.is_empty()).cloned();
        if *collection == Collection::DefaultRevision {
            let revision = label(REVISION);
            let is_changed = self.default_revision != revision;
            self.default_revision = revision;
            return is_changed;
        }
        let key = (collection.clone(), name.clone());
        let tag = label(TAG).zip(label(REVISION)).map(|(tag, revision)| RevisionTag { tag, revision });
        let before = match tag.clone() {
            Some(tag) => self.tags.insert(key, tag),
            None => self.tags.remove(&key),
        };
        before != tag
    }

    /// Names of the known objects of a collection.
    pub(super) fn names(&self, collection: &Collection) -> Vec<NamespacedName> {
        if *collection == Collection::DefaultRevision {
            return self.default_revision.iter().map(|_| (Default::default(), DEFAULT_VALIDATOR.into())).collect();
        }
        self.tags.keys().filter(|(of, _)| of == collection).map(|(_, name)| name.clone()).collect()
    }

    /// Whether a revision owns objects with this label; an empty one means no label.
    fn owns(&self, revision: &str, label: &str) -> bool {
        let refers_to_it =
            |name: &str| *name == *revision || self.tags.values().any(|t| *t.tag == *name && *t.revision == *revision);
        if !label.is_empty() {
            return refers_to_it(label);
        }
        let has_default_tag = self.tags.values().any(|t| *t.tag == *DEFAULT);
        refers_to_it(DEFAULT) || !has_default_tag && self.default_revision.as_deref() == Some(revision)
    }
}

impl ClusterState {
    /// Records a webhook configuration.
    pub(super) fn put_webhook(&mut self, collection: &Collection, meta: &ObjectMeta) {
        let name = self.name_of(meta);
        self.put_revision_tag(collection, &name, Some(&schema::labels(meta)));
    }

    /// Records the labels of an object that may define a tag; `None` if it is gone. Of Services only those of the control
    /// plane's namespace count.
    pub(super) fn put_revision_tag(&mut self, collection: &Collection, name: &NamespacedName, labels: Option<&Labels>) {
        let is_ours = *collection != Collection::Service || name.0 == self.options.system_namespace;
        if is_ours && self.revisions.put(collection, name, labels) {
            self.documents.touch_all();
        }
    }

    /// Whether this revision reads an object. Gateways of all revisions are read: after a change of the label the proxies of
    /// the old deployment serve until those of the new one are ready.
    pub(super) fn is_in_revision(&self, object: &Object) -> bool {
        let own = &self.options.revision;
        let label = object.meta.labels.get(REVISION);
        own.is_empty() || label.is_none_or(|label| label == own) || object.spec.kind() == Kind::KubernetesGateway
    }

    /// Whether this revision writes the status of an object and deploys it.
    pub(super) fn owns(&self, meta: &Meta) -> bool {
        let own = &self.options.revision;
        if own.is_empty() {
            return true;
        }
        let label = meta.labels.get(REVISION).or_else(|| self.namespaces.get(&meta.namespace)?.labels.get(REVISION));
        match label {
            Some(label) => self.revisions.owns(own, label),
            // Objects of the whole cluster are everyone's, as are those whose namespace is not known.
            None if !self.namespaces.contains_key(&meta.namespace) => true,
            None => self.revisions.owns(own, ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::change::Change;
    use model::settings::Settings;
    use serde_json::{Value, json};

    use super::{DEFAULT_VALIDATOR, REVISION, TAG};
    use crate::kubernetes::collection::Collection;
    use crate::kubernetes::join::{ClusterOptions, ClusterState};
    use crate::kubernetes::schema::{ClusterObject, WebhookObject};

    const GATEWAY: (&str, &str) = ("gateway.networking.k8s.io/v1", "Gateway");
    const ROUTE: (&str, &str) = ("gateway.networking.k8s.io/v1", "HTTPRoute");

    fn cluster(revision: &str) -> ClusterState {
        let settings = Settings::default();
        let options = ClusterOptions { revision: revision.into(), ..ClusterOptions::own(&settings) };
        ClusterState::new(options, settings)
    }

    /// Labels with a value; `""` is none.
    fn labels(all: &[(&str, &str)]) -> Value {
        let all = all.iter().filter(|(_, value)| !value.is_empty());
        all.map(|(key, value)| ((*key).to_owned(), json!(value))).collect::<serde_json::Map<_, _>>().into()
    }

    fn namespace(cluster: &mut ClusterState, revision: &str) {
        let metadata = json!({"name": "shop", "labels": labels(&[(REVISION, revision)])});
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        cluster.apply(ClusterObject::read(object).unwrap());
    }

    fn webhook(name: &str, tag: &str, revision: &str) -> WebhookObject {
        let metadata = json!({"name": name, "labels": labels(&[(TAG, tag), (REVISION, revision)])});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn service(cluster: &mut ClusterState, namespace: &str, tag: &str, revision: &str) {
        let labels = labels(&[(TAG, tag), (REVISION, revision)]);
        let metadata = json!({"name": format!("tag-{tag}"), "namespace": namespace, "labels": labels});
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata});
        cluster.apply(ClusterObject::read(object).unwrap());
    }

    fn put(cluster: &mut ClusterState, (version, kind): (&str, &str), revision: &str) {
        let metadata = json!({"name": "front", "namespace": "shop", "labels": labels(&[(REVISION, revision)])});
        let object = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {}});
        cluster.apply(ClusterObject::read(object).unwrap());
    }

    /// Whether the only object is owned; `None` if there is no change of it.
    fn owned(cluster: &mut ClusterState) -> Option<bool> {
        cluster.changes().into_iter().find_map(|change| match change {
            Change::Applied(object) => Some(!object.meta.is_of_other_revision),
            _ => None,
        })
    }

    #[test]
    fn gateways_of_other_revisions_are_read_but_left_to_them() {
        let mut cluster = cluster("new");
        for (revision, expected) in [("new", true), ("old", false), ("new", true)] {
            put(&mut cluster, GATEWAY, revision);
            assert_eq!(owned(&mut cluster), Some(expected));
        }
        let rule = ("networking.istio.io/v1", "Gateway");
        put(&mut cluster, rule, "new");
        assert_eq!(owned(&mut cluster), Some(true));
        put(&mut cluster, rule, "old");
        assert_eq!(owned(&mut cluster), None);
    }

    #[test]
    fn an_object_without_a_label_belongs_to_the_revision_of_its_namespace_else_to_the_default_one() {
        let owners = |object: &str, in_namespace: &str| {
            ["", "default", "next"].map(|revision| {
                let mut cluster = cluster(revision);
                namespace(&mut cluster, in_namespace);
                put(&mut cluster, GATEWAY, object);
                owned(&mut cluster).unwrap()
            })
        };
        assert_eq!(owners("", ""), [true, true, false]);
        assert_eq!(owners("", "next"), [true, false, true]);
        assert_eq!(owners("", "default"), [true, true, false]);
        assert_eq!(owners("default", "next"), [true, true, false]);
        assert_eq!(owners("next", "default"), [true, false, true]);
        assert_eq!(owners("other", "next"), [true, false, false]);
    }

    #[test]
    fn a_new_label_of_the_namespace_moves_its_objects() {
        let mut cluster = cluster("next");
        namespace(&mut cluster, "");
        put(&mut cluster, ROUTE, "");
        assert_eq!(owned(&mut cluster), Some(false));
        namespace(&mut cluster, "next");
        assert_eq!(owned(&mut cluster), Some(true));
        namespace(&mut cluster, "other");
        assert_eq!(owned(&mut cluster), Some(false));
    }

    #[test]
    fn tags_of_services_and_webhooks_refer_to_a_revision() {
        let mut cluster = cluster("next");
        namespace(&mut cluster, "prod");
        put(&mut cluster, GATEWAY, "");
        assert_eq!(owned(&mut cluster), Some(false));
        service(&mut cluster, "elsewhere", "prod", "next");
        assert_eq!(owned(&mut cluster), None, "only Services of the control plane's namespace count");
        service(&mut cluster, "istio-system", "prod", "next");
        assert_eq!(owned(&mut cluster), Some(true));
        service(&mut cluster, "istio-system", "prod", "other");
        assert_eq!(owned(&mut cluster), Some(false));
        cluster.apply(ClusterObject::RevisionTag(webhook("istio-revision-tag-prod", "prod", "next")));
        assert_eq!(owned(&mut cluster), Some(true));
        cluster.delete(&Collection::RevisionTag, "", "istio-revision-tag-prod");
        assert_eq!(owned(&mut cluster), Some(false));
        service(&mut cluster, "istio-system", "prod", "next");
        assert_eq!(owned(&mut cluster), Some(true));
        cluster.delete(&Collection::Service, "istio-system", "tag-prod");
        assert_eq!(owned(&mut cluster), Some(false));
    }

    #[test]
    fn the_default_revision_is_named_by_a_webhook_unless_there_is_a_tag() {
        let mut cluster = cluster("next");
        namespace(&mut cluster, "");
        put(&mut cluster, GATEWAY, "");
        assert_eq!(owned(&mut cluster), Some(false));
        cluster.apply(ClusterObject::DefaultRevision(webhook(DEFAULT_VALIDATOR, "", "next")));
        assert_eq!(owned(&mut cluster), Some(true));
        cluster.apply(ClusterObject::RevisionTag(webhook("istio-revision-tag-default", "default", "other")));
        assert_eq!(owned(&mut cluster), Some(false));
        cluster.apply(ClusterObject::RevisionTag(webhook("istio-revision-tag-default", "default", "next")));
        assert_eq!(owned(&mut cluster), Some(true));
        cluster.delete(&Collection::RevisionTag, "", "istio-revision-tag-default");
        cluster.delete(&Collection::DefaultRevision, "", DEFAULT_VALIDATOR);
        assert_eq!(owned(&mut cluster), Some(false));
    }
}
