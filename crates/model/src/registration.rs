//! Workloads that register themselves: the WorkloadEntry that a WorkloadGroup gives to a connected proxy. Writing it is
//! the caller's part.

use serde_json::{Map, Value, json};

use crate::config::{Key, Kind, Object, Spec};
use crate::names::Str;
use crate::proxy::Proxy;

/// Annotation of a registered entry: its WorkloadGroup.
pub const GROUP: &str = "istio.io/autoRegistrationGroup";
/// The replica to which the workload is or was connected.
pub const CONTROLLER: &str = "istio.io/workloadController";
/// When the workload connected; missing while it is disconnected.
pub const CONNECTED: &str = "istio.io/connectedAt";
/// When the last stream of the workload ended.
pub const DISCONNECTED: &str = "istio.io/disconnectedAt";
/// The workload's agent reports its health.
pub const HEALTH_CHECKS: &str = "proxy.istio.io/health-checks-enabled";

/// Node metadata: the WorkloadGroup to register with, or an existing WorkloadEntry whose health is reported.
const GROUP_METADATA: &str = "AUTO_REGISTER_GROUP";
const ENTRY_METADATA: &str = "WORKLOAD_ENTRY";
/// A label that describes the proxy, not the workload.
const LOCALITY_LABEL: &str = "istio-locality";
/// Longest name of an object.
const LONGEST_NAME: usize = 253;

/// What a proxy asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The WorkloadEntry.
    pub entry: Key,
    /// The WorkloadGroup that it is made from; `None` for an entry that exists.
    pub group: Option<Key>,
}

impl Registration {
    /// `None` if the proxy does not register.
    pub fn of(proxy: &Proxy) -> Option<Registration> {
        let given = |name: &str| proxy.meta(name).filter(|value| !value.is_empty());
        let key = |kind: Kind, name: &str| Key { kind, namespace: proxy.namespace.clone(), name: name.into() };
        if let Some(group) = given(GROUP_METADATA) {
            let address = proxy.ips.first()?.to_string();
            let name = entry_name(group, &address, proxy.network.text());
            let group = Some(key(Kind::WorkloadGroup, group));
            return Some(Registration { entry: key(Kind::WorkloadEntry, &name), group });
        }
        given(ENTRY_METADATA).map(|name| Registration { entry: key(Kind::WorkloadEntry, name), group: None })
    }
}

/// `group-address[-network]`, cut in front if it is too long.
fn entry_name(group: &str, address: &str, network: &str) -> String {
    let mut name = format!("{group}-{address}").replace(':', "-");
    if !network.is_empty() {
        name = format!("{name}-{network}");
    }
    let excess = name.len().saturating_sub(LONGEST_NAME);
    let start = (excess..name.len()).find(|at| name.is_char_boundary(*at)).unwrap_or_default();
    name[start..].trim_start_matches(['-', '.']).to_owned()
}

/// The service account of a group's workloads; empty if any will do.
pub fn service_account(group: &Object) -> Str {
    match &group.spec {
        Spec::WorkloadGroup(group) => group.template.as_ref().map_or("", |entry| &entry.service_account).into(),
        _ => "".into(),
    }
}

/// The WorkloadEntry as a document. `None` if the object is not a WorkloadGroup.
pub fn entry(group: &Object, registration: &Registration, proxy: &Proxy) -> Option<Value> {
    let Spec::WorkloadGroup(_) = &group.spec else { return None };
    let described = group.spec.to_json();
    let part = |pointer: &str| described.pointer(pointer).and_then(Value::as_object).cloned().unwrap_or_default();
    let mut spec = part("/template");
    let mut labels = part("/template/labels");
    labels.extend(part("/metadata/labels"));
    let own = proxy.labels.iter().filter(|(key, _)| &***key != LOCALITY_LABEL);
    labels.extend(own.map(|(key, value)| (key.to_string(), json!(&**value))));
    spec.insert("address".to_owned(), json!(proxy.ips.first()?.to_string()));
    put(&mut spec, "network", proxy.network.text());
    put(&mut spec, "locality", &locality(proxy));
    if !labels.is_empty() {
        spec.insert("labels".to_owned(), labels.clone().into());
    }
    let mut annotations = Map::from_iter([(GROUP.to_owned(), json!(&*group.meta.name))]);
    annotations.extend(part("/metadata/annotations"));
    if has_probe(proxy) {
        annotations.insert(HEALTH_CHECKS.to_owned(), json!("true"));
    }
    Some(json!({
        "apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry",
        "metadata": {
            "name": &*registration.entry.name, "namespace": registration.entry.namespace.as_str(),
            "labels": labels, "annotations": annotations,
        },
        "spec": spec,
    }))
}

fn put(spec: &mut Map<String, Value>, key: &str, value: &str) {
    if !value.is_empty() {
        spec.insert(key.to_owned(), json!(value));
    }
}

