//! The data that templates of the injector see, and its own functions.

use serde_json::{Value, json};

use super::arguments::{ANY, Arguments, Outcome, Row, count, entries, shown, text};
use super::data::{Data, Shape};
use super::{schema, strings};
use crate::builtin::{self, RenderInput};
use crate::proxy_config::{message_json, without_defaults};
use crate::yaml::{self, KeyOrder};

const PROXY_CONFIG: &str = "istio.mesh.v1alpha1.ProxyConfig";
const MESH_CONFIG: &str = "istio.mesh.v1alpha1.MeshConfig";

/// User and group of the proxy.
const PROXY_ID: i64 = 1337;

/// The value of `.` at the top.
pub(super) fn root(input: &RenderInput<'_>) -> Data {
    let workload = input.workload;
    let part = |name: &str| input.pod.get(name).cloned().unwrap_or_else(|| json!({}));
    let entries = [
        ("TypeMeta", schema::kube("TypeMeta", json!({"kind": workload.kind, "apiVersion": workload.api_version}))),
        (
            "DeploymentMeta",
            schema::kube("NamespacedName", json!({"name": workload.name, "namespace": workload.namespace})),
        ),
        ("ObjectMeta", schema::kube("ObjectMeta", part("metadata"))),
        ("Spec", schema::kube("PodSpec", part("spec"))),
        ("ProxyConfig", schema::message(PROXY_CONFIG, message_json(input.proxy_config))),
        ("MeshConfig", schema::message(MESH_CONFIG, message_json(input.mesh))),
        ("Values", Data::of_json(&input.values.0)),
        ("Revision", Data::text(input.revision)),
        ("NativeSidecars", Data::Bool(input.native)),
        ("ProxyImage", Data::text(input.proxy_image())),
        ("ProxyInitImage", Data::text(input.init_image())),
        ("ProxyUID", Data::Int(PROXY_ID)),
        ("ProxyGID", Data::Int(PROXY_ID)),
        (
            "InboundTrafficPolicyMode",
            Data::text(if input.inbound_to_localhost() { "localhost" } else { "passthrough" }),
        ),
        ("CompliancePolicy", Data::text(input.compliance_policy)),
    ];
    Data::map(entries.into_iter().map(|(name, value)| (name.to_owned(), value)))
}

/// Functions that read more than their arguments.
pub(super) const WITH_INPUT: &[&str] = &["protoToJSON", "env", "otelResourceAttributes"];

pub(super) fn call(name: &str, a: Arguments<'_>, input: &RenderInput<'_>) -> Outcome {
    match name {
        "env" => {
            let given = input.environment.get(text(a, 0)?).filter(|value| !value.is_empty());
            Ok(given.map_or(Data::text(text(a, 1)?), Data::text))
        }
        "otelResourceAttributes" => {
            let attributes = builtin::otel_resource_attributes(input.mesh, input.pod, &input.workload.namespace);
            Ok(Data::text(attributes.unwrap_or_default()))
        }
        _ => match a.first() {
            Some(Data::Struct(Shape::Message(message), _)) if message.full_name() == PROXY_CONFIG => {
                Ok(Data::text(without_defaults(input.proxy_config)))
            }
            Some(value) if !value.is_nil() => Ok(Data::text(value.to_json()?.to_string())),
            _ => Ok(Data::text("{}")),
        },
    }
}

