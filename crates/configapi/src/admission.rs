//! What an object must fulfil before it is stored: names and labels, its schema, and our own validation of config kinds.
//! Core kinds get the defaults that clients expect.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::config::parse;
use model::config::validate::validate;
use model::problem::{FileLocation, Problem, Severity};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::field_cause::FieldCause;
use crate::object::meta;
use crate::query::FieldValidation;
use crate::resource::ResourceInfo;
use crate::schema::{Schema, check};

/// The group of the Gateway API.
const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// What happens with objects of config kinds that our validation rejects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfigValidation {
    #[default]
    Reject,
    /// They are stored, and the problems are warnings.
    Warn,
}

/// Removes unknown fields and checks types. Returns warnings.
pub(crate) fn check_fields(
    object: &mut Value,
    resource: &ResourceInfo,
    duplicates: &[String],
    validation: FieldValidation,
) -> Result<Vec<String>, ApiError> {
    let findings = check::check(object, Schema::of(&resource.schema));
    if !findings.wrong.is_empty() {
        return Err(ApiError::invalid(resource, meta(object, "name"), &findings.wrong));
    }
    let duplicates = duplicates.iter().map(|path| format!("duplicate field {path:?}"));
    let unknown = findings.unknown.iter().map(|path| format!("unknown field {path:?}"));
    let texts: Vec<String> = duplicates.chain(unknown).collect();
    match validation {
        FieldValidation::Strict if !texts.is_empty() => {
            let version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
            let message = format!(
                "{} in version {version:?} cannot be handled as a {}: strict decoding error: {}",
                resource.kind,
                resource.kind,
                texts.join(", ")
            );
            Err(ApiError::bad_request(message))
        }
        FieldValidation::Warn => Ok(texts),
        FieldValidation::Strict | FieldValidation::Ignore => Ok(Vec::new()),
    }
}

/// Checks an object that is about to be stored. Returns warnings.
pub(crate) fn admit(object: &Value, resource: &ResourceInfo, mode: ConfigValidation) -> Result<Vec<String>, ApiError> {
    let name = meta(object, "name");
    let mut causes = name_causes(object, resource);
    causes.extend(core_causes(object, resource));
    if !causes.is_empty() {
        return Err(ApiError::invalid(resource, name, &causes));
    }
    if resource.config.is_none() {
        return Ok(Vec::new());
    }
    let problems = config_problems(object);
    let (errors, mut warnings): (Vec<&Problem>, Vec<&Problem>) =
        problems.iter().partition(|problem| problem.severity == Severity::Error);
    if mode == ConfigValidation::Warn {
        warnings.extend(errors);
    } else if !errors.is_empty() {
        let cause = |problem: &&Problem| FieldCause {
            reason: "FieldValueInvalid",
            field: String::new(),
            message: problem.message.to_string(),
        };
        return Err(ApiError::invalid(resource, name, &errors.iter().map(cause).collect::<Vec<_>>()));
    }
    // A warning is one line; the equivalent of a legacy kind has several.
    Ok(warnings.iter().map(|problem| problem.message.lines().next().unwrap_or_default().to_owned()).collect())
}

/// The problems that every other source of configuration would report.
fn config_problems(object: &Value) -> Vec<Problem> {
    let location = FileLocation { file: "request".into(), line: 0 };
    let mut parsed = parse::value(object, &location);
    parsed.problems.extend(parsed.objects.iter().flat_map(validate).collect::<Vec<_>>());
    parsed.problems
}

fn name_causes(object: &Value, resource: &ResourceInfo) -> Vec<FieldCause> {
    let name = meta(object, "name");
    let mut causes = Vec::new();
    let mut add = |field: &str, value: &str, rule: &str| {
        let shown: String = value.chars().take(300).collect();
        causes.push(invalid(field, format!("Invalid value: {shown:?}: {rule}")));
    };
    let label_rule = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                      and end with an alphanumeric character";
    match resource.kind.as_str() {
        "Namespace" | "Service" if !is_label(name) => add("metadata.name", name, label_rule),
        _ if !is_subdomain(name) => add(
            "metadata.name",
            name,
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character",
        ),
        _ => {}
    }
    let namespace = meta(object, "namespace");
    if resource.is_namespaced && !is_label(namespace) {
        add("metadata.namespace", namespace, label_rule);
    }
    for (key, value) in object.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten() {
        if !is_qualified_name(key) {
            add("metadata.labels", key, "name part must consist of alphanumeric characters, '-', '_' or '.'");
        }
        let value = value.as_str().unwrap_or_default();
        if !is_label_value(value) {
            add(
                "metadata.labels",
                value,
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', at most 63",
            );
        }
    }
    for key in object.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten().map(|(k, _)| k)
    {
        if !is_qualified_name(key) {
            add("metadata.annotations", key, "name part must consist of alphanumeric characters, '-', '_' or '.'");
        }
    }
    causes
}

fn invalid(field: &str, message: String) -> FieldCause {
    FieldCause { reason: "FieldValueInvalid", field: field.to_owned(), message }
}

