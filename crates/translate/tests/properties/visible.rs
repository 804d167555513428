//! A client's view has no hidden service. The visibility rules are implemented here again, from the documents, without
//! scope's code.

use api::istio::networking::v1alpha3::{ServiceEntry, Sidecar};
use model::config::{Object, Spec};
use model::proxy::{Proxy, ProxyKind};
use model::service::Service;
use proptest::prelude::{ProptestConfig, proptest};
use proptest::prop_assert;
use scope::View;

use crate::mesh::{clients, objects, view, world};

/// The ServiceEntry of a service.
fn entry(objects: &[Object], service: &Service) -> Option<ServiceEntry> {
    objects.iter().find_map(|object| match &object.spec {
        Spec::ServiceEntry(spec)
            if object.meta.namespace == service.namespace && object.meta.name == service.object_name =>
        {
            Some(spec.open())
        }
        _ => None,
    })
}

fn is_exported(export_to: &[String], owner: &str, client: &str) -> bool {
    let public = export_to.is_empty() || export_to.iter().any(|e| e == "*");
    let hidden = export_to.iter().any(|e| e == "~");
    public || (!hidden && export_to.iter().any(|e| (e == "." && owner == client) || e == client))
}

/// Whether an egress host pattern, without its namespace, matches an exact host.
fn covers(pattern: &str, host: &str) -> bool {
    pattern == host || pattern.strip_prefix('*').is_some_and(|suffix| host.ends_with(suffix))
}

fn is_imported(hosts: &[String], own: &str, service: &Service) -> bool {
    let matches = |namespace: &str, host: &str| {
        let of_namespace =
            namespace == "*" || *namespace == *service.namespace || (namespace == "." && *service.namespace == *own);
        of_namespace && covers(host, &service.hostname)
    };
    let split = || hosts.iter().filter_map(|item| item.split_once('/'));
    let excluded = split()
        .any(|(ns, host)| ns.strip_prefix('~').is_some_and(|ns| matches(if ns.is_empty() { "*" } else { ns }, host)));
    !excluded && split().any(|(ns, host)| matches(ns, host))
}

fn imports(sidecar: &Sidecar, own: &str, service: &Service) -> bool {
    sidecar.egress.iter().any(|listener| is_imported(&listener.hosts, own, service))
}

/// Whether an imported VirtualService has the host as a destination, which imports the service too.
fn is_routed_to(view: &View, host: &str) -> bool {
    let rules = view.egress.iter().flat_map(|listener| &listener.virtual_services);
    rules
        .flat_map(|rule| &rule.config.spec.http)
        .flat_map(|http| &http.route)
        .filter_map(|r| r.destination.as_ref())
        .any(|d| d.host == host)
}

/// Why a client should not see a service of its view.
fn objection(objects: &[Object], proxy: &Proxy, view: &View, service: &Service) -> Option<&'static str> {
    let Some(entry) = entry(objects, service) else { return Some("no ServiceEntry gives it") };
    // As upstream: a sidecar's route may have private services of its namespace as destinations.
    let routed = proxy.kind == ProxyKind::Sidecar && is_routed_to(view, &service.hostname);
    let own = service.namespace == proxy.namespace;
    let exported = is_exported(&entry.export_to, &service.namespace, &proxy.namespace);
    if !(exported || routed && own) {
        return Some("it is not exported to the client");
    }
    let sidecar = view.sidecar.as_ref().filter(|s| !s.spec.egress.is_empty());
    let imported = sidecar.is_none_or(|s| imports(&s.spec, &proxy.namespace, service));
    (!imported && !routed).then_some("the Sidecar does not import it")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn view_holds_no_service_that_is_hidden_from_its_client(objects in objects()) {
        let world = world(&objects);
        for proxy in clients() {
            let view = view(&world, &proxy);
            for service in view.services() {
                let objection = objection(&objects, &proxy, &view, service);
                prop_assert!(objection.is_none(), "{} sees {}/{}: {:?}", proxy.id, service.namespace, service.hostname, objection);
            }
            for listener in view.egress.iter() {
                let Some(spec) = &listener.spec else { continue };
                let stray = listener.services.iter().find(|s| !is_imported(&spec.hosts, &proxy.namespace, s));
                prop_assert!(stray.is_none(), "{} imports {:?} by {:?}", proxy.id, stray, spec.hosts);
            }
        }
    }

    #[test]
    fn view_holds_every_service_that_nothing_hides(objects in objects()) {
        let objects: Vec<Object> = objects.into_iter().filter(|o| !matches!(o.spec, Spec::Sidecar(_))).collect();
        let world = world(&objects);
        for proxy in clients() {
            let view = view(&world, &proxy);
            for object in &objects {
                let Spec::ServiceEntry(entry) = &object.spec else { continue };
                let entry = entry.open();
                if is_exported(&entry.export_to, &object.meta.namespace, &proxy.namespace) {
                    let missing = entry.hosts.iter().find(|host| view.service(host).is_none());
                    prop_assert!(missing.is_none(), "{} lacks {:?}", proxy.id, missing);
                }
            }
        }
    }
}
