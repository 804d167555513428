//! JSON of Consul's API, reduced to the fields that are read. Absent lists and maps are null.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Service names with the tags of all their instances.
pub(super) type CatalogServices = BTreeMap<String, Vec<String>>;

/// Limit of the instances of one service.
const MOST_INSTANCES: usize = 100_000;

/// All instances of a service.
#[derive(Debug, Default)]
pub(super) struct ConsulInstances(pub(super) Vec<ConsulInstance>);

impl<'de> Deserialize<'de> for ConsulInstances {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ConsulInstances, D::Error> {
        deserializer.deserialize_seq(InstancesVisitor)
    }
}

struct InstancesVisitor;

impl<'de> Visitor<'de> for InstancesVisitor {
    type Value = ConsulInstances;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of instances")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ConsulInstances, A::Error> {
        let mut all = Vec::new();
        while let Some(instance) = items.next_element()? {
            if all.len() == MOST_INSTANCES {
                return Err(A::Error::custom(format_args!("more than {MOST_INSTANCES} instances")));
            }
            all.push(instance);
        }
        Ok(ConsulInstances(all))
    }
}

/// An instance with its own checks and those of its node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ConsulInstance {
    pub(super) node: ConsulNode,
    pub(super) service: ConsulService,
    #[serde(deserialize_with = "or_default")]
    pub(super) checks: Vec<HealthCheck>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ConsulNode {
    pub(super) node: String,
    pub(super) address: String,
    pub(super) datacenter: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) tagged_addresses: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) meta: BTreeMap<String, String>,
    pub(super) locality: Option<ConsulLocality>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ConsulService {
    #[serde(rename = "ID")]
    pub(super) id: String,
    pub(super) service: String,
    pub(super) kind: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) tags: Vec<String>,
    pub(super) address: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) tagged_addresses: BTreeMap<String, TaggedAddress>,
    #[serde(deserialize_with = "or_default")]
    pub(super) meta: BTreeMap<String, String>,
    pub(super) port: u16,
    /// Several ports of one instance, since Consul 1.22.
    #[serde(deserialize_with = "or_default")]
    pub(super) ports: Vec<ConsulPort>,
    pub(super) weights: Option<Weights>,
    pub(super) locality: Option<ConsulLocality>,
    pub(super) namespace: String,
    pub(super) partition: String,
    pub(super) modify_index: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ConsulPort {
    pub(super) name: String,
    pub(super) port: u16,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct TaggedAddress {
    pub(super) address: String,
    pub(super) port: u16,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Weights {
    pub(super) passing: u32,
    pub(super) warning: u32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ConsulLocality {
    pub(super) region: String,
    pub(super) zone: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct HealthCheck {
    pub(super) node: String,
    #[serde(rename = "CheckID")]
    pub(super) check_id: String,
    pub(super) status: String,
    #[serde(rename = "ServiceID")]
    pub(super) service_id: String,
    pub(super) service_name: String,
    pub(super) modify_index: u64,
}

/// An entry of the list of nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct NodeName {
    pub(super) node: String,
}

/// All services of one node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct NodeServices {
    #[serde(deserialize_with = "or_default")]
    pub(super) services: Vec<ConsulService>,
}

fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
