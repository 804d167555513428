//! Splits EnvoyFilters into patches whose values are parsed as Envoy messages, once per object. `scope` selects the
//! patches of a client; `translate` applies them.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use api::istio::networking::v1alpha3::EnvoyFilter;
use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use api::istio::networking::v1alpha3::envoy_filter::{
    ApplyTo, EnvoyConfigObjectMatch, EnvoyConfigObjectPatch, PatchContext,
};
use api::{Struct, Value, value};
use bytes::Bytes;
use prost_reflect::DynamicMessage;
use regex::bytes::Regex;
use serde_json::{Map, Number};

use super::message::{self, FieldFinding};
use super::pattern;
use super::{Config, Kind, encode};
use crate::config::problem::{Problem, ProblemCode, Severity};
use crate::hashed::Hashed;
use crate::proxy::Proxy;
use crate::settings::Knobs;

/// Services that a gateway needs only for patches: comma-separated `host` or `namespace/host`.
const REFERENCED_SERVICES: &str = "envoyfilter.istio.io/referenced-services";

/// One patch to the generated config.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Patch {
    pub apply_to: ApplyTo,
    pub operation: Operation,
    pub matching: Hashed<EnvoyConfigObjectMatch>,
    /// `None` for removals only.
    pub value: Option<PatchValue>,
}

impl Patch {
    pub fn context(&self) -> PatchContext {
        self.matching.context()
    }

    /// The decoded value.
    pub fn message(&self) -> Option<&DynamicMessage> {
        let value = self.value.as_ref()?;
        let decode = || {
            let descriptor = api::reflect::envoy().get_message_by_name(envoy_message(self.apply_to)?)?;
            DynamicMessage::decode(descriptor, value.bytes.clone()).ok()
        };
        value.decoded.get_or_init(decode).as_ref()
    }

    /// Encoded size of the value.
    pub fn size(&self) -> usize {
        self.value.as_ref().map_or(0, |value| value.bytes.len())
    }
}

/// An encoded message of the type that `apply_to` implies.
#[derive(Clone, Debug)]
pub struct PatchValue {
    pub bytes: Bytes,
    decoded: OnceLock<Option<DynamicMessage>>,
}

impl PartialEq for PatchValue {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for PatchValue {}

impl Hash for PatchValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}

/// An EnvoyFilter and its valid patches, in order.
#[derive(Clone, Debug)]
pub struct PatchSet {
    pub config: Config<EnvoyFilter>,
    patches: Arc<[Candidate]>,
    /// Patches that are left out because of their size: index and number of bytes.
    too_large: Arc<[(usize, usize)]>,
}

/// A patch and the proxies that it matches.
#[derive(Debug)]
struct Candidate {
    patch: Hashed<Patch>,
    version: Option<Regex>,
}

impl PatchSet {
    /// Parses all values, unless `before` has the same spec. Values above the limit are left out: each may be copied into
    /// every listener of every proxy.
    pub fn new(config: Config<EnvoyFilter>, before: Option<&PatchSet>, knobs: &Knobs) -> PatchSet {
        if let Some(known) = before.filter(|known| known.config.spec == config.spec) {
            return PatchSet { config, patches: known.patches.clone(), too_large: known.too_large.clone() };
        }
        let read = |(index, spec)| candidate(spec).map(|candidate| (index, candidate));
        let read = config.spec.config_patches.iter().enumerate().filter_map(read);
        let (fitting, large): (Vec<_>, Vec<_>) =
            read.partition(|(_, found)| found.patch.size() <= knobs.patch_bytes as usize);
        let patches = fitting.into_iter().map(|(_, candidate)| candidate).collect();
        let too_large = large.into_iter().map(|(index, candidate)| (index, candidate.patch.size())).collect();
        PatchSet { config, patches, too_large }
    }

    /// Problems of patches that are left out.
    pub fn problems(&self, knobs: &Knobs) -> impl Iterator<Item = Problem> {
        let meta = &self.config.meta;
        self.too_large.iter().map(|(index, bytes)| {
            let about = meta.key(Kind::EnvoyFilter);
            let message = format!(
                "configPatches[{index}] is not applied: its value has {bytes} bytes, at most {} are allowed \
                 (PILOTAGE_PATCH_BYTES); keep scripts and modules in files of the proxy or behind ExtensionConfig",
                knobs.patch_bytes
            );
            Problem::error(about, message).coded(ProblemCode::Limit).at(meta.location.clone())
        })
    }

    /// Patches that match this proxy's version and metadata.
    pub fn for_proxy<'a>(&'a self, proxy: &'a Proxy) -> impl Iterator<Item = &'a Hashed<Patch>> {
        self.patches.iter().filter(|candidate| candidate.allows(proxy)).map(|candidate| &candidate.patch)
    }

    /// Keys of proxy metadata that some patch matches on.
    pub fn metadata_keys(&self) -> impl Iterator<Item = &str> {
        let proxies = self.patches.iter().filter_map(|candidate| candidate.patch.matching.proxy.as_ref());
        proxies.flat_map(|proxy| proxy.metadata.keys()).map(String::as_str)
    }

