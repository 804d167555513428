//! Conversion between config objects and `istio.mcp.v1alpha1.Resource` of the Mesh Configuration Protocol.
//! Kinds without a protobuf message (Gateway API, Ingress, the routing kinds of Istio 0.8) have no such form.

use std::sync::Arc;

use api::Any;
use api::istio::mcp::v1alpha1::{Metadata, Resource};

use super::{Kind, Meta, Object, Spec, legacy};
use crate::config::problem::FileLocation;
use crate::labels::Labels;
use crate::names::Str;

const TYPE_PREFIX: &str = "type.googleapis.com/";

/// The object as a resource; `None` if its kind has no message.
pub fn seal(object: &Object) -> Option<Resource> {
    let (meta, kind) = (&object.meta, object.spec.kind());
    let type_url = format!("{TYPE_PREFIX}{}", message_of(kind)?);
    let value = match object.spec.encode() {
        Some(encoded) => encoded,
        None => legacy::encode(kind, &object.spec.to_json())?,
    };
    let pairs = |(key, value): (&Str, &Str)| (key.to_string(), value.to_string());
    Some(Resource {
        metadata: Some(Metadata {
            name: resource_name(kind, meta),
            create_time: (meta.created != 0).then(|| seconds(meta.created)),
            version: meta.resource_version.to_string(),
            labels: meta.labels.iter().map(pairs).collect(),
            annotations: meta.annotations.iter().map(pairs).collect(),
        }),
        body: Some(Any { type_url, value }),
    })
}

/// `namespace/name`, or the name of an object of a cluster-wide kind.
fn resource_name(kind: Kind, meta: &Meta) -> String {
    match kind.is_cluster_wide() && meta.namespace.is_empty() {
        true => meta.name.to_string(),
        false => format!("{}/{}", meta.namespace, meta.name),
    }
}

/// The message of a kind, also of legacy ones.
fn message_of(kind: Kind) -> Option<&'static str> {
    kind.message().or_else(|| legacy::message_name(kind))
}

fn seconds(seconds: i64) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds, nanos: 0 }
}

/// Why a resource contains no object.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    #[error("it has no metadata")]
    NoMetadata,
    #[error("{0:?} is not a name such as namespace/name")]
    InvalidName(String),
    #[error("it has no body")]
    NoBody,
    #[error("its body is a {message:?} and not a {kind}")]
    WrongType { message: String, kind: Kind },
    #[error("its body is no {kind}: {error}")]
    Malformed { kind: Kind, error: prost::DecodeError },
    #[error("its body is no {kind}: {error}")]
    Unreadable { kind: Kind, error: String },
}

fn legacy_spec(kind: Kind, bytes: &[u8]) -> Result<Spec, EnvelopeError> {
    let json = legacy::decode(kind, bytes).map_err(|error| EnvelopeError::Malformed { kind, error })?;
    kind.read(&json).map_err(|error| EnvelopeError::Unreadable { kind, error: error.to_string() })
}

/// The object in a resource. `from` becomes its location. The object is not validated: see `validate`.
pub fn open(kind: Kind, resource: &Resource, from: &Str) -> Result<Object, EnvelopeError> {
    let metadata = resource.metadata.as_ref().ok_or(EnvelopeError::NoMetadata)?;
    let (namespace, name) = metadata.name.split_once('/').unwrap_or(("", &metadata.name));
    if name.is_empty() || name.contains('/') {
        return Err(EnvelopeError::InvalidName(metadata.name.clone()));
    }
    let body = resource.body.as_ref().ok_or(EnvelopeError::NoBody)?;
    let message = body.type_url.rsplit('/').next().unwrap_or_default();
    // All versions of a kind have the same encoding, so any version is accepted.
    let expected = message_of(kind).and_then(|name| name.rsplit('.').next());
    if message.rsplit('.').next() != expected {
        return Err(EnvelopeError::WrongType { message: message.to_owned(), kind });
    }
    let spec = match kind.message() {
        Some(_) => kind.decode(&body.value).map_err(|error| EnvelopeError::Malformed { kind, error })?,
        None => legacy_spec(kind, &body.value)?,
    };
    let meta = Meta {
        name: name.into(),
        namespace: namespace.into(),
        labels: Labels::from(&metadata.labels),
        annotations: metadata.annotations.iter().map(|(k, v)| (k.as_str().into(), v.as_str().into())).collect(),
        created: metadata.create_time.as_ref().map_or(0, |time| time.seconds),
        resource_version: metadata.version.as_str().into(),
        location: Some(FileLocation { file: from.clone(), line: 0 }),
        ..Meta::default()
    };
    Ok(Object { meta: Arc::new(meta), spec })
}

