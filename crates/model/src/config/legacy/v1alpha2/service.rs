//! `IstioService`: a reference to a service, by parts or by full name, with labels that select a subset.

use serde_json::{Map, Value, json};

use super::super::LegacyError;
use super::super::fields::LegacyFields;

/// A service, or its workloads with some labels.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ServiceRef {
    pub(super) host: String,
    pub(super) namespace: String,
    pub(super) labels: Map<String, Value>,
}

impl ServiceRef {
    /// Reads an `IstioService`. A host without dots is relative to the namespace of the object.
    pub(super) fn read(mut fields: LegacyFields<'_>, notes: &mut Vec<String>) -> Result<ServiceRef, LegacyError> {
        let (name, namespace) = (fields.text("name")?, fields.text("namespace")?);
        let (domain, service) = (fields.text("domain")?, fields.text("service")?);
        let host = match (service, namespace, domain) {
            ("", "", "") => name.to_owned(),
            ("", namespace, "") => format!("{name}.{namespace}.svc.{}", fields.domain()),
            ("", "", domain) => format!("{name}.{domain}"),
            ("", namespace, domain) => format!("{name}.{namespace}.{domain}"),
            (service, _, _) => service.to_owned(),
        };
        let labels = labels(&mut fields)?;
        fields.finish(notes);
        Ok(ServiceRef { host, namespace: namespace.to_owned(), labels })
    }

    /// The `destination` of a route: host and subset.
    pub(super) fn destination(&self) -> Value {
        match self.subset() {
            Some(subset) => json!({"host": self.host, "subset": subset}),
            None => json!({"host": self.host}),
        }
    }

    /// The name of the subset, generated from the labels.
    pub(super) fn subset(&self) -> Option<String> {
        if self.labels.is_empty() {
            return None;
        }
        let mut pairs: Vec<_> = self.labels.iter().collect();
        pairs.sort_by_key(|(key, _)| *key);
        let parts: Vec<String> =
            pairs.iter().map(|(key, value)| format!("{key}-{}", value.as_str().unwrap_or_default())).collect();
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        Some(parts.join("-").chars().map(plain).collect::<String>().trim_matches('-').to_owned())
    }
}

/// The `labels` of a message.
pub(super) fn labels(fields: &mut LegacyFields<'_>) -> Result<Map<String, Value>, LegacyError> {
    match fields.value("labels") {
        None => Ok(Map::new()),
        Some(Value::Object(labels)) if labels.values().all(Value::is_string) => Ok(labels.clone()),
        Some(_) => Err(LegacyError::WrongType { path: fields.path("labels"), expected: "strings by name" }),
    }
}

/// A required service reference.
pub(super) fn required(
    fields: &mut LegacyFields<'_>,
    name: &'static str,
    notes: &mut Vec<String>,
) -> Result<ServiceRef, LegacyError> {
    let named = fields.message(name)?.map(|found| ServiceRef::read(found, notes)).transpose()?;
    let named = named.filter(|named| !named.host.is_empty());
    named.ok_or_else(|| LegacyError::Incomplete { path: fields.path(name), flaw: "it has no service name" })
}
