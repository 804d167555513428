//! Legacy objects in a mesh: where their current equivalents go, and which services they find.

use api::istio::security::v1beta1::PeerAuthentication;

use crate::change::{Batch, Change, SourceId};
use crate::config::{Kind, Spec, parse};
use crate::service::Service;
use crate::settings::Settings;
use crate::snapshot::Snapshot;

fn object(api_version: &str, kind: &str, place: &str, spec: &str) -> String {
    let (namespace, name) = place.split_once('/').expect("namespace/name");
    format!(
        "apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n---\n"
    )
}

fn config(kind: &str, place: &str, spec: &str) -> String {
    object("config.istio.io/v1alpha2", kind, place, spec)
}

fn policy(kind: &str, place: &str, spec: &str) -> String {
    object("authentication.istio.io/v1alpha1", kind, place, spec)
}

/// A step of the mesh with these documents.
fn applied(before: &Snapshot, text: &str) -> Snapshot {
    let changes = parse::documents(text, "old.yaml").objects.into_iter().map(Change::Applied).collect();
    before.apply(vec![Batch { source: SourceId("files".into()), changes }]).0
}

fn mesh(text: &str) -> Snapshot {
    applied(&Snapshot::empty(Settings::default()), text)
}

/// Namespaces and names of the converted objects of a kind.
fn names(snapshot: &Snapshot, kind: Kind) -> Vec<String> {
    snapshot
        .converted
        .objects
        .of(kind)
        .map(|object| format!("{}/{}", object.meta.namespace, object.meta.name))
        .collect()
}

fn problems(snapshot: &Snapshot) -> Vec<String> {
    snapshot.problems.get(&SourceId("converted".into())).into_iter().flatten().map(ToString::to_string).collect()
}

#[test]
fn rules_go_to_the_namespace_of_their_destination() {
    let text = [
        config("RouteRule", "bank/a", "{destination: {name: r, namespace: shop}, route: [{labels: {version: v1}}]}"),
        config("RouteRule", "shop/b", "{destination: {name: r}}"),
        config("RouteRule", "zoo/c", "{destination: {service: a.example}}"),
        config("RouteRule", "farm/d", "{destination: {service: a.example}}"),
    ];
    let snapshot = mesh(&text.concat());
    assert_eq!(
        names(&snapshot, Kind::VirtualService),
        ["farm/c.routerule.zoo", "farm/d.routerule", "shop/a.routerule.bank", "shop/b.routerule"]
    );
    assert_eq!(names(&snapshot, Kind::DestinationRule), ["shop/a-subsets.routerule.bank"]);
    // The host gets an owner.
    let entry = object(
        "networking.istio.io/v1",
        "ServiceEntry",
        "yard/a",
        "{hosts: [a.example], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}",
    );
    let snapshot = applied(&snapshot, &entry);
    let homes = names(&snapshot, Kind::VirtualService);
    assert_eq!(homes[2..], ["yard/c.routerule.zoo", "yard/d.routerule.farm"]);
}

#[test]
fn policies_of_some_callers_leave_the_others_subsets() {
    let callers = "{destination: {name: r, namespace: shop}, source: {name: page, labels: {app: page}}, \
                   loadBalancing: {name: RANDOM}}";
    let text = [
        config("RouteRule", "shop/a", "{destination: {name: r}, route: [{labels: {version: v1}}]}"),
        config("DestinationPolicy", "bank/p", callers),
    ];
    // Clients in the namespace of the callers see only the rules there.
    assert_eq!(
        names(&mesh(&text.concat()), Kind::DestinationRule),
        ["bank/a-subsets.routerule.shop", "bank/p.destinationpolicy", "shop/a-subsets.routerule"]
    );
}

#[test]
fn repeated_policies_are_reported() {
    let one = |place: &str| {
        config("DestinationPolicy", place, "{destination: {name: r, namespace: shop}, loadBalancing: {name: RANDOM}}")
    };
    let snapshot = mesh(&[one("bank/b"), one("shop/a")].concat());
    let expected = "old.yaml:1: DestinationPolicy bank/b: has no effect: DestinationPolicy shop/a is older and has the \
                    same destination and source";
    assert_eq!(problems(&snapshot), [expected]);
}

#[test]
fn egress_rules_are_services() {
    let text =
        config("EgressRule", "shop/out", "{destination: {service: a.example}, ports: [{port: 80, protocol: http}]}");
    let snapshot = mesh(&text);
    let found: Vec<(&str, bool)> =
        snapshot.services.iter().map(|s: &std::sync::Arc<Service>| (&*s.hostname, s.mesh_external)).collect();
    assert_eq!(found, [("a.example", true)]);
    let key = snapshot.objects.of(Kind::EgressRule).next().expect("the rule").key();
    let change = Batch { source: SourceId("files".into()), changes: vec![Change::Deleted(key)] };
    let (without, _) = snapshot.apply(vec![change]);
    assert_eq!(without.services.iter().count(), 0);
}

