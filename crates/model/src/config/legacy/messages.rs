//! Protobuf messages of legacy kinds, as the Mesh Configuration Protocol sends them. Today's API does not have them any
//! more, so their fields are a table here, with the numbers of `istio.io/api` of Istio 1.4. Routing kinds of 0.8 were
//! gone when the protocol appeared.

use std::sync::LazyLock;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, MessageOptions,
};
use serde_json::{Value, json};

use super::super::{Kind, message};

/// Name, number and type of a field. Types are scalars, messages or enums of the same package; `[]` before one means a
/// list, `map ` a map from strings.
type FieldRow = (&'static str, i32, &'static str);

/// The messages of one package.
struct Package {
    name: &'static str,
    messages: &'static [(&'static str, &'static [FieldRow])],
    enums: &'static [(&'static str, &'static [&'static str])],
}

const AUTHENTICATION: Package = Package {
    name: "istio.authentication.v1alpha1",
    messages: &[
        (
            "Policy",
            &[
                ("targets", 1, "[]TargetSelector"),
                ("peers", 2, "[]PeerAuthenticationMethod"),
                ("peer_is_optional", 3, "bool"),
                ("origins", 4, "[]OriginAuthenticationMethod"),
                ("origin_is_optional", 5, "bool"),
                ("principal_binding", 6, "PrincipalBinding"),
            ],
        ),
        ("TargetSelector", &[("name", 1, "string"), ("ports", 2, "[]PortSelector"), ("labels", 3, "map string")]),
        ("PortSelector", &[("number", 1, "uint32"), ("name", 2, "string")]),
        ("PeerAuthenticationMethod", &[("mtls", 1, "MutualTls"), ("jwt", 2, "Jwt")]),
        ("OriginAuthenticationMethod", &[("jwt", 1, "Jwt")]),
        ("MutualTls", &[("allow_tls", 1, "bool"), ("mode", 2, "Mode")]),
        (
            "Jwt",
            &[
                ("issuer", 1, "string"),
                ("audiences", 2, "[]string"),
                ("jwks_uri", 3, "string"),
                ("jwt_headers", 6, "[]string"),
                ("jwt_params", 7, "[]string"),
                ("trigger_rules", 9, "[]TriggerRule"),
                ("jwks", 10, "string"),
            ],
        ),
        ("TriggerRule", &[("excluded_paths", 1, "[]StringMatch"), ("included_paths", 2, "[]StringMatch")]),
        (
            "StringMatch",
            &[("exact", 1, "string"), ("prefix", 2, "string"), ("suffix", 3, "string"), ("regex", 4, "string")],
        ),
    ],
    enums: &[("Mode", &["STRICT", "PERMISSIVE"]), ("PrincipalBinding", &["USE_PEER", "USE_ORIGIN"])],
};

const RBAC: Package = Package {
    name: "istio.rbac.v1alpha1",
    messages: &[
        ("ServiceRole", &[("rules", 1, "[]AccessRule")]),
        (
            "AccessRule",
            &[
                ("services", 1, "[]string"),
                ("paths", 2, "[]string"),
                ("methods", 3, "[]string"),
                ("constraints", 4, "[]Constraint"),
                ("hosts", 5, "[]string"),
                ("not_hosts", 6, "[]string"),
                ("not_paths", 7, "[]string"),
                ("not_methods", 8, "[]string"),
                ("ports", 9, "[]int32"),
                ("not_ports", 10, "[]int32"),
            ],
        ),
        ("Constraint", &[("key", 1, "string"), ("values", 2, "[]string")]),
        (
            "ServiceRoleBinding",
            &[
                ("subjects", 1, "[]Subject"),
                ("roleRef", 2, "RoleRef"),
                ("mode", 3, "EnforcementMode"),
                ("actions", 4, "[]AccessRule"),
                ("role", 5, "string"),
            ],
        ),
        (
            "Subject",
            &[
                ("user", 1, "string"),
                ("group", 2, "string"),
                ("properties", 3, "map string"),
                ("names", 4, "[]string"),
                ("not_names", 5, "[]string"),
                ("groups", 6, "[]string"),
                ("not_groups", 7, "[]string"),
                ("namespaces", 8, "[]string"),
                ("not_namespaces", 9, "[]string"),
                ("ips", 10, "[]string"),
                ("not_ips", 11, "[]string"),
            ],
        ),
        ("RoleRef", &[("kind", 1, "string"), ("name", 2, "string")]),
        (
            "RbacConfig",
            &[
                ("mode", 1, "Mode"),
                ("inclusion", 2, "Target"),
                ("exclusion", 3, "Target"),
                ("enforcement_mode", 4, "EnforcementMode"),
            ],
        ),
        ("Target", &[("services", 1, "[]string"), ("namespaces", 2, "[]string")]),
    ],
    enums: &[
        ("EnforcementMode", &["ENFORCED", "PERMISSIVE"]),
        ("Mode", &["OFF", "ON", "ON_WITH_INCLUSION", "ON_WITH_EXCLUSION"]),
    ],
};

