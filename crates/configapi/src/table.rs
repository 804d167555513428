//! `Table` output, which kubectl asks for, and `PartialObjectMetadata`.

use serde_json::{Value, json};

use crate::object::meta;
use crate::resource::ResourceInfo;

/// A column: name, type, format, and whether it is shown only with `-o wide`.
struct Column {
    name: String,
    kind: &'static str,
    is_wide: bool,
}

fn column(name: &str) -> Column {
    Column { name: name.to_owned(), kind: "string", is_wide: false }
}

/// The table of objects. `include` is what rows contain: `None`, `Metadata` or `Object`.
pub(crate) fn table(objects: &[Value], resource: &ResourceInfo, list_meta: &Value, include: &str) -> Value {
    let now = jiff::Timestamp::now().as_second();
    let columns = columns(resource);
    let definition = |c: &Column| {
        let format = if c.name == "Name" { "name" } else { "" };
        json!({
            "name": c.name, "type": c.kind, "format": format, "description": "", "priority": i32::from(c.is_wide),
        })
    };
    let row = |object: &Value| {
        let mut row = json!({"cells": cells(object, resource, now)});
        match include {
            "None" => {}
            "Object" => row["object"] = object.clone(),
            _ => row["object"] = partial(object),
        }
        row
    };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_meta,
        "columnDefinitions": columns.iter().map(definition).collect::<Vec<_>>(),
        "rows": objects.iter().map(row).collect::<Vec<_>>(),
    })
}

/// The metadata of an object alone.
pub(crate) fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

fn columns(resource: &ResourceInfo) -> Vec<Column> {
    let mut all = vec![column("Name")];
    let names: &[&str] = match resource.kind.as_str() {
        "Service" if resource.group.is_empty() => &["Type", "Cluster-IP", "External-IP", "Port(s)", "Age"],
        "Secret" => &["Type", "Data", "Age"],
        "ConfigMap" => &["Data", "Age"],
        "Namespace" => &["Status", "Age"],
        "EndpointSlice" => &["AddressType", "Ports", "Endpoints", "Age"],
        "Pod" => &["Status", "IP", "Age"],
        "CustomResourceDefinition" => &["Created At"],
        _ if resource.columns.is_empty() => &["Age"],
        _ => &[],
    };
    all.extend(names.iter().map(|name| column(name)));
    all.extend(resource.columns.iter().map(|[name, _, _]| column(name)));
    all
}

fn cells(object: &Value, resource: &ResourceInfo, now: i64) -> Vec<Value> {
    let created = meta(object, "creationTimestamp");
    let age = || Value::from(age(created, now));
    let mut cells = vec![Value::from(meta(object, "name"))];
    let text = |pointer: &str| {
        let found = object.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
        Value::from(found.unwrap_or("<none>"))
    };
    let count = |pointer: &str| object.pointer(pointer).and_then(Value::as_object).map_or(0, serde_json::Map::len);
    match resource.kind.as_str() {
        "Service" if resource.group.is_empty() => {
            let ports = Value::from(service_ports(object));
            cells.extend([text("/spec/type"), text("/spec/clusterIP"), external(object), ports, age()]);
        }
        "Secret" => cells.extend([text("/type"), count("/data").into(), age()]),
        "ConfigMap" => cells.extend([(count("/data") + count("/binaryData")).into(), age()]),
        "Namespace" => cells.extend([text("/status/phase"), age()]),
        "EndpointSlice" => cells.extend([text("/addressType"), slice_ports(object), slice_addresses(object), age()]),
        "Pod" => cells.extend([text("/status/phase"), text("/status/podIP"), age()]),
        "CustomResourceDefinition" => cells.push(created.into()),
        _ if resource.columns.is_empty() => cells.push(age()),
        _ => {}
    }
    cells.extend(resource.columns.iter().map(|[_, kind, path]| {
        let found = object.pointer(&path.replace('.', "/"));
        match (kind.as_str(), found) {
            ("date", found) => Value::from(self::age(found.and_then(Value::as_str).unwrap_or_default(), now)),
            (_, None | Some(Value::Null)) => Value::from(""),
            (_, Some(Value::String(text))) => Value::from(text.clone()),
            (_, Some(other)) => Value::from(other.to_string()),
        }
    }));
    cells
}

