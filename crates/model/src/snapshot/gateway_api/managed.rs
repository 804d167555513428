//! Managed gateways: Gateways whose proxies this control plane deploys, and what their objects are made from. `inject`
//! renders the objects, `sources::gateways` applies them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::class::{self, ClassSupport};
use super::conflicts;
use super::gateways::{admits, is_child};
use super::tracked::{TrackedSnapshot, all};
use crate::config::gateway_api::{Gateway, Listener, ListenerSet};
use crate::config::{Config, Meta};
use crate::names::{Namespace, Str};

/// Annotation of a Gateway with the version of the controller that deploys it. The highest version wins.
pub const VERSION_ANNOTATION: &str = "gateway.istio.io/controller-version";
/// Our version: that of upstream since 1.18.
pub const CONTROLLER_VERSION: i64 = 5;

const SERVICE_TYPE: &str = "networking.istio.io/service-type";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Labels and annotations with this prefix are ours to set.
const RESERVED: &str = "gateway.networking.k8s.io/";
/// Annotations of the Gateway that are not passed on.
const OWN_ANNOTATIONS: [&str; 4] = [LAST_APPLIED, class::NAME_OVERRIDE, class::ACCOUNT, VERSION_ANNOTATION];
/// The port that every gateway has, for load balancers to probe.
const STATUS_PORT: (&str, u16) = ("status-port", 15021);
/// Kubernetes limits names of ports to this length.
const LONGEST_PORT_NAME: usize = 63;

/// A Gateway whose proxies are deployed by us.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ManagedGateway {
    pub namespace: Namespace,
    pub name: Str,
    pub class: Str,
    /// Name of the Deployment and Service.
    pub deployment: Str,
    pub account: Str,
    /// The user names the account: if it exists, it is used as it is.
    pub account_is_given: bool,
    pub labels: BTreeMap<Str, Str>,
    pub annotations: BTreeMap<Str, Str>,
    pub service_type: Str,
    /// The address that the load balancer should have.
    pub address: Option<Str>,
    pub ports: Vec<GatewayPort>,
    pub parameters: GatewayParameters,
    /// Whether the annotation with the controller's version must be written.
    pub takes_over: bool,
}

/// A port of a gateway's Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatewayPort {
    pub name: String,
    pub number: u16,
    /// In lower case.
    pub app_protocol: String,
}

/// `spec.infrastructure.parametersRef`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GatewayParameters {
    None,
    /// A ConfigMap of the Gateway's namespace.
    ConfigMap(Str),
    /// Group and kind that are not supported.
    Unsupported(String),
}

/// The managed gateways, sorted by namespace and name.
pub(super) fn collect(snapshot: &TrackedSnapshot<'_>) -> Vec<Arc<ManagedGateway>> {
    if !snapshot.settings().knobs.deploy_gateways {
        return Vec::new();
    }
    let sets: Vec<Config<ListenerSet>> = all!(snapshot, ListenerSet);
    let mut managed: Vec<Arc<ManagedGateway>> = all!(snapshot, KubernetesGateway)
        .iter()
        .filter(|gateway| !gateway.meta.is_of_other_revision)
        .filter(|gateway| class::of(snapshot, &gateway.spec.gateway_class_name) == Some(ClassSupport::Served))
        .filter(|gateway| class::is_managed(snapshot, &gateway.spec))
        .filter_map(|gateway| managed_gateway(snapshot, gateway, &sets))
        .map(Arc::new)
        .collect();
    managed.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    managed
}

