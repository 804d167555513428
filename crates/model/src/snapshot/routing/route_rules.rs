//! Joins the VirtualServices of Pilot 0.8's RouteRules that have the same destination, because only one would be used.
//! They are ordered by precedence, then by name, as in 0.8, whatever file, namespace or store they come from: the
//! conversion (`gateway_api/legacy.rs`) puts all rules of a destination into one namespace.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use api::istio::networking::v1alpha3::VirtualService;

use crate::config::Config;
use crate::config::legacy::precedence;
use crate::hashed::Hashed;
use crate::names::Namespace;

/// The VirtualServices in their order, with the routes of joined ones in the oldest. Their host names must be resolved.
pub(in crate::snapshot) fn joined(mut services: Vec<Config<VirtualService>>) -> Vec<Config<VirtualService>> {
    let mut groups: BTreeMap<(Namespace, Vec<String>), Vec<usize>> = BTreeMap::new();
    for (index, config) in services.iter().enumerate() {
        if precedence(&config.meta).is_some() {
            groups.entry((config.meta.namespace.clone(), config.spec.hosts.clone())).or_default().push(index);
        }
    }
    let mut replaced = vec![false; services.len()];
    for group in groups.into_values().filter(|group| group.len() > 1) {
        let whole = join(&services, &group);
        services[group[0]] = whole;
        group[1..].iter().for_each(|index| replaced[*index] = true);
    }
    let mut replaced = replaced.into_iter();
    services.retain(|_| !replaced.next().unwrap_or(false));
    services
}

fn join(services: &[Config<VirtualService>], group: &[usize]) -> Config<VirtualService> {
    let mut rules: Vec<&Config<VirtualService>> = group.iter().map(|index| &services[*index]).collect();
    rules.sort_by_key(|rule| (Reverse(precedence(&rule.meta)), rule.meta.name.clone()));
    let http = rules.iter().flat_map(|rule| rule.spec.http.iter().cloned()).collect();
    let spec = VirtualService { http, ..VirtualService::clone(&rules[0].spec) };
    Config { meta: rules[0].meta.clone(), spec: Hashed::from_message(spec) }
}

#[cfg(test)]
mod tests {
    use api::istio::networking::v1alpha3::DestinationRule;

    use crate::change::{Batch, Change, SourceId};
    use crate::config::parse;
    use crate::settings::Settings;
    use crate::snapshot::Snapshot;

    /// A snapshot of documents, each from its own store.
    fn snapshot(documents: &[&str]) -> Snapshot {
        let batch = |(index, text): (usize, &&str)| {
            let objects = parse::documents(text, "old.yaml").objects;
            assert!(!objects.is_empty(), "{text}");
            let source = SourceId(format!("store-{index}").into());
            Batch { source, changes: objects.into_iter().map(Change::Applied).collect() }
        };
        Snapshot::empty(Settings::default()).apply(documents.iter().enumerate().map(batch).collect()).0
    }

    fn rule(name: &str, namespace: &str, precedence: u32, host: &str) -> String {
        format!(
            "apiVersion: config.istio.io/v1alpha2\nkind: RouteRule\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{destination: {host}, precedence: {precedence}, \
             httpReqTimeout: {{simpleTimeout: {{timeout: {precedence}s}}}}}}\n"
        )
    }

    /// Name and timeouts of each VirtualService.
    fn routes(snapshot: &Snapshot) -> Vec<(String, Vec<i64>)> {
        let timeouts = |spec: &api::istio::networking::v1alpha3::VirtualService| {
            spec.http.iter().map(|route| route.timeout.map_or(0, |time| time.seconds)).collect()
        };
        let services = snapshot.routing.virtual_services.iter();
        services.map(|rule| (rule.config.meta.name.to_string(), timeouts(&rule.config.spec))).collect()
    }

    #[test]
    fn precedence_holds_across_stores_namespaces_and_spellings() {
        let rules = [
            rule("low", "shop", 1, "{name: r}"),
            rule("high", "shop", 9, "{name: r, namespace: shop}"),
            rule("also-low", "shop", 1, "{service: r.shop.svc.cluster.local}"),
            rule("stranger", "bank", 99, "{name: r, namespace: shop}"),
        ];
        let expected = [("stranger.routerule.bank".to_owned(), vec![99, 9, 1, 1])];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
            assert_eq!(routes(&snapshot(&order.map(|i| &*rules[i]))), expected, "{order:?}");
        }
    }

    /// The merged DestinationRule of `r`.
    fn merged(documents: &[&str]) -> DestinationRule {
        let service = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: r, namespace: shop}\n\
                       spec: {hosts: [r.shop.svc.cluster.local], location: MESH_INTERNAL, resolution: STATIC, \
                       ports: [{name: http, number: 80, protocol: HTTP}]}\n";
        let snapshot = snapshot(&[&[service], documents].concat());
        let service = snapshot.services.iter().find(|s| &*s.hostname == "r.shop.svc.cluster.local").expect("r").clone();
        let namespace = "shop".into();
        let rules = snapshot.routing.destination_rules(&namespace, &service, &"istio-system".into());
        let [rule] = &rules[..] else { panic!("{rules:?}") };
        DestinationRule::clone(&rule.rule.spec)
    }

    #[test]
    fn destination_policy_holds_for_a_version_that_a_route_rule_names() {
        // The same name, as in the samples of 0.8.
        let rule = "apiVersion: config.istio.io/v1alpha2\nkind: RouteRule\nmetadata: {name: r, namespace: shop}\n\
                    spec: {destination: {name: r}, route: [{labels: {version: v1}}, {labels: {version: v2}}]}\n";
        let policy = "apiVersion: config.istio.io/v1alpha2\nkind: DestinationPolicy\n\
                      metadata: {name: r, namespace: shop}\nspec: {destination: {name: r, labels: {version: v1}}, \
                      circuitBreaker: {simpleCb: {maxConnections: 100}}}\n";
        let elsewhere = |text: &str| {
            text.replace("namespace: shop}", "namespace: bank}")
                .replace("{name: r}", "{name: r, namespace: shop}")
                .replace("{name: r, labels", "{name: r, namespace: shop, labels")
        };
        let (far_rule, far_policy) = (elsewhere(rule), elsewhere(policy));
        let one_file = format!("{rule}---\n{policy}");
        for documents in [
            &[rule, policy][..],
            &[policy, rule],
            &[&one_file],
            &[&far_rule, policy],
            &[rule, &far_policy],
            &[&far_policy, &far_rule],
        ] {
            let merged = merged(documents);
            let limit = |name: &str| {
                let subset = merged.subsets.iter().find(|subset| subset.name == name)?;
                Some(subset.traffic_policy.as_ref()?.connection_pool.as_ref()?.tcp.as_ref()?.max_connections)
            };
            assert_eq!((merged.subsets.len(), limit("version-v1"), limit("version-v2")), (2, Some(100), None));
        }
    }
}