#[test]
fn equivalents_are_joined_and_have_plain_names() {
    let text = [
        config("RouteRule", "shop/low", "{destination: {name: r}, precedence: 1, route: [{labels: {version: v1}}]}"),
        config(
            "RouteRule",
            "bank/high",
            "{destination: {name: r, namespace: shop}, precedence: 9, redirect: {uri: /x}}",
        ),
        config(
            "DestinationPolicy",
            "shop/low",
            "{destination: {name: r, labels: {version: v1}}, circuitBreaker: {simpleCb: {maxConnections: 7}}}",
        ),
        config("IngressRule", "shop/high", "{destination: {name: r}}"),
    ];
    let found = mesh(&text.concat()).converted.equivalents();
    let shown: Vec<(String, String)> = found
        .iter()
        .map(|e| (e.object.key().to_string(), e.sources.iter().cloned().collect::<Vec<_>>().join(", ")))
        .collect();
    let expected = [
        ("VirtualService shop/high", "RouteRule bank/high, RouteRule shop/low"),
        ("DestinationRule shop/low", "DestinationPolicy shop/low, RouteRule shop/low"),
        ("VirtualService shop/high-2", "IngressRule shop/high"),
        ("Gateway shop/high", "IngressRule shop/high"),
    ];
    assert_eq!(shown, expected.map(|(object, from)| (object.to_owned(), from.to_owned())));
    assert!(found.iter().all(|e| e.object.meta.annotations.is_empty()), "{found:?}");
    let Spec::VirtualService(routes) = &found[0].object.spec else { panic!("{found:?}") };
    assert_eq!((routes.http.len(), routes.http[0].redirect.is_some()), (2, true));
    let Spec::VirtualService(routes) = &found[2].object.spec else { panic!("{found:?}") };
    assert_eq!(routes.gateways, ["shop/high"]);
}

/// The only PeerAuthentication.
fn peers(snapshot: &Snapshot) -> (String, PeerAuthentication) {
    let found: Vec<_> = snapshot.policy.peer_authentications.iter().collect();
    let [one] = &found[..] else { panic!("{found:?}") };
    (format!("{}/{}", one.meta.namespace, one.meta.name), PeerAuthentication::clone(&one.spec))
}

#[test]
fn policies_follow_the_selector_of_their_service() {
    let text = policy("Policy", "shop/p", "{targets: [{name: cart}], peers: [{mtls: }]}");
    let snapshot = mesh(&text);
    let (name, found) = peers(&snapshot);
    assert_eq!((name.as_str(), found.mtls.map(|mtls| mtls.mode)), ("shop/p.policy", Some(3)));
    let labels = |found: &PeerAuthentication| format!("{:?}", found.selector.as_ref().map(|s| s.match_labels.clone()));
    assert_eq!(labels(&found), r#"Some({"app": "cart"})"#);
    let entry = "{hosts: [cart.shop.svc.cluster.local], resolution: STATIC, location: MESH_INTERNAL, \
                 workloadSelector: {labels: {run: carts}}, ports: [{number: 80, name: http, protocol: HTTP}]}";
    let snapshot = applied(&snapshot, &object("networking.istio.io/v1", "ServiceEntry", "shop/cart", entry));
    assert_eq!(labels(&peers(&snapshot).1), r#"Some({"run": "carts"})"#);
}

#[test]
fn mesh_policy_holds_for_the_root_namespace() {
    let text = "apiVersion: authentication.istio.io/v1alpha1\nkind: MeshPolicy\nmetadata: {name: default}\n\
                spec: {peers: [{mtls: {}}]}\n";
    assert_eq!(peers(&mesh(text)).0, "istio-system/default.meshpolicy");
}

#[test]
fn ingress_rules_are_bound_to_their_gateway() {
    let snapshot = mesh(&config("IngressRule", "shop/in", "{destination: {name: r}}"));
    assert_eq!(names(&snapshot, Kind::Gateway), ["shop/in.ingressrule"]);
    let routes = snapshot.converted.objects.of(Kind::VirtualService).next().expect("routes");
    let Spec::VirtualService(spec) = &routes.spec else { panic!("{routes:?}") };
    assert_eq!(spec.gateways, ["shop/in.ingressrule"]);
}