fn external(object: &Value) -> Value {
    if let Some(name) = object.pointer("/spec/externalName").and_then(Value::as_str) {
        return name.into();
    }
    joined(object.pointer("/spec/externalIPs")).into()
}

fn joined(list: Option<&Value>) -> String {
    let texts: Vec<&str> = list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    if texts.is_empty() { "<none>".to_owned() } else { texts.join(",") }
}

fn service_ports(object: &Value) -> String {
    let ports = object.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
    let texts: Vec<String> = ports
        .map(|port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP");
            match port["nodePort"].as_i64().filter(|number| *number > 0) {
                Some(node) => format!("{}:{node}/{protocol}", port["port"]),
                None => format!("{}/{protocol}", port["port"]),
            }
        })
        .collect();
    if texts.is_empty() { "<none>".to_owned() } else { texts.join(",") }
}

fn slice_ports(object: &Value) -> Value {
    let ports = object["ports"].as_array().into_iter().flatten();
    let texts: Vec<String> = ports.map(|port| port["port"].to_string()).collect();
    if texts.is_empty() { "<unset>".into() } else { texts.join(",").into() }
}

fn slice_addresses(object: &Value) -> Value {
    let endpoints = object["endpoints"].as_array().into_iter().flatten();
    let all: Vec<&str> = endpoints
        .flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten().filter_map(Value::as_str))
        .collect();
    match all.len() {
        0 => "<unset>".into(),
        1..=3 => all.join(",").into(),
        many => format!("{} + {} more...", all[..3].join(","), many - 3).into(),
    }
}

/// The time since a timestamp as kubectl shows it, such as `5m` or `3d4h`.
fn age(created: &str, now: i64) -> String {
    let Ok(created) = created.parse::<jiff::Timestamp>() else { return "<unknown>".to_owned() };
    let seconds = (now - created.as_second()).max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let with = |large: i64, unit: &str, small: i64, smaller: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{smaller}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => with(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => with(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => with(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        _ => with(days / 365, "y", days % 365, "d"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{age, table};
    use crate::resource::ResourceTable;

    #[test]
    fn ages_are_short() {
        let then = "2026-01-01T00:00:00Z";
        let start = then.parse::<jiff::Timestamp>().unwrap().as_second();
        for (seconds, expected) in
            [(5, "5s"), (125, "2m5s"), (700, "11m"), (12_000, "3h20m"), (90_000, "25h"), (200_000, "2d7h")]
        {
            assert_eq!(age(then, start + seconds), expected);
        }
        assert_eq!(age("", start), "<unknown>");
    }

    #[test]
    fn config_kinds_have_the_columns_of_their_definition() {
        let resource = ResourceTable::get().by_kind("networking.istio.io/v1", "VirtualService").unwrap();
        let object = json!({
            "metadata": {"name": "cart", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"hosts": ["a", "b"]},
        });
        let table = table(&[object], resource, &json!({"resourceVersion": "7"}), "Metadata");
        let names: Vec<&str> =
            table["columnDefinitions"].as_array().unwrap().iter().filter_map(|c| c["name"].as_str()).collect();
        assert_eq!(names, ["Name", "Gateways", "Hosts", "Age"]);
        let cells = &table["rows"][0]["cells"];
        assert_eq!((&cells[0], &cells[1], &cells[2]), (&json!("cart"), &json!(""), &json!("[\"a\",\"b\"]")));
        assert_eq!(table["rows"][0]["object"]["kind"], json!("PartialObjectMetadata"));
    }
}