/// `None` if a newer controller deploys the Gateway.
fn managed_gateway(
    snapshot: &TrackedSnapshot<'_>,
    gateway: &Config<Gateway>,
    sets: &[Config<ListenerSet>],
) -> Option<ManagedGateway> {
    let (meta, spec) = (&gateway.meta, &gateway.spec);
    let takes_over = takes_over(meta)?;
    let admitted =
        sets.iter().filter(|set| is_child(set, meta) && admits(snapshot, gateway, &set.meta)).flat_map(|set| {
            set.spec.listeners.iter().filter_map(|listener| Some((listener, conflicts::port_of(listener).ok()?)))
        });
    let own = spec.listeners.iter().map(|listener| (listener, listener.port));
    let copies = snapshot.settings().knobs.copy_gateway_metadata;
    let infrastructure = &spec.infrastructure;
    let labels = || meta.labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    Some(ManagedGateway {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        class: spec.gateway_class_name.as_str().into(),
        deployment: class::deployed_name(meta, spec).into(),
        account: class::account(meta, spec).into(),
        account_is_given: meta.annotations.get(class::ACCOUNT).is_some_and(|name| !name.is_empty()),
        labels: passed_on(infrastructure.labels.as_ref(), copies, labels),
        annotations: passed_on(infrastructure.annotations.as_ref(), copies, || meta.annotations.clone()),
        service_type: meta.annotations.get(SERVICE_TYPE).cloned().unwrap_or_else(|| "LoadBalancer".into()),
        address: spec.addresses.first().map(|address| address.value.as_str().into()),
        ports: ports(own.chain(admitted)),
        parameters: parameters(spec),
        takes_over,
    })
}

/// Whether the Gateway has to be taken over from an older controller; `None` if a newer one has it.
fn takes_over(meta: &Meta) -> Option<bool> {
    let Some(version) = meta.annotations.get(VERSION_ANNOTATION) else { return Some(true) };
    let version: i64 = version.parse().ok()?;
    (version <= CONTROLLER_VERSION).then_some(version < CONTROLLER_VERSION)
}

/// Labels or annotations of what is deployed: those of `infrastructure`, else a copy of the Gateway's own.
fn passed_on(
    given: Option<&BTreeMap<String, String>>,
    copies: bool,
    own: impl Fn() -> BTreeMap<Str, Str>,
) -> BTreeMap<Str, Str> {
    let mut passed = match given {
        Some(given) => given
            .iter()
            .filter(|(key, _)| !key.starts_with(RESERVED))
            .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
            .collect(),
        None if copies => own(),
        None => BTreeMap::new(),
    };
    passed.retain(|key: &Str, _| !OWN_ANNOTATIONS.contains(&&**key));
    passed
}

fn parameters(gateway: &Gateway) -> GatewayParameters {
    match &gateway.infrastructure.parameters_ref {
        None => GatewayParameters::None,
        Some(reference) if reference.kind == "ConfigMap" && reference.group.is_empty() => {
            GatewayParameters::ConfigMap(reference.name.as_str().into())
        }
        Some(reference) => GatewayParameters::Unsupported(format!("{}/{}", reference.group, reference.kind)),
    }
}

/// The ports of the Service, each number once. Names of listeners may be longer than those of ports, and different names
/// may become equal when they are cut. UDP is not served.
fn ports<'a>(listeners: impl Iterator<Item = (&'a Listener, u16)>) -> Vec<GatewayPort> {
    let (name, number) = STATUS_PORT;
    let mut names = BTreeSet::from([name.to_owned()]);
    let mut numbers = BTreeSet::from([number]);
    let mut ports = vec![GatewayPort { name: name.to_owned(), number, app_protocol: "tcp".to_owned() }];
    for (listener, number) in listeners {
        if listener.protocol == "UDP" || !numbers.insert(number) {
            continue;
        }
        let name = port_name(&listener.name, number, &names);
        names.insert(name.clone());
        ports.push(GatewayPort { name, number, app_protocol: listener.protocol.to_lowercase() });
    }
    ports
}

