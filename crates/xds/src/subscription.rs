//! A client's subscription to one type, as a plain value. All wildcard rules of both protocols are here.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::TypeUrl;

use crate::layer::{NameSet, Sum};
use crate::set::ResourceSet;

/// The resource name that means all resources of a type.
pub(crate) const ANY: &str = "*";

/// A subscription: all resources of a type, some names, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subscription {
    pub(crate) wildcard: bool,
    /// Shared with debug pages, which show it without a copy, and with other streams that want all of a layer.
    pub(crate) names: Arc<BTreeSet<Arc<str>>>,
    /// The sum of all names.
    name_sum: Sum,
    /// Bytes of all names together.
    pub(crate) name_bytes: usize,
    /// True once a SotW client listed names: from then on an empty list means no resources, not all.
    named_before: bool,
}

/// The difference that a request made to a subscription.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Added {
    /// The wildcard was added.
    pub(crate) wildcard: bool,
    pub(crate) names: Vec<Arc<str>>,
}

impl Added {
    pub(crate) fn is_empty(&self) -> bool {
        !self.wildcard && self.names.is_empty()
    }
}

impl Subscription {
    /// A subscription to all names of a layer.
    pub(crate) fn of(names: NameSet) -> Self {
        let NameSet { names, sum, bytes } = names;
        Self { names, name_sum: sum, name_bytes: bytes, ..Self::default() }
    }

    /// Shares the names of a set if they are the same.
    pub(crate) fn share(&mut self, set: &ResourceSet) {
        if let Some(shared) = set.names_equal_to(self.names.len(), self.name_sum) {
            self.names = shared.names;
        }
    }

    pub(crate) fn covers(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// True if nothing is subscribed to.
    pub(crate) fn is_empty(&self) -> bool {
        !self.wildcard && self.names.is_empty()
    }

    /// SotW: whether a request repeats the previous list, as most acknowledgements do.
    pub(crate) fn is_repeated_by(&self, names: &[String]) -> bool {
        let star = names.iter().any(|name| name == ANY);
        let sum =
            || names.iter().filter(|name| *name != ANY).fold(Sum::default(), |sum, name| sum.plus(Sum::of_name(name)));
        star == (self.wildcard && self.named_before)
            && names.len() == self.names.len() + usize::from(star)
            && sum() == self.name_sum
    }

    /// SotW: whether a list is a wildcard: it has `*`, or it is empty for a wildcard type and all before it were empty.
    pub(crate) fn is_wildcard_list(&self, kind: &TypeUrl, names: &[String]) -> bool {
        names.iter().any(|name| name == ANY) || names.is_empty() && !self.named_before && is_wildcard_type(kind)
    }

    /// SotW: replaces the previous list by that of a request. For a wildcard type an empty list means all resources,
    /// unless names were listed before.
    pub(crate) fn replace(&mut self, kind: &TypeUrl, names: Vec<Arc<str>>) -> Added {
        let mut names: BTreeSet<Arc<str>> = names.into_iter().collect();
        let explicit = names.remove(ANY);
        self.named_before |= explicit || !names.is_empty();
        let wildcard = explicit || (!self.named_before && is_wildcard_type(kind));
        let added = Added {
            wildcard: wildcard && !self.wildcard,
            names: names.iter().filter(|name| !self.names.contains(&**name)).cloned().collect(),
        };
        self.wildcard = wildcard;
        self.name_bytes = names.iter().map(|name| name.len()).sum();
        self.name_sum = names.iter().fold(Sum::default(), |sum, name| sum.plus(Sum::of_name(name)));
        self.names = Arc::new(names);
        added
    }

    /// Delta, first request of a type: no names means all resources of a wildcard type. Subscribing to `*` and
    /// unsubscribing from it in one request starts with no resources.
    pub(crate) fn begin(kind: &TypeUrl, subscribe: Vec<Arc<str>>, unsubscribe: &[String]) -> (Self, Added) {
        let mut subscription = Self { wildcard: subscribe.is_empty() && is_wildcard_type(kind), ..Self::default() };
        let mut added = subscription.modify(subscribe, unsubscribe);
        added.wildcard = subscription.wildcard;
        (subscription, added)
    }

    /// Delta, later requests. A name subscribed to again counts as added: the client may have dropped the resource.
    pub(crate) fn modify(&mut self, subscribe: Vec<Arc<str>>, unsubscribe: &[String]) -> Added {
        let mut added = Added::default();
        if subscribe.is_empty() && unsubscribe.is_empty() {
            return added;
        }
        let names = Arc::make_mut(&mut self.names);
        for name in subscribe {
            if *name == *ANY {
                added.wildcard = true;
                self.wildcard = true;
            } else {
                if names.insert(Arc::clone(&name)) {
                    self.name_bytes += name.len();
                    self.name_sum = self.name_sum.plus(Sum::of_name(&name));
                }
                added.names.push(name);
            }
        }
        for name in unsubscribe {
            if name == ANY {
                added.wildcard = false;
                self.wildcard = false;
            } else if names.remove(name.as_str()) {
                self.name_bytes -= name.len();
                self.name_sum = self.name_sum.minus(Sum::of_name(name));
            }
        }
        // A name that the same request unsubscribes from is no longer in the set, so one lookup each is enough.
        added.names.retain(|name| names.contains(name));
        added
    }
}

/// Wildcard types: an empty subscription means all resources. All types but those that others refer to by name.
fn is_wildcard_type(kind: &TypeUrl) -> bool {
    ![TypeUrl::ENDPOINT, TypeUrl::ROUTE, TypeUrl::SECRET, TypeUrl::EXTENSION].contains(kind)
}

#[cfg(test)]
mod tests {
    use super::{Added, Arc, Subscription, TypeUrl};