const MIXER: Package = Package {
    name: "istio.mixer.v1.config.client",
    messages: &[
        ("QuotaSpec", &[("rules", 1, "[]QuotaRule")]),
        ("QuotaRule", &[("match", 1, "[]AttributeMatch"), ("quotas", 2, "[]Quota")]),
        ("AttributeMatch", &[("clause", 1, "map StringMatch")]),
        ("StringMatch", &[("exact", 1, "string"), ("prefix", 2, "string"), ("regex", 3, "string")]),
        ("Quota", &[("quota", 1, "string"), ("charge", 2, "int64")]),
        ("QuotaSpecBinding", &[("services", 1, "[]IstioService"), ("quota_specs", 2, "[]Reference")]),
        (
            "IstioService",
            &[
                ("name", 1, "string"),
                ("namespace", 2, "string"),
                ("domain", 3, "string"),
                ("service", 4, "string"),
                ("labels", 5, "map string"),
            ],
        ),
        ("Reference", &[("name", 1, "string"), ("namespace", 2, "string")]),
        ("HTTPAPISpec", &[("attributes", 1, "Attributes"), ("patterns", 2, "[]Pattern"), ("api_keys", 3, "[]ApiKey")]),
        (
            "Pattern",
            &[
                ("attributes", 1, "Attributes"),
                ("http_method", 2, "string"),
                ("uri_template", 3, "string"),
                ("regex", 4, "string"),
            ],
        ),
        ("ApiKey", &[("query", 1, "string"), ("header", 2, "string"), ("cookie", 3, "string")]),
        ("HTTPAPISpecBinding", &[("services", 1, "[]IstioService"), ("api_specs", 2, "[]Reference")]),
        ("Attributes", &[("attributes", 1, "map AttributeValue")]),
        (
            "AttributeValue",
            &[
                ("string_value", 2, "string"),
                ("int64_value", 3, "int64"),
                ("double_value", 4, "double"),
                ("bool_value", 5, "bool"),
                ("string_map_value", 9, "StringMap"),
            ],
        ),
        ("StringMap", &[("entries", 1, "map string")]),
    ],
    enums: &[],
};

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let file = [AUTHENTICATION, RBAC, MIXER].iter().map(file).collect();
    DescriptorPool::from_file_descriptor_set(FileDescriptorSet { file }).expect("the table is complete; a test uses it")
});

/// The message of a kind; `None` if the protocol never carried it.
pub(crate) fn name(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::AuthenticationPolicy | Kind::AuthenticationMeshPolicy => "istio.authentication.v1alpha1.Policy",
        Kind::ServiceRole => "istio.rbac.v1alpha1.ServiceRole",
        Kind::ServiceRoleBinding => "istio.rbac.v1alpha1.ServiceRoleBinding",
        Kind::RbacConfig | Kind::ClusterRbacConfig => "istio.rbac.v1alpha1.RbacConfig",
        Kind::QuotaSpec => "istio.mixer.v1.config.client.QuotaSpec",
        Kind::QuotaSpecBinding => "istio.mixer.v1.config.client.QuotaSpecBinding",
        Kind::HttpApiSpec => "istio.mixer.v1.config.client.HTTPAPISpec",
        Kind::HttpApiSpecBinding => "istio.mixer.v1.config.client.HTTPAPISpecBinding",
        _ => return None,
    })
}