pub(super) const TABLE: &[Row] = &[
    ("annotation", 3, 3, annotation),
    ("isset", 2, 2, |a| {
        let key = text(a, 1)?;
        Ok(Data::Bool(entries(a, 0)?.iter().any(|(known, _)| known == key)))
    }),
    ("valueOrDefault", 2, 2, |a| {
        let is_unset = a[0].is_nil() || matches!(&a[0], Data::Text(text) if text.is_empty());
        Ok(if is_unset { a[1].clone() } else { a[0].clone() })
    }),
    ("toJSON", 1, 1, |a| Ok(Data::text(if a[0].is_nil() { json!({}) } else { a[0].to_json()? }.to_string()))),
    ("fromJSON", 1, 1, |a| {
        // As upstream, a text that is no JSON gives the text {}.
        Ok(serde_json::from_str(text(a, 0)?).map_or_else(|_| Data::text("{}"), |value| Data::of_json(&value)))
    }),
    ("structToJSON", 1, 1, |a| Ok(Data::text(if a[0].is_nil() { json!({}) } else { a[0].to_json()? }.to_string()))),
    ("toYaml", 1, 1, |a| Ok(Data::text(yaml::write(&a[0].to_json()?, KeyOrder::Sorted)))),
    ("indent", 2, 2, |a| {
        // Upstream's own: the first line is not indented.
        let source = text(a, 1)?;
        let (first, rest) = source.split_at(source.find('\n').map_or(source.len(), |at| at + 1));
        if rest.is_empty() && !source.ends_with('\n') {
            return Ok(Data::text(first));
        }
        Ok(Data::text(format!("{first}{}", strings::indented(count(a, 0)?, rest)?)))
    }),
    ("excludeInboundPort", 2, 2, |a| Ok(Data::text(builtin::exclude_inbound_port(&shown(a, 0)?, text(a, 1)?)))),
    ("includeInboundPorts", 1, 1, |a| container_ports(a, "")),
    ("applicationPorts", 1, 1, |a| container_ports(a, "istio-proxy")),
    ("kubevirtInterfaces", 1, 1, |a| Ok(Data::text(text(a, 0)?))),
    ("excludeInterfaces", 1, 1, |a| Ok(Data::text(text(a, 0)?))),
    ("directory", 1, 1, |a| {
        let path = text(a, 0)?;
        Ok(Data::text(&path[..path.rfind('/').map_or(0, |at| at + 1)]))
    }),
    ("contains", 2, 2, |a| Ok(Data::Bool(text(a, 1)?.contains(text(a, 0)?)))),
    ("toLower", 1, 1, |a| Ok(Data::text(text(a, 0)?.to_lowercase()))),
    ("appendMultusNetwork", 2, 2, |a| Ok(Data::text(builtin::append_multus_network(text(a, 0)?, text(a, 1)?)))),
    ("formatDuration", 1, 1, |a| {
        Ok(Data::text(match &a[0] {
            Data::Text(text) => go_duration(text).unwrap_or_else(|| text.to_string()),
            _ => "0s".to_owned(),
        }))
    }),
    ("omit", 1, ANY, |a| {
        let omitted = (1..a.len()).map(|at| text(a, at)).collect::<Result<Vec<_>, _>>()?;
        string_map(entries(a, 0)?.into_iter().filter(|(key, _)| !omitted.contains(&key.as_str())))
    }),
    ("strdict", 0, ANY, |a| {
        let pairs = (0..a.len()).step_by(2).map(|at| {
            let value = if at + 1 < a.len() { text(a, at + 1)? } else { "" };
            Ok((text(a, at)?.to_owned(), value.to_owned()))
        });
        Ok(Data::string_map(pairs.collect::<Result<Vec<_>, String>>()?))
    }),
    ("mergeMaps", 0, ANY, merge_maps),
    ("toJsonMap", 0, ANY, |a| Ok(Data::text(merge_maps(a)?.to_json()?.to_string()))),
    ("omitNil", 1, 1, |a| Ok(Data::of_json(&without_nil(&a[0].to_json()?)))),
];

fn annotation(a: Arguments<'_>) -> Outcome {
    let name = text(a, 1)?;
    let annotations = schema::field(&a[0], "Annotations")?;
    let Data::Map(annotations) = annotations else { return Err("argument 1: expected ObjectMeta".to_owned()) };
    let found = annotations.entries.borrow().get(name).cloned();
    found.map_or_else(|| shown(a, 2).map(Data::text), Ok)
}

fn container_ports(a: Arguments<'_>, except: &str) -> Outcome {
    let Data::List(containers) = &a[0] else { return Err("argument 1: expected containers".to_owned()) };
    let mut ports = Vec::new();
    for container in containers.iter() {
        if matches!(schema::field(container, "Name")?, Data::Text(name) if !except.is_empty() && *name == *except) {
            continue;
        }
        let Data::List(all) = schema::field(container, "Ports")? else { continue };
        for port in all.iter() {
            let is_tcp = !matches!(schema::field(port, "Protocol")?, Data::Text(protocol) if matches!(&*protocol, "UDP" | "SCTP"));
            if let (true, Data::Int(number)) = (is_tcp, schema::field(port, "ContainerPort")?) {
                ports.push(number.to_string());
            }
        }
    }
    Ok(Data::text(ports.join(",")))
}

fn string_map(entries: impl Iterator<Item = (String, Data)>) -> Outcome {
    let texts = entries.map(|(key, value)| Ok((key, shown(&[value], 0)?)));
    Ok(Data::string_map(texts.collect::<Result<Vec<_>, String>>()?))
}

fn merge_maps(a: Arguments<'_>) -> Outcome {
    let mut all = Vec::new();
    for at in 0..a.len() {
        all.extend(entries(a, at)?);
    }
    string_map(all.into_iter())
}

fn without_nil(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nil(value))).collect())
        }
        Value::Array(list) => list.iter().filter(|value| !value.is_null()).map(without_nil).collect(),
        other => other.clone(),
    }
}

/// A duration of protobuf's JSON, such as 90.5s, as Go prints it: 1m30.5s.
fn go_duration(text: &str) -> Option<String> {
    let seconds: f64 = text.strip_suffix('s')?.parse().ok()?;
    let nanos = (seconds.abs() * 1e9).round() as u64;
    let sign = if seconds < 0.0 { "-" } else { "" };
    if nanos == 0 {
        return Some("0s".to_owned());
    }
    if nanos < 1_000_000_000 {
        let (unit, size) = match nanos {
            1_000_000.. => ("ms", 1e6),
            1_000.. => ("µs", 1e3),
            _ => ("ns", 1.0),
        };
        return Some(format!("{sign}{}{unit}", nanos as f64 / size));
    }
    let (whole, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let (hours, minutes) = (whole / 3600, whole / 60 % 60);
    let second = (whole % 60) as f64 + rest as f64 / 1e9;
    Some(match (hours, minutes) {
        (0, 0) => format!("{sign}{second}s"),
        (0, minutes) => format!("{sign}{minutes}m{second}s"),
        (hours, minutes) => format!("{sign}{hours}h{minutes}m{second}s"),
    })
}
