//! Fields of the structs that templates see, by their Go names: Kubernetes types from a table, Istio's messages from their
//! descriptors.

use std::rc::Rc;

use prost_reflect::{Cardinality, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::Value;

use super::data::{Data, Shape};

/// The type of a field of a Kubernetes struct.
#[derive(Clone, Copy)]
enum FieldType {
    Text,
    Int,
    Bool,
    /// A pointer or a value of a type that is not in the table.
    Other,
    StringMap,
    Struct(&'static str),
    List(&'static str),
}

use FieldType::{Bool, Int, List, Other, StringMap, Struct, Text};

const OBJECT_META: &[(&str, FieldType)] = &[
    ("Name", Text),
    ("GenerateName", Text),
    ("Namespace", Text),
    ("UID", Text),
    ("ResourceVersion", Text),
    ("Generation", Int),
    ("CreationTimestamp", Other),
    ("DeletionTimestamp", Other),
    ("DeletionGracePeriodSeconds", Other),
    ("Labels", StringMap),
    ("Annotations", StringMap),
    ("OwnerReferences", List("")),
    ("Finalizers", List("")),
    ("ManagedFields", List("")),
];

const POD_SPEC: &[(&str, FieldType)] = &[
    ("Volumes", List("")),
    ("InitContainers", List("Container")),
    ("Containers", List("Container")),
    ("EphemeralContainers", List("Container")),
    ("RestartPolicy", Text),
    ("TerminationGracePeriodSeconds", Other),
    ("ActiveDeadlineSeconds", Other),
    ("DNSPolicy", Text),
    ("NodeSelector", StringMap),
    ("ServiceAccountName", Text),
    ("DeprecatedServiceAccount", Text),
    ("AutomountServiceAccountToken", Other),
    ("NodeName", Text),
    ("HostNetwork", Bool),
    ("HostPID", Bool),
    ("HostIPC", Bool),
    ("ShareProcessNamespace", Other),
    ("SecurityContext", Other),
    ("ImagePullSecrets", List("")),
    ("Hostname", Text),
    ("Subdomain", Text),
    ("Affinity", Other),
    ("SchedulerName", Text),
    ("Tolerations", List("")),
    ("HostAliases", List("")),
    ("PriorityClassName", Text),
    ("Priority", Other),
    ("DNSConfig", Other),
    ("ReadinessGates", List("")),
    ("RuntimeClassName", Other),
    ("EnableServiceLinks", Other),
    ("PreemptionPolicy", Other),
    ("Overhead", Other),
    ("TopologySpreadConstraints", List("")),
    ("SetHostnameAsFQDN", Other),
    ("OS", Other),
    ("HostUsers", Other),
    ("SchedulingGates", List("")),
    ("ResourceClaims", List("")),
    ("Resources", Other),
];

const CONTAINER: &[(&str, FieldType)] = &[
    ("Name", Text),
    ("Image", Text),
    ("Command", List("")),
    ("Args", List("")),
    ("WorkingDir", Text),
    ("Ports", List("ContainerPort")),
    ("EnvFrom", List("")),
    ("Env", List("EnvVar")),
    ("Resources", Other),
    ("ResizePolicy", List("")),
    ("RestartPolicy", Other),
    ("VolumeMounts", List("VolumeMount")),
    ("VolumeDevices", List("")),
    ("LivenessProbe", Other),
    ("ReadinessProbe", Other),
    ("StartupProbe", Other),
    ("Lifecycle", Other),
    ("TerminationMessagePath", Text),
    ("TerminationMessagePolicy", Text),
    ("ImagePullPolicy", Text),
    ("SecurityContext", Other),
    ("Stdin", Bool),
    ("StdinOnce", Bool),
    ("TTY", Bool),
];

const TABLE: &[(&str, &[(&str, FieldType)])] = &[
    ("ObjectMeta", OBJECT_META),
    ("PodSpec", POD_SPEC),
    ("Container", CONTAINER),
    (
        "ContainerPort",
        &[("Name", Text), ("HostPort", Int), ("ContainerPort", Int), ("Protocol", Text), ("HostIP", Text)],
    ),
    ("EnvVar", &[("Name", Text), ("Value", Text), ("ValueFrom", Other)]),
    (
        "VolumeMount",
        &[
            ("Name", Text),
            ("ReadOnly", Bool),
            ("RecursiveReadOnly", Other),
            ("MountPath", Text),
            ("SubPath", Text),
            ("MountPropagation", Other),
            ("SubPathExpr", Text),
        ],
    ),
    ("TypeMeta", &[("Kind", Text), ("APIVersion", Text)]),
    ("NamespacedName", &[("Name", Text), ("Namespace", Text)]),
    ("Pod", &[("ObjectMeta", Struct("ObjectMeta")), ("Spec", Struct("PodSpec"))]),
];

/// A struct of a Kubernetes type.
pub(super) fn kube(name: &'static str, value: Value) -> Data {
    Data::Struct(Shape::Kube(name), Rc::new(value))
}

/// A message of Istio's API.
pub(super) fn message(name: &str, value: Value) -> Data {
    match api::reflect::istio().get_message_by_name(name) {
        Some(descriptor) => Data::Struct(Shape::Message(descriptor), Rc::new(value)),
        None => kube("", value),
    }
}

/// A field, a key of a map, or a getter.
pub(super) fn field(data: &Data, name: &str) -> Result<Data, String> {
    match data {
        Data::Missing => Ok(Data::Missing),
        // Getters of messages work on nil; nothing else does.
        Data::Nil if name == "GetValue" => Ok(Data::Missing),
        Data::Nil if name.starts_with("Get") => Ok(Data::Nil),
        Data::Nil => Err(format!("nil pointer evaluating .{name}")),
        Data::Map(map) => Ok(map.entries.borrow().get(name).cloned().unwrap_or(Data::Missing)),
        Data::Struct(Shape::Kube(""), value) => Ok(loose_field(value, name)),
        Data::Struct(Shape::Kube(kind), value) => kube_field(kind, value, name),
        Data::Struct(Shape::Message(descriptor), value) => message_field(descriptor, value, name),
        // Enums and wrapped values.
        Data::Text(_) if name == "String" => Ok(data.clone()),
        Data::Bool(_) | Data::Int(_) | Data::Float(_) | Data::Text(_) if matches!(name, "GetValue" | "Value") => {
            Ok(data.clone())
        }
        other => Err(format!("a {} has no field {name}", other.kind())),
    }
}

/// A key without regard to case: Go's names differ from those of JSON in nothing else.
fn json_key<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let map = value.as_object()?;
    map.get(name).or_else(|| map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value))
}

fn loose_field(value: &Value, name: &str) -> Data {
    json_key(value, name).map_or(Data::Nil, loose)
}

fn loose(value: &Value) -> Data {
    match value {
        Value::Object(_) => kube("", value.clone()),
        Value::Array(list) => Data::list(list.iter().map(loose)),
        Value::Number(number) => number.as_i64().map_or_else(|| Data::of_json(value), Data::Int),
        other => Data::of_json(other),
    }
}

fn kube_field(kind: &str, value: &Value, name: &str) -> Result<Data, String> {
    let fields = TABLE.iter().find(|(known, _)| *known == kind).map_or(&[][..], |(_, fields)| fields);
    let Some((_, field_type)) = fields.iter().find(|(known, _)| *known == name) else {
        return Err(format!("can't evaluate field {name} in type {kind}"));
    };
    let found = json_key(value, name);
    Ok(match field_type {
        Text => found.and_then(Value::as_str).map_or_else(|| Data::text(""), Data::text),
        Int => Data::Int(found.and_then(Value::as_i64).unwrap_or_default()),
        Bool => Data::Bool(found.and_then(Value::as_bool).unwrap_or_default()),
        Other => found.map_or(Data::Nil, loose),
        StringMap => string_map(found),
        Struct(kind) => kube(kind, found.cloned().unwrap_or(Value::Object(serde_json::Map::new()))),
        List(kind) => {
            let items = found.and_then(Value::as_array).into_iter().flatten();
            Data::list(items.map(|item| if kind.is_empty() { loose(item) } else { kube(kind, item.clone()) }))
        }
    })
}

fn string_map(value: Option<&Value>) -> Data {
    let entries = value.and_then(Value::as_object).into_iter().flatten();
    Data::string_map(entries.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())))
}