/// The encoded message of a spec. Fields that the message does not have are left out.
pub(crate) fn encode(kind: Kind, spec: &Value) -> Option<Vec<u8>> {
    let (message, _) = message::read(&descriptor(kind)?, &with_empty_peers(spec), "spec");
    Some(message.encode_to_vec())
}

/// `- mtls:` without a value means mutual TLS, and a message cannot carry null.
fn with_empty_peers(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for peer in spec.get_mut("peers").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(mtls) = peer.get_mut("mtls").filter(|mtls| mtls.is_null()) {
            *mtls = json!({});
        }
    }
    spec
}

/// The spec in an encoded message.
pub(crate) fn decode(kind: Kind, bytes: &[u8]) -> Result<Value, prost::DecodeError> {
    let descriptor =
        descriptor(kind).ok_or_else(|| prost::DecodeError::new_unexpected_type_url(kind.as_str(), "a message"))?;
    let message = DynamicMessage::decode(descriptor, bytes)?;
    Ok(serde_json::to_value(message).unwrap_or_default())
}

fn descriptor(kind: Kind) -> Option<MessageDescriptor> {
    POOL.get_message_by_name(name(kind)?)
}

fn file(package: &Package) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(format!("{}.proto", package.name)),
        package: Some(package.name.to_owned()),
        message_type: package.messages.iter().map(|(name, fields)| message_of(package, name, fields)).collect(),
        enum_type: package.enums.iter().map(|(name, values)| enum_of(name, values)).collect(),
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

fn enum_of(name: &str, values: &[&str]) -> EnumDescriptorProto {
    let value = |(number, value): (usize, &&str)| EnumValueDescriptorProto {
        name: Some((*value).to_owned()),
        number: i32::try_from(number).ok(),
        ..EnumValueDescriptorProto::default()
    };
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: values.iter().enumerate().map(value).collect(),
        ..EnumDescriptorProto::default()
    }
}

fn message_of(package: &Package, name: &str, fields: &[FieldRow]) -> DescriptorProto {
    let scope = format!(".{}.{name}", package.name);
    let maps = fields.iter().filter_map(|(field, _, kind)| Some((*field, kind.strip_prefix("map ")?)));
    let entry = |(field, value): (&str, &'static str)| DescriptorProto {
        name: Some(entry_name(field)),
        field: vec![field_of(package, "", ("key", 1, "string")), field_of(package, "", ("value", 2, value))],
        options: Some(MessageOptions { map_entry: Some(true), ..MessageOptions::default() }),
        ..DescriptorProto::default()
    };
    DescriptorProto {
        name: Some(name.to_owned()),
        field: fields.iter().map(|field| field_of(package, &scope, *field)).collect(),
        nested_type: maps.map(entry).collect(),
        ..DescriptorProto::default()
    }
}

fn entry_name(field: &str) -> String {
    let word = |word: &str| word[..1].to_uppercase() + &word[1..];
    field.split('_').map(word).collect::<String>() + "Entry"
}

fn json_name(field: &str) -> String {
    let mut words = field.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}

fn field_of(package: &Package, scope: &str, (name, number, kind): FieldRow) -> FieldDescriptorProto {
    let (label, plain) = match kind.strip_prefix("[]") {
        Some(item) => (Label::Repeated, item),
        None if kind.starts_with("map ") => (Label::Repeated, kind),
        None => (Label::Optional, kind),
    };
    let (r#type, type_name) = match plain {
        "string" => (Type::String, None),
        "bool" => (Type::Bool, None),
        "int32" => (Type::Int32, None),
        "uint32" => (Type::Uint32, None),
        "int64" => (Type::Int64, None),
        "double" => (Type::Double, None),
        map if map.starts_with("map ") => (Type::Message, Some(format!("{scope}.{}", entry_name(name)))),
        named => {
            let is_enum = package.enums.iter().any(|(known, _)| *known == named);
            (if is_enum { Type::Enum } else { Type::Message }, Some(format!(".{}.{named}", package.name)))
        }
    };
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(label.into()),
        r#type: Some(r#type.into()),
        type_name,
        json_name: Some(json_name(name)),
        ..FieldDescriptorProto::default()
    }
}
