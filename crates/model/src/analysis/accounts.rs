//! Policies about callers: namespaces and service accounts that do not exist, workloads that do not exist, and routes by
//! claims of tokens that no gateway checks.

use std::collections::BTreeSet;

use api::istio::networking::v1alpha3::VirtualService;
use api::istio::security::v1beta1::{AuthorizationPolicy, Source};

use super::findings::Findings;
use super::selectors::{SelectedWorkload, Selector, are_known, pods_in, selected, shown};
use super::{Finding, virtual_services};
use crate::config::problem::ProblemCode;
use crate::config::{Key, Kind, Object, Spec};
use crate::names::Namespace;
use crate::snapshot::Snapshot;
use crate::suggest;

/// Headers that stand for claims of a token.
const CLAIMS: &str = "@request.auth.claims";

fn policies(snapshot: &Snapshot) -> impl Iterator<Item = (&Object, &AuthorizationPolicy)> {
    snapshot.objects.of(Kind::AuthorizationPolicy).filter_map(|object| match &object.spec {
        Spec::AuthorizationPolicy(spec) => Some((object, &**spec)),
        _ => None,
    })
}

/// An AuthorizationPolicy applies to a workload.
pub(super) fn policy_workloads(snapshot: &Snapshot, found: &mut Findings) {
    if !are_known(snapshot) {
        return;
    }
    let root = snapshot.settings.root_namespace();
    for (object, policy) in policies(snapshot) {
        if !policy.target_refs.is_empty() || policy.target_ref.is_some() {
            continue;
        }
        let selector = policy.selector.as_ref().map(|selector| &selector.match_labels);
        let is_for_all = object.meta.namespace == root;
        if is_for_all && selector.is_none() {
            continue;
        }
        let nothing = Selector::new();
        let selector = selector.unwrap_or(&nothing);
        let within = Some(&object.meta.namespace).filter(|_| !is_for_all);
        if !found.may_compare(within.map_or(snapshot.workloads.len(), |namespace| pods_in(snapshot, namespace))) {
            return;
        }
        if selected(snapshot, selector, within).is_empty() {
            let labels = shown(selector);
            let message = format!("No matching workloads for this resource with the following labels: {labels}");
            found.push(Finding::warning(ProblemCode::NoWorkload, object, message).at("spec.selector.matchLabels"));
        }
    }
}

/// Namespaces and service accounts of sources exist.
pub(super) fn policy_sources(snapshot: &Snapshot, found: &mut Findings) {
    let namespaces: Vec<&str> = snapshot.namespaces.iter().map(|(namespace, _)| namespace.as_str()).collect();
    if namespaces.is_empty() {
        return;
    }
    let accounts: BTreeSet<(&str, &str)> =
        snapshot.workloads.iter().filter_map(|workload| account(&workload.service_account)).collect();
    for (object, policy) in policies(snapshot) {
        for (field, source) in sources(policy) {
            let names = source.namespaces.len() + source.not_namespaces.len();
            let principals = source.principals.len() + source.not_principals.len();
            if !found.may_compare(names * namespaces.len() + principals * (namespaces.len() + accounts.len())) {
                return;
            }
            for (list, names) in [("namespaces", &source.namespaces), ("notNamespaces", &source.not_namespaces)] {
                for (index, name) in names.iter().enumerate().filter(|(_, name)| !is_there(name, &namespaces)) {
                    found.push(missing_namespace(object, name, &namespaces).at(format!("{field}.{list}[{index}]")));
                }
            }
            for (list, names) in [("principals", &source.principals), ("notPrincipals", &source.not_principals)] {
                for (index, name) in names.iter().enumerate() {
                    let finding = account(name).and_then(|own| principal(object, name, own, &namespaces, &accounts));
                    found.extend(finding.map(|finding| finding.at(format!("{field}.{list}[{index}]"))));
                }
            }
        }
    }
}

fn sources(policy: &AuthorizationPolicy) -> impl Iterator<Item = (String, &Source)> {
    policy.rules.iter().enumerate().flat_map(|(i, rule)| {
        rule.from
            .iter()
            .enumerate()
            .filter_map(move |(j, from)| Some((format!("spec.rules[{i}].from[{j}].source"), from.source.as_ref()?)))
    })
}

/// Whether a namespace exists; `*` at either end matches anything.
fn is_there(name: &str, namespaces: &[&str]) -> bool {
    match (name.strip_prefix('*'), name.strip_suffix('*')) {
        (Some(end), _) => end.is_empty() || namespaces.iter().any(|known| known.ends_with(end)),
        (_, Some(start)) => namespaces.iter().any(|known| known.starts_with(start)),
        _ => namespaces.iter().any(|known| known.eq_ignore_ascii_case(name)),
    }
}

