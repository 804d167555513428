//! Consolidated DestinationRules: rules for one host in one namespace are merged. Lookup order: the client's namespace,
//! the service's namespace, the root namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::istio::networking::v1alpha3::DestinationRule;

use super::backend_policies;
use crate::config::legacy::only_names_subsets;
use crate::config::{Config, Kind, Spec};
use crate::hashed::Hashed;
use crate::host::{is_wildcard, resolve_short_name};
use crate::names::{Hostname, Namespace, Str};
use crate::service::{ExportTo, Service, Visibility};
use crate::settings::Settings;
use crate::snapshot::objects::{AllObjects, by_age, sort_by_age};

/// DestinationRules for one host, merged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConsolidatedRule {
    /// The metadata of the first rule and the merged spec.
    pub rule: Config<DestinationRule>,
    pub export_to: ExportTo,
    /// Namespace and name of all merged rules.
    pub from: Vec<(Namespace, Str)>,
}

/// Rules of one namespace by host.
type ByHost = BTreeMap<Hostname, Vec<Arc<ConsolidatedRule>>>;

/// All rules, indexed by visibility.
#[derive(Clone, Debug, Default)]
pub(super) struct DestinationRules {
    /// For clients of the rule's own namespace.
    local: BTreeMap<Namespace, ByHost>,
    /// For clients of other namespaces.
    exported: BTreeMap<Namespace, ByHost>,
    /// Private rules of the root namespace.
    root_private: ByHost,
}

impl DestinationRules {
    pub(super) fn build(objects: &AllObjects<'_>, settings: &Settings) -> DestinationRules {
        let mut index = DestinationRules::default();
        let root = settings.root_namespace();
        let private_by_default = settings.default_destination_rule_export().iter().any(|v| *v == Visibility::Private);
        for config in by_selector_and_age(objects) {
            let config = with_resolved_host(config, settings);
            let namespace = config.meta.namespace.clone();
            let export_to = export_of(&config);
            let own = Visibility::Namespace(namespace.clone());
            let holds_at_home =
                export_to.is_public() || export_to.iter().any(|v| *v == Visibility::Private || *v == own);
            if holds_at_home {
                merge(index.local.entry(namespace.clone()).or_default(), &config, &export_to, settings);
            }
            let only_home =
                export_to.iter().count() == 1 && export_to.iter().all(|v| *v == Visibility::Private || *v == own);
            let private = only_home || (export_to.is_unset() && private_by_default);
            if !private {
                merge(index.exported.entry(namespace).or_default(), &config, &export_to, settings);
            } else if namespace == root {
                merge(&mut index.root_private, &config, &export_to, settings);
            }
        }
        index
    }

    pub(super) fn for_service(
        &self,
        client: &Namespace,
        service: &Service,
        root: &Namespace,
    ) -> Vec<Arc<ConsolidatedRule>> {
        let host = &service.hostname;
        // A root namespace often has catch-all rules; its own proxies must not prefer them to those of the service.
        let own = if client == root { Some(&self.root_private) } else { self.local.get(client) };
        if let Some(rules) = own.and_then(|by_host| most_specific(by_host, host)) {
            return rules.clone();
        }
        for owner in [&service.namespace, root] {
            let exported = self.exported.get(owner).and_then(|by_host| most_specific(by_host, host));
            let seen = exported.into_iter().flatten().filter(|r| exported_to(&r.export_to, client)).cloned();
            let rules: Vec<_> = seen.collect();
            if !rules.is_empty() {
                return rules;
            }
        }
        Vec::new()
    }
}

fn exported_to(export_to: &ExportTo, client: &Namespace) -> bool {
    export_to.is_public() || export_to.iter().any(|v| matches!(v, Visibility::Namespace(ns) if ns == client))
}

/// Rules with a workload selector first, then by age; those that only name the subsets of RouteRules last. The first
/// rule wins a conflict.
fn by_selector_and_age(objects: &AllObjects<'_>) -> Vec<Config<DestinationRule>> {
    let mut found: Vec<Config<DestinationRule>> = by_age!(objects, DestinationRule);
    found.sort_by_key(|c| (c.spec.workload_selector.is_none(), only_names_subsets(&c.meta)));
    found
}