    fn names(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn unsubscribe(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    fn added(wildcard: bool, list: &[&str]) -> Added {
        Added { wildcard, names: names(list) }
    }

    #[test]
    fn sotw_empty_list_wants_all_clusters_but_no_endpoints() {
        let mut clusters = Subscription::default();
        assert_eq!(clusters.replace(&TypeUrl::CLUSTER, vec![]), added(true, &[]));
        assert_eq!(clusters.replace(&TypeUrl::CLUSTER, vec![]), added(false, &[]));
        let mut endpoints = Subscription::default();
        assert!(endpoints.replace(&TypeUrl::ENDPOINT, vec![]).is_empty());
        assert!(endpoints.is_empty());
    }

    #[test]
    fn sotw_empty_list_after_names_wants_nothing() {
        let mut listeners = Subscription::default();
        assert_eq!(listeners.replace(&TypeUrl::LISTENER, names(&["a"])), added(false, &["a"]));
        assert!(listeners.replace(&TypeUrl::LISTENER, vec![]).is_empty());
        assert!(listeners.is_empty());
    }

    #[test]
    fn sotw_names_end_the_implied_wildcard_and_star_keeps_it() {
        let mut clusters = Subscription::default();
        clusters.replace(&TypeUrl::CLUSTER, vec![]);
        assert_eq!(clusters.replace(&TypeUrl::CLUSTER, names(&["*", "a"])), added(false, &["a"]));
        assert!(clusters.covers("b"));
        clusters.replace(&TypeUrl::CLUSTER, names(&["a"]));
        assert!(clusters.covers("a") && !clusters.covers("b"));
    }

    #[test]
    fn sotw_repeated_list_is_recognised() {
        let check = |kind: &TypeUrl, first: &[&str], second: &[&str], expected: bool| {
            let mut subscription = Subscription::default();
            subscription.replace(kind, names(first));
            assert_eq!(subscription.is_repeated_by(&unsubscribe(second)), expected, "{first:?} then {second:?}");
            let added = subscription.clone().replace(kind, names(second));
            assert!(!expected || added.is_empty(), "a repeated list adds nothing");
        };
        check(&TypeUrl::ROUTE, &["a", "b"], &["b", "a"], true);
        check(&TypeUrl::ROUTE, &["a", "b"], &["a"], false);
        check(&TypeUrl::ROUTE, &["a"], &["b"], false);
        check(&TypeUrl::CLUSTER, &[], &[], true);
        check(&TypeUrl::CLUSTER, &[], &["*"], false);
        check(&TypeUrl::CLUSTER, &["*", "a"], &["a", "*"], true);
        check(&TypeUrl::CLUSTER, &["*"], &[], false);
        check(&TypeUrl::CLUSTER, &["a"], &["*", "a"], false);
    }

    #[test]
    fn sotw_lists_replace_each_other() {
        let mut routes = Subscription::default();
        routes.replace(&TypeUrl::ROUTE, names(&["a", "b"]));
        assert_eq!(routes.replace(&TypeUrl::ROUTE, names(&["b", "c"])), added(false, &["c"]));
        assert!(!routes.covers("a"));
    }

    #[test]
    fn delta_begins_with_everything_unless_names_are_given() {
        let begin = |kind: &TypeUrl, subscribe: &[&str], leave: &[&str]| {
            Subscription::begin(kind, names(subscribe), &unsubscribe(leave)).0
        };
        assert!(begin(&TypeUrl::CLUSTER, &[], &[]).wildcard);
        assert!(!begin(&TypeUrl::CLUSTER, &["a"], &[]).wildcard);
        assert!(begin(&TypeUrl::CLUSTER, &["*", "a"], &[]).wildcard);
        assert!(begin(&TypeUrl::CLUSTER, &["*"], &["*"]).is_empty());
        assert!(begin(&TypeUrl::ENDPOINT, &[], &[]).is_empty());
        assert!(begin(&TypeUrl::ENDPOINT, &["*"], &[]).wildcard);
    }

    #[test]
    fn delta_wildcard_stays_until_it_is_taken_back() {
        let (mut clusters, _) = Subscription::begin(&TypeUrl::CLUSTER, vec![], &[]);
        clusters.modify(names(&["a"]), &[]);
        assert!(clusters.covers("b"));
        clusters.modify(vec![], &unsubscribe(&["*"]));
        assert!(clusters.covers("a") && !clusters.covers("b"));
    }

    #[test]
    fn hole_05_cost_of_a_request_is_not_names_times_names() {
        let subscribe: Vec<Arc<str>> = (0..49_000).map(|i| format!("outbound|80||s{i}").into()).collect();
        let unsubscribe: Vec<String> =
            (0..1_000_000).map(|i| if i % 2 == 0 { String::new() } else { i.to_string() }).collect();
        let begun = std::time::Instant::now();
        let (routes, added) = Subscription::begin(&TypeUrl::ROUTE, subscribe, &unsubscribe);
        eprintln!("49,000 names asked for and 1,000,000 given up in {:?}", begun.elapsed());
        assert_eq!((routes.names.len(), added.names.len()), (49_000, 49_000));
        // 49 thousand million comparisons took more than a minute in a release build.
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn bytes_of_names_are_counted_as_they_come_and_go() {
        let (mut routes, _) = Subscription::begin(&TypeUrl::ROUTE, names(&["a", "bb", "a"]), &[]);
        assert_eq!(routes.name_bytes, 3);
        routes.modify(names(&["ccc", "bb"]), &unsubscribe(&["a", "a", "d"]));
        assert_eq!(routes.name_bytes, 5);
        routes.replace(&TypeUrl::ROUTE, names(&["dddd", "dddd"]));
        assert_eq!(routes.name_bytes, 4);
    }

    #[test]
    fn delta_name_asked_for_again_counts_as_added() {
        let (mut routes, _) = Subscription::begin(&TypeUrl::ROUTE, names(&["a"]), &[]);
        assert_eq!(routes.modify(names(&["a"]), &[]), added(false, &["a"]));
        assert_eq!(routes.modify(names(&["b"]), &unsubscribe(&["b", "a"])), added(false, &[]));
        assert!(routes.is_empty());
    }
}