fn port_name(listener: &str, number: u16, used: &BTreeSet<String>) -> String {
    let cut = |text: &str, length: usize| {
        let cut: String = text.chars().take(length).collect();
        cut.trim_end_matches('-').to_owned()
    };
    let name = cut(&listener.replace('.', "-"), LONGEST_PORT_NAME);
    if !name.is_empty() && !used.contains(&name) {
        return name;
    }
    let suffix = format!("-{number}");
    let numbered = format!("{}{suffix}", cut(&name, LONGEST_PORT_NAME - suffix.len()));
    // Numbers are unique, so is this name.
    if numbered.starts_with('-') || used.contains(&numbered) { format!("port-{number}") } else { numbered }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{GatewayParameters, GatewayPort, ManagedGateway};
    use crate::change::{Batch, Change, SourceId};
    use crate::config::Kind;
    use crate::config::parse::documents;
    use crate::settings::Settings;
    use crate::snapshot::Snapshot;

    fn collected(settings: Settings, text: &str) -> Vec<Arc<ManagedGateway>> {
        let parsed = documents(text, "f");
        assert_eq!(parsed.problems, []);
        let changes = parsed.objects.into_iter().map(Change::Applied).collect();
        let batch = Batch { source: SourceId("files".into()), changes };
        Snapshot::empty(settings).apply(vec![batch]).0.converted.managed.clone()
    }

    fn gateway(metadata: &str, spec: &str) -> String {
        format!(
            "{{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {{name: front, namespace: shop{metadata}}}, \
             spec: {{gatewayClassName: istio, listeners: [{{name: web, port: 80, protocol: HTTP}}]{spec}}}}}\n"
        )
    }

    fn one(metadata: &str, spec: &str) -> ManagedGateway {
        let all = collected(Settings::default(), &gateway(metadata, spec));
        let [only] = all.as_slice() else { panic!("{all:?}") };
        ManagedGateway::clone(only)
    }

    #[test]
    fn gateways_of_other_deployers_are_left_out() {
        for (metadata, spec, is_managed) in [
            ("", "", true),
            ("", ", addresses: [{value: 10.1.2.3}]", true),
            ("", ", addresses: [{type: Hostname, value: front.shop.svc}]", false),
            ("", ", addresses: [{value: 10.1.2.3}, {value: 10.1.2.4}]", false),
            (", annotations: {gateway.istio.io/controller-version: '1'}", "", true),
            (", annotations: {gateway.istio.io/controller-version: '5'}", "", true),
            (", annotations: {gateway.istio.io/controller-version: '6'}", "", false),
            (", annotations: {gateway.istio.io/controller-version: next}", "", false),
        ] {
            let found = collected(Settings::default(), &gateway(metadata, spec));
            assert_eq!(found.len(), usize::from(is_managed), "{metadata} {spec}");
        }
        for class in ["istio-remote", "nginx", "istio-waypoint"] {
            let other = gateway("", "").replace("gatewayClassName: istio", &format!("gatewayClassName: {class}"));
            assert_eq!(collected(Settings::default(), &other), [], "{class}");
        }
        let mut off = Settings::default();
        off.knobs.deploy_gateways = false;
        assert_eq!(collected(off, &gateway("", "")), []);
    }

    #[test]
    fn gateways_of_other_revisions_are_served_but_not_deployed() {
        let parsed = documents(&gateway("", ""), "f");
        for (is_of_other_revision, expected) in [(false, 1), (true, 0)] {
            let changes = parsed.objects.iter().cloned().map(|mut object| {
                Arc::make_mut(&mut object.meta).is_of_other_revision = is_of_other_revision;
                Change::Applied(object)
            });
            let batch = Batch { source: SourceId("files".into()), changes: changes.collect() };
            let converted = Snapshot::empty(Settings::default()).apply(vec![batch]).0.converted.clone();
            let statuses = converted.statuses.keys().filter(|key| key.kind == Kind::KubernetesGateway).count();
            assert_eq!((converted.managed.len(), statuses), (expected, expected));
            assert!(converted.objects.iter().any(|(key, _)| key.kind == Kind::Gateway), "{:?}", converted.objects);
        }
    }

    #[test]
    fn only_an_older_version_is_taken_over() {
        let of = |version: &str| {
            one(&format!(", annotations: {{gateway.istio.io/controller-version: '{version}'}}"), "").takes_over
        };
        assert_eq!((one("", "").takes_over, of("1"), of("5")), (true, true, false));
    }

    #[test]
    fn names_and_service_type_follow_annotations() {
        let plain = one("", "");
        assert_eq!(
            (&*plain.deployment, &*plain.account, plain.account_is_given),
            ("front-istio", "front-istio", false)
        );
        assert_eq!((&*plain.service_type, plain.address.is_none()), ("LoadBalancer", true));
        let notes = ", annotations: {gateway.istio.io/name-override: edge, gateway.istio.io/service-account: robot, \
                     networking.istio.io/service-type: ClusterIP, note: a}";
        let named = one(notes, ", addresses: [{value: 10.1.2.3}]");
        assert_eq!((&*named.deployment, &*named.account, named.account_is_given), ("edge", "robot", true));
        assert_eq!((&*named.service_type, named.address.as_deref()), ("ClusterIP", Some("10.1.2.3")));
        let passed: Vec<&str> = named.annotations.keys().map(|key| &**key).collect();
        assert_eq!(passed, ["networking.istio.io/service-type", "note"], "our own annotations stay on the Gateway");
    }

    #[test]
    fn infrastructure_replaces_copied_labels_and_annotations() {
        let metadata = ", labels: {a: b}, annotations: {c: d}";
        let keys = |gateway: &ManagedGateway| {
            let keys = gateway.labels.keys().chain(gateway.annotations.keys());
            keys.map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(keys(&one(metadata, "")), ["a", "c"]);
        let infrastructure =
            ", infrastructure: {labels: {e: f, gateway.networking.k8s.io/gateway-name: x}, annotations: {}}";
        assert_eq!(keys(&one(metadata, infrastructure)), ["e"]);
        let mut settings = Settings::default();
        settings.knobs.copy_gateway_metadata = false;
        assert_eq!(keys(&collected(settings, &gateway(metadata, ""))[0]), Vec::<String>::new());
    }

    #[test]
    fn parameters_are_a_config_map_or_unsupported() {
        let of = |reference: &str| one("", &format!(", infrastructure: {{parametersRef: {reference}}}")).parameters;
        assert_eq!(of("{group: '', kind: ConfigMap, name: p}"), GatewayParameters::ConfigMap("p".into()));
        assert_eq!(of("{group: x, kind: Other, name: p}"), GatewayParameters::Unsupported("x/Other".to_owned()));
    }

    #[test]
    fn each_port_is_in_the_service_once_with_a_valid_name() {
        let long = "a".repeat(70);
        let listeners = format!(
            "listeners: [{{name: web.plain, port: 80, protocol: HTTP}}, {{name: again, port: 80, protocol: HTTP}}, \
             {{name: web-plain, port: 81, protocol: HTTPS}}, {{name: {long}x, port: 82, protocol: TCP}}, \
             {{name: {long}y, port: 83, protocol: TCP}}, {{name: udp, port: 53, protocol: UDP}}]"
        );
        let text = gateway("", "").replace("listeners: [{name: web, port: 80, protocol: HTTP}]", &listeners);
        let ports = collected(Settings::default(), &text)[0].ports.clone();
        let port = |name: &str, number, protocol: &str| GatewayPort {
            name: name.to_owned(),
            number,
            app_protocol: protocol.to_owned(),
        };
        let expected = [
            port("status-port", 15021, "tcp"),
            port("web-plain", 80, "http"),
            port("web-plain-81", 81, "https"),
            port(&"a".repeat(63), 82, "tcp"),
            port(&format!("{}-83", "a".repeat(60)), 83, "tcp"),
        ];
        assert_eq!(ports, expected);
    }

    #[test]
    fn listener_sets_add_ports_if_the_gateway_allows_them() {
        let set = "{apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet, metadata: {name: more, namespace: other}, \
            spec: {parentRef: {group: gateway.networking.k8s.io, kind: Gateway, name: front, namespace: shop}, \
            listeners: [{name: extra, port: 8443, protocol: HTTPS}]}}\n";
        let numbers = |spec: &str| {
            let text = format!("{}---\n{set}", gateway("", spec));
            collected(Settings::default(), &text)[0].ports.iter().map(|port| port.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(""), [15021, 80]);
        assert_eq!(numbers(", allowedListeners: {namespaces: {from: All}}"), [15021, 80, 8443]);
    }
}
