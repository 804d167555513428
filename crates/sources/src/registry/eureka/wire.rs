//! Eureka's JSON, reduced to what is read. It comes from XML: a list of one may be written without its list,
//! numbers and booleans may be text, and attributes begin with `@`.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Envelope {
    pub(super) applications: Applications,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Applications {
    /// Counts of instances by status, to see whether a delta led to the same state.
    #[serde(rename = "apps__hashcode")]
    pub(super) hash_code: String,
    #[serde(deserialize_with = "one_or_many")]
    pub(super) application: Vec<Application>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Application {
    pub(super) name: String,
    #[serde(deserialize_with = "one_or_many")]
    pub(super) instance: Vec<Instance>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Instance {
    pub(super) instance_id: String,
    pub(super) host_name: String,
    pub(super) app: String,
    pub(super) ip_addr: String,
    pub(super) status: String,
    #[serde(alias = "overriddenstatus")]
    pub(super) overridden_status: String,
    pub(super) port: Option<PortField>,
    pub(super) secure_port: Option<PortField>,
    #[serde(deserialize_with = "texts")]
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) data_center_info: DataCenter,
    pub(super) vip_address: String,
    /// In a delta: what happened to it.
    pub(super) action_type: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct DataCenter {
    #[serde(deserialize_with = "texts")]
    pub(super) metadata: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct PortField {
    #[serde(rename = "$")]
    number: Value,
    #[serde(rename = "@enabled", default)]
    enabled: Value,
}

impl PortField {
    /// The number of a port that is switched on.
    pub(super) fn number(&self) -> Option<u16> {
        let is_on = self.enabled == true || self.enabled.as_str().is_some_and(|text| text == "true");
        let number = self.number.as_u64().or_else(|| self.number.as_str()?.parse().ok())?;
        u16::try_from(number).ok().filter(|number| is_on && *number > 0)
    }
}

impl Instance {
    /// Old servers give no id: the host name was it.
    pub(super) fn id(&self) -> &str {
        if self.instance_id.is_empty() { &self.host_name } else { &self.instance_id }
    }

    /// The status that counts: what an operator set goes before what the instance says.
    pub(super) fn effective_status(&self) -> &str {
        match self.overridden_status.as_str() {
            "" | "UNKNOWN" => &self.status,
            set => set,
        }
    }
}

/// The hash code that a server would give to these instances.
pub(super) fn hash_code<'a>(instances: impl Iterator<Item = &'a Instance>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for instance in instances {
        *counts.entry(&instance.status).or_default() += 1;
    }
    let mut code = String::new();
    for (status, count) in counts {
        // Writing into a String cannot fail.
        let _ = write!(code, "{status}_{count}_");
    }
    code
}

fn one_or_many<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany<T> {
        Many(Vec<T>),
        One(T),
        None(()),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::Many(many) => many,
        OneOrMany::One(one) => vec![one],
        OneOrMany::None(()) => Vec::new(),
    })
}

/// Values of any simple type as text; attributes, which name Java classes, are left out.
fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let all = Option::<BTreeMap<String, Value>>::deserialize(deserializer)?.unwrap_or_default();
    let text = |value: Value| match value {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(on) => Some(on.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    Ok(all.into_iter().filter(|(key, _)| !key.starts_with('@')).filter_map(|(k, v)| Some((k, text(v)?))).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Envelope, hash_code};

    #[test]
    fn lists_of_one_and_textual_numbers_are_read() {
        let text = json!({"applications": {
            "apps__hashcode": "UP_1_",
            "application": {"name": "WEB", "instance": {
                "instanceId": "w1", "hostName": "h", "app": "WEB", "ipAddr": "10.0.0.1", "status": "UP",
                "overriddenstatus": "OUT_OF_SERVICE",
                "port": {"$": "80", "@enabled": "true"}, "securePort": {"$": 443, "@enabled": "false"},
                "metadata": {"@class": "java.util.Map", "zone": "a", "weight": 3},
                "dataCenterInfo": {"@class": "x", "name": "MyOwn"},
            }},
        }});
        let read: Envelope = serde_json::from_value(text).unwrap();
        let instance = &read.applications.application[0].instance[0];
        assert_eq!(instance.port.as_ref().and_then(|p| p.number()), Some(80));
        assert_eq!(instance.secure_port.as_ref().and_then(|p| p.number()), None);
        assert_eq!(instance.effective_status(), "OUT_OF_SERVICE");
        let metadata: Vec<_> = instance.metadata.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(metadata, ["weight=3", "zone=a"]);
        assert_eq!(hash_code([instance, instance].into_iter()), "UP_2_");
    }

    #[test]
    fn an_empty_registry_is_read() {
        for text in
            [r#"{"applications":{"apps__hashcode":"","application":[]}}"#, r#"{"applications":{"application":null}}"#]
        {
            let read: Envelope = serde_json::from_str(text).unwrap();
            assert!(read.applications.application.is_empty());
        }
    }
}