#[cfg(test)]
mod tests {
    use super::{Kind, Resource, open, seal};
    use crate::config::parse;

    const DOCUMENT: &str = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
        metadata: {name: cart, namespace: shop, labels: {a: b}, annotations: {istio.io/x: y}, \
        creationTimestamp: '2024-01-02T03:04:05Z', resourceVersion: '7'}\nspec: {host: cart.shop}\n";

    fn sealed() -> Resource {
        seal(&parse::documents(DOCUMENT, "a.yaml").objects[0]).unwrap()
    }

    #[test]
    fn object_survives_the_round_trip() {
        let object = parse::documents(DOCUMENT, "a.yaml").objects.remove(0);
        let found = open(Kind::DestinationRule, &sealed(), &"xds://server".into()).unwrap();
        assert!(found.means_the_same_as(&object), "{found:?}");
        assert_eq!(found.meta.resource_version, object.meta.resource_version);
    }

    #[test]
    fn legacy_objects_survive_the_round_trip() {
        let of = |api: &str, kind: &str, spec: &str| {
            format!("apiVersion: {api}\nkind: {kind}\nmetadata: {{name: a, namespace: shop}}\nspec: {spec}\n")
        };
        let (authentication, rbac, mixer) =
            ("authentication.istio.io/v1alpha1", "rbac.istio.io/v1alpha1", "config.istio.io/v1alpha2");
        let policy = "{targets: [{name: cart, ports: [{number: 80}]}], peers: [{mtls: {mode: PERMISSIVE}}], \
                      origins: [{jwt: {issuer: i, jwksUri: 'https://a', jwtHeaders: [x]}}], principalBinding: USE_ORIGIN}";
        let role = "{rules: [{services: ['*'], methods: [GET], notPaths: [/x], ports: [80], constraints: [{key: k, values: [v]}]}]}";
        for (api, kind, spec) in [
            (authentication, "Policy", policy),
            (authentication, "MeshPolicy", "{peers: [{mtls: {}}]}"),
            (rbac, "ServiceRole", role),
            (
                rbac,
                "ServiceRoleBinding",
                "{subjects: [{user: u, properties: {a: b}}], roleRef: {kind: ServiceRole, name: a}, mode: PERMISSIVE}",
            ),
            (rbac, "RbacConfig", "{mode: ON_WITH_INCLUSION, inclusion: {namespaces: [shop]}}"),
            (rbac, "ClusterRbacConfig", "{mode: 'ON'}"),
            (mixer, "QuotaSpec", "{rules: [{quotas: [{quota: q, charge: '3'}]}]}"),
            (mixer, "HTTPAPISpec", "{patterns: [{httpMethod: GET, uriTemplate: /a}]}"),
        ] {
            let object = parse::documents(&of(api, kind, spec), "a.yaml").objects.remove(0);
            let sealed = seal(&object).expect(kind);
            let found = open(object.spec.kind(), &sealed, &"mcp://server".into()).expect(kind);
            assert!(found.means_the_same_as(&object), "{found:?}\n{object:?}");
        }
        let bare = parse::documents(&of(authentication, "Policy", "{peers: [{mtls: }]}"), "a.yaml").objects.remove(0);
        let found = open(Kind::AuthenticationPolicy, &seal(&bare).expect("sealed"), &"".into()).expect("a policy");
        assert_eq!(found.spec.to_json(), serde_json::json!({"peers": [{"mtls": {}}]}));
        let rule = parse::documents(&of(mixer, "RouteRule", "{destination: {name: a}}"), "a.yaml").objects.remove(0);
        assert_eq!(seal(&rule), None);
    }

    #[test]
    fn malformed_resource_is_an_error() {
        let check = |edit: fn(&mut Resource), expected: &str| {
            let mut resource = sealed();
            edit(&mut resource);
            let error = open(Kind::DestinationRule, &resource, &"".into()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(|r| r.metadata = None, "no metadata");
        check(|r| r.body = None, "no body");
        check(|r| r.metadata.as_mut().unwrap().name = "a/b/c".to_owned(), "not a name such as");
        check(|r| r.body.as_mut().unwrap().type_url = "type.googleapis.com/x.Gateway".to_owned(), "not a Destination");
        check(|r| r.body.as_mut().unwrap().value = vec![255], "no DestinationRule");
    }
}
