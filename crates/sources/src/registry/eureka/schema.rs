//! JSON of Eureka's API, reduced to the fields that are read. It is converted from XML: a list with one item may be
//! written as the item, numbers and booleans as text, and attributes begin with `@`.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Envelope {
    pub(super) applications: Applications,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Applications {
    /// Number of instances by status; verifies the result of a delta.
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
    pub(super) instance: Vec<EurekaInstance>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct EurekaInstance {
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
    /// In a delta: what happened to the instance.
    pub(super) action_type: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct DataCenter {
    #[serde(deserialize_with = "texts")]
    pub(super) metadata: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct PortField {
    #[serde(rename = "$", deserialize_with = "text")]
    number: String,
    #[serde(rename = "@enabled", default, deserialize_with = "text")]
    enabled: String,
}

impl PortField {
    /// The number of an enabled port.
    pub(super) fn number(&self) -> Option<u16> {
        let number: u16 = self.number.parse().ok()?;
        Some(number).filter(|number| self.enabled == "true" && *number > 0)
    }
}

impl EurekaInstance {
    /// The instance id; old servers have the host name instead.
    pub(super) fn id(&self) -> &str {
        if self.instance_id.is_empty() { &self.host_name } else { &self.instance_id }
    }

    /// The status set by an operator, else the one that the instance reports.
    pub(super) fn effective_status(&self) -> &str {
        match self.overridden_status.as_str() {
            "" | "UNKNOWN" => &self.status,
            set => set,
        }
    }
}

/// The server's hash code of these instances.
pub(super) fn hash_code<'a>(instances: impl Iterator<Item = &'a EurekaInstance>) -> String {
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

/// A list, a single item or null. Items are decoded one by one, so that a registry is not in memory twice.
fn one_or_many<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct OneOrMany<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMany<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list, an object or null")
        }

        fn visit_unit<E>(self) -> Result<Vec<T>, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(item) = items.next_element()? {
                all.push(item);
            }
            Ok(all)
        }

        fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Vec<T>, A::Error> {
            Ok(vec![T::deserialize(MapAccessDeserializer::new(entries))?])
        }
    }
    deserializer.deserialize_any(OneOrMany(PhantomData))
}

/// A scalar value as text; `None` for null, lists and objects.
struct ScalarText(Option<String>);

impl<'de> Deserialize<'de> for ScalarText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ScalarText, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = ScalarText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<ScalarText, E> {
        Ok(ScalarText(None))
    }

    fn visit_bool<E>(self, value: bool) -> Result<ScalarText, E> {
        Ok(ScalarText(Some(value.to_string())))
    }

    fn visit_i64<E>(self, value: i64) -> Result<ScalarText, E> {
        Ok(ScalarText(Some(value.to_string())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<ScalarText, E> {
        Ok(ScalarText(Some(value.to_string())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<ScalarText, E> {
        Ok(ScalarText(serde_json::Number::from_f64(value).map(|number| number.to_string())))
    }

    fn visit_str<E>(self, value: &str) -> Result<ScalarText, E> {
        Ok(ScalarText(Some(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<ScalarText, E> {
        Ok(ScalarText(Some(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ScalarText, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(ScalarText(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<ScalarText, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(ScalarText(None))
    }
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(ScalarText::deserialize(deserializer)?.0.unwrap_or_default())
}

/// Scalar values as text, without attributes, which name Java classes.
fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let all = Option::<BTreeMap<String, ScalarText>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(all.into_iter().filter(|(key, _)| !key.starts_with('@')).filter_map(|(k, v)| Some((k, v.0?))).collect())
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