fn message_field(descriptor: &MessageDescriptor, value: &Value, name: &str) -> Result<Data, String> {
    let wanted = name.strip_prefix("Get").filter(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    let by_name = |name: &str| descriptor.fields().find(|field| field.json_name().eq_ignore_ascii_case(name));
    let Some(field) = by_name(name).or_else(|| by_name(wanted?)) else {
        return Err(format!("can't evaluate field {name} in type {}", descriptor.name()));
    };
    let found = value.get(field.json_name());
    if field.is_map() {
        return Ok(string_map(found));
    }
    if field.cardinality() == Cardinality::Repeated {
        let items = found.and_then(Value::as_array).into_iter().flatten();
        return Ok(Data::list(items.map(|item| message_value(&field, item))));
    }
    Ok(found.map_or_else(|| zero(&field), |value| message_value(&field, value)))
}

fn message_value(field: &FieldDescriptor, value: &Value) -> Data {
    match field.kind() {
        Kind::Message(inner) if value.is_object() && !is_well_known(&inner) => {
            Data::Struct(Shape::Message(inner), Rc::new(value.clone()))
        }
        _ => loose(value),
    }
}

fn is_well_known(descriptor: &MessageDescriptor) -> bool {
    descriptor.full_name().starts_with("google.protobuf.")
}

fn zero(field: &FieldDescriptor) -> Data {
    match field.kind() {
        Kind::String => Data::text(""),
        Kind::Bool => Data::Bool(false),
        Kind::Float | Kind::Double => Data::Float(0.0),
        Kind::Enum(values) => values.get_value(0).map_or(Data::Nil, |value| Data::text(value.name())),
        Kind::Message(_) | Kind::Bytes => Data::Nil,
        _ => Data::Int(0),
    }
}