fn missing_namespace(object: &Object, name: &str, namespaces: &[&str]) -> Finding {
    let hint = suggest::hint(name, namespaces.iter().copied());
    let message = format!("Referenced namespace not found: {name:?}{hint}");
    Finding::error(ProblemCode::MissingReference, object, message)
}

/// Namespace and service account of an identity such as `spiffe://td/ns/shop/sa/cart`. Patterns have none.
fn account(identity: &str) -> Option<(&str, &str)> {
    let mut parts = identity.trim_start_matches("spiffe://").split('/').skip(1);
    match (parts.next(), parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("ns"), Some(namespace), Some("sa"), Some(name), None) if !identity.contains('*') => {
            Some((namespace, name))
        }
        _ => None,
    }
}

/// A principal whose namespace does not exist, or whose service account no workload of the namespace has.
fn principal(
    object: &Object,
    written: &str,
    (namespace, name): (&str, &str),
    namespaces: &[&str],
    accounts: &BTreeSet<(&str, &str)>,
) -> Option<Finding> {
    if !namespaces.contains(&namespace) {
        return Some(missing_namespace(object, namespace, namespaces));
    }
    let of_namespace = || accounts.iter().filter(|(known, _)| *known == namespace).map(|(_, name)| *name);
    if of_namespace().next().is_none() || accounts.contains(&(namespace, name)) {
        return None;
    }
    let hint = suggest::hint(name, of_namespace());
    let message =
        format!("no workload of namespace {namespace} has the service account of principal {written:?}{hint}");
    Some(Finding::warning(ProblemCode::UnusedAccount, object, message))
}

/// Routes by claims need a RequestAuthentication for the gateway's workloads: it makes the claims available.
pub(super) fn claim_routes(snapshot: &Snapshot, found: &mut Findings) {
    let root = snapshot.settings.root_namespace();
    for (object, spec) in virtual_services(snapshot) {
        let Some((field, key)) = claim(spec) else { continue };
        for name in spec.gateways.iter().filter(|name| *name != "mesh") {
            let own = (object.meta.namespace.as_str(), name.as_str());
            let (namespace, plain) = name.split_once('/').unwrap_or(own);
            let gateway = Key { kind: Kind::Gateway, namespace: namespace.into(), name: plain.into() };
            let Some(Spec::Gateway(gateway)) = snapshot.objects.get(&gateway).map(|gateway| &gateway.spec) else {
                continue;
            };
            let policies = snapshot.objects.of(Kind::RequestAuthentication).count();
            for workload in selected(snapshot, &gateway.selector, None) {
                if !found.may_compare(snapshot.workloads.len() + policies * pods_in(snapshot, &workload.namespace)) {
                    return;
                }
                if !is_authenticated(snapshot, &workload, &root) {
                    let message = format!(
                        "The virtual service uses the JWT claim based routing (key: {key}) but found no request \
                         authentication for the gateway ({namespace}/{plain}) pod ({}). The request authentication must \
                         first be applied for the gateway pods to validate the JWT token and make the claims available \
                         for routing.",
                        workload.name
                    );
                    let finding = Finding::error(ProblemCode::UncheckedClaim, object, message);
                    found.push(finding.at(field.clone()));
                }
            }
        }
    }
}

/// The first header that matches a claim, and its place.
fn claim(spec: &VirtualService) -> Option<(String, &str)> {
    spec.http.iter().enumerate().find_map(|(i, http)| {
        http.r#match.iter().enumerate().find_map(|(j, rule)| {
            let key = rule.headers.keys().chain(rule.without_headers.keys()).find(|key| is_claim(key))?;
            Some((format!("spec.http[{i}].match[{j}]"), key.as_str()))
        })
    })
}

fn is_claim(header: &str) -> bool {
    header.strip_prefix(CLAIMS).is_some_and(|rest| rest.len() > 1 && rest.starts_with(['.', '[']))
}

/// Whether a RequestAuthentication applies to a workload.
fn is_authenticated(snapshot: &Snapshot, workload: &SelectedWorkload, root: &Namespace) -> bool {
    snapshot.objects.of(Kind::RequestAuthentication).any(|object| match &object.spec {
        Spec::RequestAuthentication(policy) => {
            let nothing = Selector::new();
            let selector = policy.selector.as_ref().map_or(&nothing, |selector| &selector.match_labels);
            (object.meta.namespace == workload.namespace || object.meta.namespace == *root)
                && selected(snapshot, selector, Some(&workload.namespace)).contains(workload)
        }
        _ => false,
    })
}