/// Rules of core kinds that the mesh relies on.
fn core_causes(object: &Value, resource: &ResourceInfo) -> Vec<FieldCause> {
    let mut causes = Vec::new();
    match resource.kind.as_str() {
        "Service" => {
            for (index, port) in
                object.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten().enumerate()
            {
                let number = port.get("port").and_then(Value::as_i64).unwrap_or_default();
                if !(1..=65535).contains(&number) {
                    let message = format!("Invalid value: {number}: must be between 1 and 65535, inclusive");
                    causes.push(invalid(&format!("spec.ports[{index}].port"), message));
                }
            }
        }
        "EndpointSlice" => {
            let kind = object.get("addressType").and_then(Value::as_str).unwrap_or_default();
            if !["IPv4", "IPv6", "FQDN"].contains(&kind) {
                let message = format!("Unsupported value: {kind:?}: supported values: \"FQDN\", \"IPv4\", \"IPv6\"");
                causes.push(invalid("addressType", message));
            }
        }
        "Secret" => {
            for (key, value) in object.get("data").and_then(Value::as_object).into_iter().flatten() {
                if value.as_str().is_none_or(|text| STANDARD.decode(text).is_err()) {
                    causes.push(invalid(&format!("data[{key}]"), "Invalid value: not base64".to_owned()));
                }
            }
        }
        "CustomResourceDefinition" => {
            let (group, plural) = (text(object, "/spec/group"), text(object, "/spec/names/plural"));
            let id = format!("{plural}.{group}");
            if crate::resource::ResourceTable::get().by_id(&id).is_none_or(|known| !known.is_custom) {
                let message = format!("Forbidden: this API serves a fixed set of kinds, and {id} is none of them");
                causes.push(invalid("spec", message));
            }
        }
        _ => {}
    }
    causes
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn is_label(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let bytes = text.as_bytes();
    bytes.len() <= 63 && text.bytes().all(inner) && is_end(bytes.first()) && is_end(bytes.last())
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|part| {
            let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
            part.bytes().all(inner) && is_end(part.as_bytes().first()) && is_end(part.as_bytes().last())
        })
}

fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name_part(text)
}

fn is_name_part(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
        && is_end(bytes.first())
        && is_end(bytes.last())
}

fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(&prefix.to_lowercase()) && is_name_part(name),
        None => is_name_part(text),
    }
}

/// Sets what API servers set in core kinds.
pub(crate) fn set_defaults(object: &mut Value, resource: &ResourceInfo) {
    match resource.kind.as_str() {
        "Service" => service_defaults(object),
        "Secret" => secret_defaults(object),
        "Namespace" => {
            let name = meta(object, "name").to_owned();
            if !object["metadata"]["labels"].is_object() {
                object["metadata"]["labels"] = json!({});
            }
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name.into();
            if object.pointer("/status/phase").is_none() {
                object["status"]["phase"] = "Active".into();
            }
        }
        "CustomResourceDefinition" => definition_defaults(object),
        "Ingress" => set_status(object, json!({"loadBalancer": {}})),
        "Gateway" if resource.group == GATEWAY_API => set_status(object, pending(&["Accepted", "Programmed"])),
        "GatewayClass" => set_status(object, pending(&["Accepted"])),
        _ => {}
    }
}

/// Sets a status that a new object lacks.
fn set_status(object: &mut Value, status: Value) {
    if object.get("status").is_none_or(Value::is_null) {
        object["status"] = status;
    }
}

/// The status of the Gateway API's definitions before a controller has seen an object.
fn pending(conditions: &[&str]) -> Value {
    let condition = |kind: &&str| {
        json!({
            "type": kind, "status": "Unknown", "reason": "Pending", "message": "Waiting for controller",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        })
    };
    json!({"conditions": conditions.iter().map(condition).collect::<Vec<_>>()})
}

fn service_defaults(object: &mut Value) {
    set_status(object, json!({"loadBalancer": {}}));
    if !object["spec"].is_object() {
        object["spec"] = json!({});
    }
    let spec = &mut object["spec"];
    let defaults = [("type", "ClusterIP"), ("sessionAffinity", "None")];
    for (key, value) in defaults {
        if spec.get(key).is_none_or(Value::is_null) {
            spec[key] = value.into();
        }
    }
    if let (None, Some(ip)) = (spec.get("clusterIPs"), spec.get("clusterIP").filter(|ip| ip.as_str() != Some(""))) {
        spec["clusterIPs"] = json!([ip]);
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if !port.is_object() {
            continue;
        }
        if port.get("protocol").is_none_or(Value::is_null) {
            port["protocol"] = "TCP".into();
        }
        if port.get("targetPort").is_none_or(Value::is_null) {
            port["targetPort"] = port["port"].clone();
        }
    }
}