    /// Services that gateways get clusters for because of this filter.
    pub fn referenced_services(&self) -> impl Iterator<Item = &str> {
        let listed = self.config.meta.annotations.get(REFERENCED_SERVICES);
        listed.into_iter().flat_map(|text| text.split(',')).filter(|name| !name.is_empty())
    }
}

impl Candidate {
    fn allows(&self, proxy: &Proxy) -> bool {
        let Some(wanted) = &self.patch.matching.proxy else { return true };
        // A proxy of unknown version matches no expression.
        let version = proxy.meta("ISTIO_VERSION").filter(|version| !version.is_empty());
        self.version.as_ref().is_none_or(|regex| version.is_some_and(|version| regex.is_match(version.as_bytes())))
            && wanted.metadata.iter().all(|(key, value)| proxy.meta(key) == Some(value))
    }
}

/// `None` for an invalid patch; validation reports why.
fn candidate(spec: &EnvoyConfigObjectPatch) -> Option<Candidate> {
    let patch = spec.patch.as_ref()?;
    let apply_to = ApplyTo::try_from(spec.apply_to).ok().filter(|kind| *kind != ApplyTo::Invalid)?;
    let operation = Operation::try_from(patch.operation).ok().filter(|it| *it != Operation::Invalid)?;
    let value = match &patch.value {
        Some(value) => Some(PatchValue { bytes: encoded(apply_to, value)?.into(), decoded: OnceLock::new() }),
        None if operation == Operation::Remove => None,
        None => return None,
    };
    let matching = spec.r#match.clone().unwrap_or_default();
    let expression = matching.proxy.as_ref().map_or("", |proxy| proxy.proxy_version.as_str());
    let version = match expression {
        "" => None,
        expression => Some(pattern::compile(expression).ok()?),
    };
    let matching = Hashed::from_message(matching);
    Some(Candidate {
        patch: Hashed::new(Patch { apply_to, operation: normal(apply_to, operation), matching, value }),
        version,
    })
}

/// Insert operations are for ordered lists only; elsewhere they are ADD.
fn normal(apply_to: ApplyTo, operation: Operation) -> Operation {
    let inserts = matches!(operation, Operation::InsertBefore | Operation::InsertAfter | Operation::InsertFirst);
    let ordered =
        [ApplyTo::ListenerFilter, ApplyTo::NetworkFilter, ApplyTo::HttpFilter, ApplyTo::HttpRoute].contains(&apply_to);
    if inserts && !ordered { Operation::Add } else { operation }
}

fn encoded(apply_to: ApplyTo, value: &Struct) -> Option<Vec<u8>> {
    let (message, findings) = read_value(apply_to, value)?;
    // Unknown fields may belong to another Envoy version; anything else is a mistake.
    let broken = findings.iter().any(|finding| finding.severity == Severity::Error);
    (!broken).then(|| encode::encode(&message))
}

/// Parses a patch value as the expected message. Paths of findings begin with `patch.value`.
pub(super) fn read_value(apply_to: ApplyTo, value: &Struct) -> Option<(DynamicMessage, Vec<FieldFinding>)> {
    let descriptor = api::reflect::envoy().get_message_by_name(envoy_message(apply_to)?)?;
    let json = serde_json::Value::Object(json_object(value));
    Some(message::read(&descriptor, &json, "patch.value"))
}

/// The expected message of a patch value.
fn envoy_message(apply_to: ApplyTo) -> Option<&'static str> {
    Some(match apply_to {
        ApplyTo::Invalid => return None,
        ApplyTo::Cluster => "envoy.config.cluster.v3.Cluster",
        ApplyTo::Listener => "envoy.config.listener.v3.Listener",
        ApplyTo::FilterChain => "envoy.config.listener.v3.FilterChain",
        ApplyTo::NetworkFilter => "envoy.config.listener.v3.Filter",
        ApplyTo::ListenerFilter => "envoy.config.listener.v3.ListenerFilter",
        ApplyTo::HttpFilter => "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter",
        ApplyTo::RouteConfiguration => "envoy.config.route.v3.RouteConfiguration",
        ApplyTo::VirtualHost => "envoy.config.route.v3.VirtualHost",
        ApplyTo::HttpRoute => "envoy.config.route.v3.Route",
        ApplyTo::ExtensionConfig => "envoy.config.core.v3.TypedExtensionConfig",
        ApplyTo::Bootstrap => "envoy.config.bootstrap.v3.Bootstrap",
    })
}

fn json_object(value: &Struct) -> Map<String, serde_json::Value> {
    value.fields.iter().map(|(key, value)| (key.clone(), json(value))).collect()
}

fn json(value: &Value) -> serde_json::Value {
    match &value.kind {
        None | Some(value::Kind::NullValue(_)) => serde_json::Value::Null,
        Some(value::Kind::BoolValue(value)) => (*value).into(),
        Some(value::Kind::NumberValue(value)) => {
            Number::from_f64(*value).map_or(serde_json::Value::Null, serde_json::Value::Number)
        }
        Some(value::Kind::StringValue(text)) => text.as_str().into(),
        Some(value::Kind::ListValue(list)) => list.values.iter().map(json).collect(),
        Some(value::Kind::StructValue(value)) => serde_json::Value::Object(json_object(value)),
    }
}

#[cfg(test)]
mod tests;
