//! What users may write instead of their legacy objects: the converted objects of a mesh, joined where only one object of
//! a host would be used, with plain names and without internal annotations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::istio::networking::v1alpha3::{DestinationRule, VirtualService};

use super::ConvertedConfig;
use crate::config::legacy::{self, SOURCE};
use crate::config::{Config, Kind, Meta, Object, Spec};
use crate::hashed::Hashed;
use crate::names::{Namespace, Str};
use crate::snapshot::routing::join_route_rules;

/// An object of a current kind.
#[derive(Clone, Debug)]
pub struct Equivalent {
    pub object: Object,
    /// The legacy objects that it replaces, as `Kind namespace/name`.
    pub sources: BTreeSet<String>,
}

impl ConvertedConfig {
    /// Equivalents of all legacy objects, by kind, namespace and name.
    pub fn equivalents(&self) -> Vec<Equivalent> {
        let made = self.objects.iter().map(|(_, object)| object).filter(|o| legacy::is_made_from_legacy(&o.meta));
        let (mut routes, mut rules, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for object in made {
            match &object.spec {
                Spec::VirtualService(spec) if legacy::precedence(&object.meta).is_some() => {
                    routes.push(Config { meta: object.meta.clone(), spec: spec.clone() });
                }
                Spec::DestinationRule(spec) => rules.push(Config { meta: object.meta.clone(), spec: spec.clone() }),
                _ => others.push(Equivalent { object: object.clone(), sources: sources(&object.meta).collect() }),
            }
        }
        let mut all = joined_routes(routes);
        all.extend(joined_rules(rules));
        all.extend(others);
        renamed(all)
    }
}

fn sources(meta: &Meta) -> impl Iterator<Item = String> {
    meta.annotations.get(SOURCE).map(ToString::to_string).into_iter()
}

fn joined_routes(routes: Vec<Config<VirtualService>>) -> Vec<Equivalent> {
    let mut by_host: BTreeMap<(Namespace, Vec<String>), BTreeSet<String>> = BTreeMap::new();
    let place = |config: &Config<VirtualService>| (config.meta.namespace.clone(), config.spec.hosts.clone());
    for config in &routes {
        by_host.entry(place(config)).or_default().extend(sources(&config.meta));
    }
    let equivalent = |config: Config<VirtualService>| {
        let sources = by_host.get(&place(&config)).cloned().unwrap_or_default();
        Equivalent { object: Object { meta: config.meta, spec: Spec::VirtualService(config.spec) }, sources }
    };
    join_route_rules(routes).into_iter().map(equivalent).collect()
}

/// One rule per host, except those for some callers. The oldest policy comes first, rules that only name subsets last.
fn joined_rules(mut rules: Vec<Config<DestinationRule>>) -> Vec<Equivalent> {
    rules.sort_by_key(|rule| {
        let Meta { created, name, namespace, .. } = &*rule.meta;
        (legacy::only_names_subsets(&rule.meta), *created, name.clone(), namespace.clone())
    });
    let mut all: Vec<(Config<DestinationRule>, BTreeSet<String>)> = Vec::new();
    for rule in rules {
        let is_same = |known: &&mut (Config<DestinationRule>, BTreeSet<String>)| {
            known.0.meta.namespace == rule.meta.namespace
                && known.0.spec.host == rule.spec.host
                && known.0.spec.workload_selector == rule.spec.workload_selector
        };
        match all.iter_mut().find(is_same) {
            None => {
                let from = sources(&rule.meta).collect();
                all.push((rule, from));
            }
            Some((known, from)) => {
                from.extend(sources(&rule.meta));
                known.spec = Hashed::from_message(merged(&known.spec, &rule.spec));
            }
        }
    }
    let equivalent = |(config, sources): (Config<DestinationRule>, BTreeSet<String>)| Equivalent {
        object: Object { meta: config.meta, spec: Spec::DestinationRule(config.spec) },
        sources,
    };
    all.into_iter().map(equivalent).collect()
}

fn merged(known: &DestinationRule, other: &DestinationRule) -> DestinationRule {
    let mut spec = known.clone();
    for subset in &other.subsets {
        if !spec.subsets.iter().any(|known| known.name == subset.name) {
            spec.subsets.push(subset.clone());
        }
    }
    spec.traffic_policy = spec.traffic_policy.or_else(|| other.traffic_policy.clone());
    spec
}

/// Gives every object the name of its legacy object, with a number if two have the same.
fn renamed(all: Vec<Equivalent>) -> Vec<Equivalent> {
    let mut taken: BTreeSet<(Kind, Namespace, String)> = BTreeSet::new();
    let mut names: BTreeMap<(Kind, Namespace, Str), String> = BTreeMap::new();
    for equivalent in &all {
        let (kind, meta) = (equivalent.object.spec.kind(), &equivalent.object.meta);
        let plain = plain_name(meta);
        let mut names_of = (1..).map(|n: u32| if n == 1 { plain.clone() } else { format!("{plain}-{n}") });
        let is_free = |name: &String| taken.insert((kind, meta.namespace.clone(), name.clone()));
        let name = names_of.find(is_free).unwrap_or(plain.clone());
        names.insert((kind, meta.namespace.clone(), meta.name.clone()), name);
    }
    let rename = |mut equivalent: Equivalent| {
        let kind = equivalent.object.spec.kind();
        let meta = Arc::make_mut(&mut equivalent.object.meta);
        if let Some(name) = names.get(&(kind, meta.namespace.clone(), meta.name.clone())) {
            meta.name = name.as_str().into();
        }
        meta.annotations.retain(|key, _| !key.starts_with("internal.istio.io/"));
        (meta.created, meta.location) = (0, None);
        if let Spec::VirtualService(spec) = &equivalent.object.spec {
            let mut spec = VirtualService::clone(spec);
            for gateway in &mut spec.gateways {
                let Some((namespace, name)) = gateway.split_once('/') else { continue };
                if let Some(name) = names.get(&(Kind::Gateway, namespace.into(), name.into())) {
                    *gateway = format!("{namespace}/{name}");
                }
            }
            equivalent.object.spec = Spec::VirtualService(Hashed::from_message(spec));
        }
        equivalent
    };
    all.into_iter().map(rename).collect()
}

/// The name before the conversion added the kind.
fn plain_name(meta: &Meta) -> String {
    let kind = meta.annotations.get(SOURCE).and_then(|source| source.split_once(' ')).map(|(kind, _)| kind);
    let suffix = format!(".{}", kind.unwrap_or_default().to_lowercase());
    match meta.name.rfind(&suffix) {
        Some(end) if end > 0 => meta.name[..end].to_owned(),
        _ => meta.name.to_string(),
    }
}