fn secret_defaults(object: &mut Value) {
    let plain = object.as_object_mut().and_then(|fields| fields.shift_remove("stringData"));
    for (key, value) in plain.as_ref().and_then(Value::as_object).into_iter().flatten() {
        if !object["data"].is_object() {
            object["data"] = json!({});
        }
        object["data"][key.as_str()] = STANDARD.encode(value.as_str().unwrap_or_default()).into();
    }
    if object.get("type").is_none_or(|kind| kind.as_str() == Some("")) {
        object["type"] = "Opaque".into();
    }
}

/// Clients wait until a definition is established.
fn definition_defaults(object: &mut Value) {
    let condition = |kind: &str, reason: &str| {
        json!({"type": kind, "status": "True", "reason": reason, "message": "",
            "lastTransitionTime": "1970-01-01T00:00:00Z"})
    };
    let versions = object.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
    let stored: Vec<Value> = versions.filter(|v| v["storage"] == json!(true)).map(|v| v["name"].clone()).collect();
    object["status"] = json!({
        "acceptedNames": object.pointer("/spec/names").cloned().unwrap_or_default(),
        "conditions": [condition("NamesAccepted", "NoConflicts"), condition("Established", "InitialNamesAccepted")],
        "storedVersions": stored,
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{ConfigValidation, admit, check_fields, set_defaults};
    use crate::query::FieldValidation;
    use crate::resource::{ResourceInfo, ResourceTable};

    fn resource(api_version: &str, kind: &str) -> &'static ResourceInfo {
        ResourceTable::get().by_kind(api_version, kind).expect("a served kind")
    }

    fn virtual_service(weight: i64) -> Value {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
            "metadata": {"name": "cart", "namespace": "shop"},
            "spec": {"hosts": ["cart"], "http": [{"route": [{"destination": {"host": "cart"}, "weight": weight}]}]},
        })
    }

    #[test]
    fn config_kinds_are_validated() {
        let resource = resource("networking.istio.io/v1", "VirtualService");
        assert_eq!(admit(&virtual_service(100), resource, ConfigValidation::Reject), Ok(Vec::new()));
        let error = admit(&virtual_service(-1), resource, ConfigValidation::Reject).unwrap_err();
        assert_eq!((error.code, error.reason), (422, "Invalid"));
        assert!(error.message.contains("weight"), "{}", error.message);
        let warnings = admit(&virtual_service(-1), resource, ConfigValidation::Warn).unwrap();
        assert!(!warnings.is_empty());
    }

    #[test]
    fn names_and_labels_follow_the_rules_of_kubernetes() {
        let resource = resource("v1", "ConfigMap");
        for (name, is_good) in [("a", true), ("a.b-c", true), ("A", false), ("", false), ("-a", false), ("a..b", false)]
        {
            let object = json!({"metadata": {"name": name, "namespace": "shop"}});
            assert_eq!(admit(&object, resource, ConfigValidation::Reject).is_ok(), is_good, "{name}");
        }
        let longest = json!({"metadata": {"name": "a".repeat(253), "namespace": "shop"}});
        assert!(admit(&longest, resource, ConfigValidation::Reject).is_ok());
        let too_long = json!({"metadata": {"name": "a".repeat(254), "namespace": "shop"}});
        assert!(admit(&too_long, resource, ConfigValidation::Reject).is_err());
        let label = json!({"metadata": {"name": "a", "namespace": "shop", "labels": {"a": "not good"}}});
        assert_eq!(admit(&label, resource, ConfigValidation::Reject).unwrap_err().code, 422);
    }

    #[test]
    fn unknown_fields_are_errors_warnings_or_ignored() {
        let resource = resource("networking.istio.io/v1", "VirtualService");
        let object = || {
            let mut object = virtual_service(1);
            object["spec"]["hostz"] = json!([]);
            object
        };
        let error = check_fields(&mut object(), resource, &[], FieldValidation::Strict).unwrap_err();
        assert!(error.message.ends_with("strict decoding error: unknown field \"spec.hostz\""), "{}", error.message);
        let warnings = check_fields(&mut object(), resource, &[], FieldValidation::Warn);
        assert_eq!(warnings, Ok(vec!["unknown field \"spec.hostz\"".to_owned()]));
        let mut ignored = object();
        assert_eq!(check_fields(&mut ignored, resource, &[], FieldValidation::Ignore), Ok(Vec::new()));
        assert_eq!(ignored["spec"].get("hostz"), None);
    }

    #[test]
    fn core_kinds_get_defaults() {
        let mut secret = json!({"metadata": {"name": "a"}, "stringData": {"k": "v"}});
        set_defaults(&mut secret, resource("v1", "Secret"));
        assert_eq!(secret, json!({"metadata": {"name": "a"}, "data": {"k": "dg=="}, "type": "Opaque"}));
        let mut gateway = json!({});
        set_defaults(&mut gateway, resource("gateway.networking.k8s.io/v1", "Gateway"));
        assert_eq!(gateway["status"]["conditions"][1]["type"], json!("Programmed"));
        let mut service = json!({"spec": {"ports": [{"port": 80}]}});
        set_defaults(&mut service, resource("v1", "Service"));
        assert_eq!(service["spec"]["ports"], json!([{"port": 80, "protocol": "TCP", "targetPort": 80}]));
    }
}
