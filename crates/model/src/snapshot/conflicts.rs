//! Decides which registry serves a host name that several registries have, and where the endpoints of the others go.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::change::SourceId;
use crate::config::problem::{Problem, Severity};
use crate::conflict::{ConflictPolicy, ConflictSettings};
use crate::names::{Namespace, ServiceKey, Str};
use crate::port::Port;
use crate::service::{Registry, Service};

/// Services as reported, by source and key.
pub(super) type RegistryServices = imbl::OrdMap<(SourceId, ServiceKey), Arc<Service>>;

/// Where the endpoints of a service and source go: to another service, or nowhere if `None`.
/// Endpoints that are not listed stay with their service.
pub(super) type Placements = BTreeMap<(ServiceKey, Str), Option<ServiceKey>>;

/// Services after conflict resolution.
#[derive(Debug, Default)]
pub(super) struct SettledServices {
    pub(super) services: Vec<Arc<Service>>,
    pub(super) placements: Placements,
    pub(super) problems: Vec<Problem>,
}

/// A source with a service of a contested key.
type RegistryClaim<'a> = (&'a SourceId, &'a Arc<Service>);

pub(super) fn settle(registered: &RegistryServices, conflicts: &ConflictSettings) -> SettledServices {
    let mut settled = SettledServices::default();
    let only_one = registered.get_min().map(|(key, _)| &key.0) == registered.get_max().map(|(key, _)| &key.0);
    if only_one {
        settled.services = registered.values().cloned().collect();
        return settled;
    }
    let mut claims: BTreeMap<&ServiceKey, Vec<RegistryClaim<'_>>> = BTreeMap::new();
    for ((source, key), service) in registered {
        claims.entry(key).or_default().push((source, service));
    }
    for (key, mut of_key) in claims {
        // Kubernetes clusters of a mesh share host names on purpose.
        if of_key.iter().all(|(_, service)| service.registry == Registry::Kubernetes) || of_key.len() == 1 {
            settled.services.extend(of_key.into_iter().map(|(_, service)| service.clone()));
            continue;
        }
        of_key.sort_by_key(|(source, service)| conflicts.rank(&source.0, service.registry));
        settle_one(key, &of_key, conflicts.policy_of(&key.hostname), &mut settled);
    }
    settled
}

fn settle_one(key: &ServiceKey, claims: &[RegistryClaim<'_>], policy: ConflictPolicy, settled: &mut SettledServices) {
    let Some((first, described)) = claims.first() else { return };
    let with_first = |claim: &&RegistryClaim<'_>| {
        let both_kubernetes = [claim.1, described].iter().all(|s| s.registry == Registry::Kubernetes);
        claim.0 == *first || both_kubernetes
    };
    let (winners, others): (Vec<_>, Vec<_>) = claims.iter().partition(with_first);
    settled.problems.push(problem(key, claims, policy, described, &others));
    if policy != ConflictPolicy::Reject {
        settled.services.extend(winners.iter().map(|(_, service)| (*service).clone()));
    }
    let nowhere = |(source, _): &RegistryClaim<'_>| ((key.clone(), source.0.clone()), None);
    match policy {
        ConflictPolicy::Merge => {}
        ConflictPolicy::Order => settled.placements.extend(others.into_iter().map(nowhere)),
        ConflictPolicy::Reject => settled.placements.extend(claims.iter().map(nowhere)),
        ConflictPolicy::Isolate => {
            for (source, service) in others {
                let service = Service { namespace: own_namespace(source), ..Service::clone(service) };
                settled.placements.insert((key.clone(), source.0.clone()), Some(service.key()));
                settled.services.push(Arc::new(service));
            }
        }
    }
}

/// The namespace of an isolated source: its name as a DNS label.
fn own_namespace(source: &SourceId) -> Namespace {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    Namespace::from(source.0.chars().map(plain).collect::<String>())
}

fn problem(
    key: &ServiceKey,
    claims: &[RegistryClaim<'_>],
    policy: ConflictPolicy,
    first: &Service,
    others: &[&RegistryClaim<'_>],
) -> Problem {
    let names: Vec<&str> = claims.iter().map(|(source, _)| &*source.0).collect();
    let winner = names.first().copied().unwrap_or_default();
    let (severity, outcome) = match policy {
        ConflictPolicy::Merge => match foreign_port(first, others) {
            None => (Severity::Info, format!("the endpoints of all are served, with the definition of {winner}")),
            Some((source, port)) => (
                Severity::Warning,
                format!(
                    "the endpoints of all are served, with the definition of {winner}, which lacks port {} ({} {}) of {}",
                    port.number,
                    port.name,
                    port.protocol.as_str(),
                    source.0
                ),
            ),
        },
        ConflictPolicy::Order => (Severity::Warning, format!("only {winner} serves it")),
        ConflictPolicy::Isolate => {
            let spaces: Vec<String> = others.iter().map(|(source, _)| own_namespace(source).to_string()).collect();
            (Severity::Warning, format!("{winner} keeps namespace {}, others get {}", key.namespace, spaces.join(", ")))
        }
        ConflictPolicy::Reject => (Severity::Error, "not served until only one registry has it".to_owned()),
    };
    let message = format!("registries {} all have it: {outcome}", names.join(", "));
    Problem::new(severity, key.clone().into(), message.into())
}

/// A port of another registry that the first one lacks: its endpoints would be lost silently.
fn foreign_port<'a>(first: &Service, others: &[&RegistryClaim<'a>]) -> Option<(&'a SourceId, &'a Port)> {
    let all = others.iter().flat_map(|(source, service)| service.ports.iter().map(move |port| (*source, port)));
    all.into_iter().find(|(_, port)| !first.ports.contains(port))
}

#[cfg(test)]
mod tests;