/// `region/zone/subzone` without empty parts at the end.
fn locality(proxy: &Proxy) -> String {
    let place = &proxy.locality;
    let text = [place.region(), place.zone(), place.sub_zone()].join("/");
    text.trim_end_matches('/').to_owned()
}

/// Whether the proxy's agent probes the application.
fn has_probe(proxy: &Proxy) -> bool {
    let config: Option<Value> = serde_json::from_str(&proxy.proxy_config).ok();
    config.is_some_and(|config| config.get("readinessProbe").is_some_and(|probe| !probe.is_null()))
}

#[cfg(test)]
mod tests {
    use api::envoy::config::core::v3::Node;
    use api::{Struct, Value as ProtoValue, value};
    use serde_json::json;

    use super::{Registration, entry, entry_name, service_account};
    use crate::config::Object;
    use crate::config::parse::documents;
    use crate::proxy::Proxy;

    fn text(text: &str) -> ProtoValue {
        ProtoValue { kind: Some(value::Kind::StringValue(text.to_owned())) }
    }

    fn fields(pairs: Vec<(&str, ProtoValue)>) -> ProtoValue {
        let fields = pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        ProtoValue { kind: Some(value::Kind::StructValue(Struct { fields })) }
    }

    fn proxy(metadata: Vec<(&str, ProtoValue)>) -> Proxy {
        let Some(value::Kind::StructValue(metadata)) = fields(metadata).kind else { panic!("a struct") };
        let id = "sidecar~10.0.0.7~vm.shop~shop.svc.cluster.local".to_owned();
        Proxy::from_node(&Node { id, metadata: Some(metadata), ..Node::default() }).unwrap()
    }

    fn group() -> Object {
        let group = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "WorkloadGroup",
            "metadata": {"name": "cart", "namespace": "shop"},
            "spec": {
                "metadata": {"labels": {"app": "cart", "tier": "group"}, "annotations": {"note": "mine"}},
                "template": {"serviceAccount": "keeper", "ports": {"http": 8080}, "network": "n0",
                    "labels": {"tier": "template", "zone": "a"}},
            },
        });
        documents(&group.to_string(), "").objects.remove(0)
    }

    #[test]
    fn an_entry_is_named_after_group_address_and_network() {
        assert_eq!(entry_name("cart", "10.0.0.7", ""), "cart-10.0.0.7");
        assert_eq!(entry_name("cart", "fd00::7", "n1"), "cart-fd00--7-n1");
        let long = entry_name(&"x".repeat(300), "10.0.0.7", "");
        assert_eq!(long.len(), 253);
        assert!(long.ends_with("x-10.0.0.7"));
    }

    #[test]
    fn node_group_and_template_are_merged_in_this_order() {
        let probe = fields(vec![("readinessProbe", fields(vec![("periodSeconds", text("5"))]))]);
        let proxy = proxy(vec![
            ("AUTO_REGISTER_GROUP", text("cart")),
            ("NETWORK", text("n1")),
            ("LABELS", fields(vec![("app", text("node")), ("istio-locality", text("here"))])),
            ("PROXY_CONFIG", probe),
        ]);
        let registration = Registration::of(&proxy).unwrap();
        assert_eq!(registration.entry.to_string(), "WorkloadEntry shop/cart-10.0.0.7-n1");
        let made = entry(&group(), &registration, &proxy).unwrap();
        let spec = &made["spec"];
        assert_eq!((&spec["address"], &spec["network"]), (&json!("10.0.0.7"), &json!("n1")));
        assert_eq!((&spec["serviceAccount"], &spec["ports"]), (&json!("keeper"), &json!({"http": 8080})));
        let labels = &made["metadata"]["labels"];
        assert_eq!((&labels["app"], &labels["tier"], &labels["zone"]), (&json!("node"), &json!("group"), &json!("a")));
        assert!(labels.get("istio-locality").is_none() && *labels == spec["labels"]);
        let annotations = json!({"istio.io/autoRegistrationGroup": "cart", "note": "mine",
            "proxy.istio.io/health-checks-enabled": "true"});
        assert_eq!(made["metadata"]["annotations"], annotations);
        let read = documents(&made.to_string(), "");
        assert_eq!((read.objects.len(), &read.problems[..]), (1, &[][..]));
        assert_eq!(&*service_account(&group()), "keeper");
    }

    #[test]
    fn only_proxies_that_ask_register() {
        assert_eq!(Registration::of(&proxy(vec![])), None);
        assert_eq!(Registration::of(&proxy(vec![("AUTO_REGISTER_GROUP", text(""))])), None);
        let existing = Registration::of(&proxy(vec![("WORKLOAD_ENTRY", text("vm-1"))])).unwrap();
        assert_eq!((&*existing.entry.name, existing.group), ("vm-1", None));
    }
}
