//! The protobuf fields of core kinds and of the options of requests: number, JSON name and type.

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) number: u32,
    pub(super) name: &'static str,
    pub(super) kind: FieldType,
    pub(super) is_list: bool,
}

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldType {
    Text,
    Int,
    Bool,
    /// A bool whose false is written.
    OptionalBool,
    /// A map of texts.
    Texts,
    /// A map of bytes.
    ByteTexts,
    Message(&'static [Field]),
    /// A time with this number of digits of its fraction.
    Time(usize),
    IntOrString,
    /// `FieldsV1`.
    Fields,
}

use FieldType::{Bool, ByteTexts, Fields, Int, IntOrString, Message, OptionalBool, Text, Texts, Time};

const fn one(number: u32, name: &'static str, kind: FieldType) -> Field {
    Field { number, name, kind, is_list: false }
}

const fn list(number: u32, name: &'static str, kind: FieldType) -> Field {
    Field { number, name, kind, is_list: true }
}

/// `Unknown`, around every object; its field 2 has the object.
pub(super) const ENVELOPE: &[Field] =
    &[one(1, "typeMeta", Message(&[one(1, "apiVersion", Text), one(2, "kind", Text)]))];

/// The fields of a kind.
pub(super) fn message(kind: &str) -> Option<&'static [Field]> {
    KINDS.iter().find(|(name, _)| *name == kind).map(|(_, fields)| *fields)
}

const NAMED: &[Field] = &[one(1, "name", Text)];

const KINDS: &[(&str, &[Field])] = &[
    ("Namespace", &[META, one(2, "spec", Message(&[list(1, "finalizers", Text)]))]),
    ("Service", &[META, one(2, "spec", Message(SERVICE))]),
    (
        "Secret",
        &[
            META,
            one(2, "data", ByteTexts),
            one(3, "type", Text),
            one(4, "stringData", Texts),
            one(5, "immutable", OptionalBool),
        ],
    ),
    ("ConfigMap", &[META, one(2, "data", Texts), one(3, "binaryData", ByteTexts), one(4, "immutable", OptionalBool)]),
    (
        "ServiceAccount",
        &[
            META,
            list(2, "secrets", Message(REFERENCE)),
            list(3, "imagePullSecrets", Message(NAMED)),
            one(4, "automountServiceAccountToken", OptionalBool),
        ],
    ),
    (
        "EndpointSlice",
        &[
            META,
            list(2, "endpoints", Message(ENDPOINT)),
            list(3, "ports", Message(ENDPOINT_PORT)),
            one(4, "addressType", Text),
        ],
    ),
    ("Lease", &[META, one(2, "spec", Message(LEASE))]),
    (
        "DeleteOptions",
        &[
            one(1, "gracePeriodSeconds", Int),
            one(2, "preconditions", Message(&[one(1, "uid", Text), one(2, "resourceVersion", Text)])),
            one(4, "propagationPolicy", Text),
            list(5, "dryRun", Text),
        ],
    ),
    ("SelfSubjectAccessReview", &[META, one(2, "spec", Message(&[one(1, "resourceAttributes", Message(ATTRIBUTES))]))]),
];

const META: Field = one(1, "metadata", Message(OBJECT_META));

const OBJECT_META: &[Field] = &[
    one(1, "name", Text),
    one(2, "generateName", Text),
    one(3, "namespace", Text),
    one(4, "selfLink", Text),
    one(5, "uid", Text),
    one(6, "resourceVersion", Text),
    one(7, "generation", Int),
    one(8, "creationTimestamp", Time(0)),
    one(9, "deletionTimestamp", Time(0)),
    one(10, "deletionGracePeriodSeconds", Int),
    one(11, "labels", Texts),
    one(12, "annotations", Texts),
    list(13, "ownerReferences", Message(OWNER)),
    list(14, "finalizers", Text),
    list(17, "managedFields", Message(MANAGED)),
];

const OWNER: &[Field] = &[
    one(1, "kind", Text),
    one(3, "name", Text),
    one(4, "uid", Text),
    one(5, "apiVersion", Text),
    one(6, "controller", OptionalBool),
    one(7, "blockOwnerDeletion", OptionalBool),
];

const MANAGED: &[Field] = &[
    one(1, "manager", Text),
    one(2, "operation", Text),
    one(3, "apiVersion", Text),
    one(4, "time", Time(0)),
    one(6, "fieldsType", Text),
    one(7, "fieldsV1", Fields),
    one(8, "subresource", Text),
];

const SERVICE: &[Field] = &[
    list(1, "ports", Message(SERVICE_PORT)),
    one(2, "selector", Texts),
    one(3, "clusterIP", Text),
    one(4, "type", Text),
    list(5, "externalIPs", Text),
    one(7, "sessionAffinity", Text),
    one(8, "loadBalancerIP", Text),
    list(9, "loadBalancerSourceRanges", Text),
    one(10, "externalName", Text),
    one(11, "externalTrafficPolicy", Text),
    one(12, "healthCheckNodePort", Int),
    one(13, "publishNotReadyAddresses", Bool),
    one(14, "sessionAffinityConfig", Message(&[one(1, "clientIP", Message(&[one(1, "timeoutSeconds", Int)]))])),
    one(17, "ipFamilyPolicy", Text),
    list(18, "clusterIPs", Text),
    list(19, "ipFamilies", Text),
    one(20, "allocateLoadBalancerNodePorts", OptionalBool),
    one(21, "loadBalancerClass", Text),
    one(22, "internalTrafficPolicy", Text),
    one(23, "trafficDistribution", Text),
];

const SERVICE_PORT: &[Field] = &[
    one(1, "name", Text),
    one(2, "protocol", Text),
    one(3, "port", Int),
    one(4, "targetPort", IntOrString),
    one(5, "nodePort", Int),
    one(6, "appProtocol", Text),
];

const REFERENCE: &[Field] = &[
    one(1, "kind", Text),
    one(2, "namespace", Text),
    one(3, "name", Text),
    one(4, "uid", Text),
    one(5, "apiVersion", Text),
    one(6, "resourceVersion", Text),
    one(7, "fieldPath", Text),
];

const ENDPOINT: &[Field] = &[
    list(1, "addresses", Text),
    one(
        2,
        "conditions",
        Message(&[one(1, "ready", OptionalBool), one(2, "serving", OptionalBool), one(3, "terminating", OptionalBool)]),
    ),
    one(3, "hostname", Text),
    one(4, "targetRef", Message(REFERENCE)),
    one(5, "deprecatedTopology", Texts),
    one(6, "nodeName", Text),
    one(7, "zone", Text),
    one(8, "hints", Message(&[list(1, "forZones", Message(NAMED)), list(2, "forNodes", Message(NAMED))])),
];

const ENDPOINT_PORT: &[Field] =
    &[one(1, "name", Text), one(2, "protocol", Text), one(3, "port", Int), one(4, "appProtocol", Text)];

const LEASE: &[Field] = &[
    one(1, "holderIdentity", Text),
    one(2, "leaseDurationSeconds", Int),
    one(3, "acquireTime", Time(6)),
    one(4, "renewTime", Time(6)),
    one(5, "leaseTransitions", Int),
    one(6, "strategy", Text),
    one(7, "preferredHolder", Text),
];

const ATTRIBUTES: &[Field] = &[
    one(1, "namespace", Text),
    one(2, "verb", Text),
    one(3, "group", Text),
    one(4, "version", Text),
    one(5, "resource", Text),
    one(6, "subresource", Text),
    one(7, "name", Text),
];