pub(in crate::snapshot) fn with_resolved_host(
    config: Config<DestinationRule>,
    settings: &Settings,
) -> Config<DestinationRule> {
    let host = resolve_short_name(&config.spec.host, &config.meta.namespace, &settings.domain);
    if host == config.spec.host.as_str() {
        return config;
    }
    let spec = DestinationRule { host: host.to_string(), ..DestinationRule::clone(&config.spec) };
    Config { meta: config.meta, spec: Hashed::from_message(spec) }
}

/// A rule with a workload selector is never exported.
fn export_of(config: &Config<DestinationRule>) -> ExportTo {
    if config.spec.workload_selector.is_some() {
        return ExportTo::parse(["."]);
    }
    ExportTo::parse(&config.spec.export_to)
}

/// Merges a rule into the known rules of its host where possible, and adds it separately if some client would otherwise
/// not see it.
fn merge(by_host: &mut ByHost, config: &Config<DestinationRule>, export_to: &ExportTo, settings: &Settings) {
    let rules = by_host.entry(config.spec.host.as_str().into()).or_default();
    let mut apart = true;
    for known in rules.iter_mut() {
        if settings.knobs.enhanced_rule_merge {
            apart = export_to != &known.export_to;
            let wider = !known.export_to.is_unset() && known.export_to.iter().all(|v| export_to.iter().any(|e| e == v));
            if apart && !wider {
                continue;
            }
        }
        let (ours, theirs) = (&config.spec.workload_selector, &known.rule.spec.workload_selector);
        let same_selector = match (ours, theirs) {
            (None, None) => true,
            (Some(a), Some(b)) if a.match_labels == b.match_labels => true,
            (Some(_), Some(_)) => {
                apart = true;
                continue;
            }
            _ => false,
        };
        if same_selector {
            apart = false;
        }
        *known = Arc::new(merged(known, config));
    }
    if apart {
        let from = vec![(config.meta.namespace.clone(), config.meta.name.clone())];
        rules.push(Arc::new(ConsolidatedRule { rule: config.clone(), export_to: export_to.clone(), from }));
    }
}

/// The known rule with missing subsets added, and the traffic policy if it has none.
fn merged(known: &ConsolidatedRule, addition: &Config<DestinationRule>) -> ConsolidatedRule {
    let mut spec = DestinationRule::clone(&known.rule.spec);
    for subset in &addition.spec.subsets {
        if !spec.subsets.iter().any(|s| s.name == subset.name) {
            spec.subsets.push(subset.clone());
        }
    }
    let (ours, theirs) = (spec.traffic_policy.as_ref(), addition.spec.traffic_policy.as_ref());
    spec.traffic_policy =
        match (backend_policies::is_converted(&known.rule.meta), backend_policies::is_converted(&addition.meta)) {
            (false, true) => backend_policies::filled(ours, theirs),
            (true, false) => backend_policies::filled(theirs, ours),
            _ => ours.or(theirs).cloned(),
        };
    let mut from = known.from.clone();
    from.push((addition.meta.namespace.clone(), addition.meta.name.clone()));
    ConsolidatedRule {
        rule: Config { meta: known.rule.meta.clone(), spec: Hashed::from_message(spec) },
        export_to: known.export_to.clone(),
        from,
    }
}

/// The rules of the exact host, or of the longest matching wildcard.
fn most_specific<'a>(by_host: &'a ByHost, host: &Hostname) -> Option<&'a Vec<Arc<ConsolidatedRule>>> {
    if let Some(rules) = by_host.get(host) {
        return Some(rules);
    }
    let covering = by_host.iter().filter(|(pattern, _)| is_wildcard(pattern) && host.is_subset_of(pattern));
    covering.max_by_key(|(pattern, _)| pattern.len()).map(|(_, rules)| rules)
}
