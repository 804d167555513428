//! Checks an object against its schema: removes fields that the schema does not have, and reports them and values of
//! a wrong type.

use serde_json::Value;

use super::Schema;
use crate::field_cause::FieldCause;

/// Objects nested deeper than this are rejected.
const DEEPEST: usize = 100;

/// What was found in an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Paths of unknown fields, which were removed.
    pub(crate) unknown: Vec<String>,
    pub(crate) wrong: Vec<FieldCause>,
}

/// Checks an object and removes unknown fields.
pub(crate) fn check(object: &mut Value, schema: Schema<'_>) -> Findings {
    let mut findings = Findings::default();
    walk(object, schema, "", 0, &mut findings);
    findings
}

fn walk(value: &mut Value, schema: Schema<'_>, path: &str, depth: usize, findings: &mut Findings) {
    if depth > DEEPEST {
        findings.wrong.push(cause(path, format!("nested deeper than {DEEPEST} levels")));
        return;
    }
    if let Some(expected) = schema.kind().filter(|expected| !has_type(value, expected)) {
        let found = kind_of(value);
        findings.wrong.push(cause(path, format!("Invalid value: {found:?}: must be of type {expected}: {found:?}")));
        return;
    }
    match value {
        Value::Object(fields) => {
            let mut unknown = Vec::new();
            for (name, value) in fields.iter_mut() {
                let place = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match schema.field(name) {
                    Some(schema) => walk(value, schema, &place, depth + 1, findings),
                    None => unknown.push(name.clone()),
                }
            }
            for name in unknown {
                fields.shift_remove(&name);
                findings.unknown.push(if path.is_empty() { name } else { format!("{path}.{name}") });
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                walk(item, schema.items(), &format!("{path}[{index}]"), depth + 1, findings);
            }
        }
        _ => {}
    }
}

fn cause(field: &str, message: String) -> FieldCause {
    FieldCause { reason: "FieldValueTypeInvalid", field: field.to_owned(), message }
}

/// Null means that a field is absent.
fn has_type(value: &Value, expected: &str) -> bool {
    match (expected, value) {
        (_, Value::Null)
        | ("object", Value::Object(_))
        | ("array", Value::Array(_))
        | ("string", Value::String(_))
        | ("boolean", Value::Bool(_))
        | ("number", Value::Number(_)) => true,
        ("integer", Value::Number(number)) => number.is_i64() || number.is_u64(),
        _ => false,
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::check;
    use crate::resource::ResourceTable;
    use crate::schema::Schema;

    #[test]
    fn unknown_fields_are_removed_and_named() {
        let table = ResourceTable::get();
        let resource = table.by_kind("v1", "Service").expect("a core kind");
        let mut service = json!({
            "metadata": {"name": "cart", "lables": {}},
            "spec": {"ports": [{"port": 80, "prot": "TCP"}], "selector": {"any": "label"}},
            "status": {"anything": 1},
        });
        let findings = check(&mut service, Schema::of(&resource.schema));
        assert_eq!(findings.unknown, ["metadata.lables", "spec.ports[0].prot"]);
        assert_eq!(findings.wrong, []);
        assert_eq!(service["spec"]["ports"], json!([{"port": 80}]));
    }

    #[test]
    fn values_of_a_wrong_type_are_named() {
        let table = ResourceTable::get();
        let resource = table.by_kind("networking.istio.io/v1", "VirtualService").expect("a config kind");
        let mut object = json!({"spec": {"hosts": "a", "http": [{"timeout": 3}]}});
        let findings = check(&mut object, Schema::of(&resource.schema));
        let fields: Vec<&str> = findings.wrong.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!(fields, ["spec.hosts", "spec.http[0].timeout"]);
        assert_eq!(findings.wrong[0].message, r#"Invalid value: "string": must be of type array: "string""#);
    }
}
