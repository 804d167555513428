//! Several config stores that have an object of one key: the first store's counts, in the order in which the stores
//! were given, and when that one has it no more, the next one's does.

use super::objects::{Objects, StoredObject};
use crate::change::SourceId;
use crate::config::problem::{Problem, Severity};
use crate::config::{Key, Object};
use crate::names::Str;

impl Objects {
    /// Takes what a store has under a key now. True where another object counts than before.
    pub(super) fn tell(&mut self, store: &SourceId, key: &Key, object: Option<Object>, order: &[Str]) -> bool {
        match (object, self.counting.get(key).and_then(|told| told.by.clone())) {
            (Some(object), Some(holder)) if holder != *store => self.contest(store, &holder, object, order),
            (Some(object), _) => self.hold(store, key, object),
            (None, Some(holder)) if holder == *store => self.release(key, order),
            (None, _) => {
                self.is_contested_anew |= self.behind.remove(&(key.clone(), store.clone())).is_some();
                false
            }
        }
    }

    /// What is wrong with objects that several stores have; `None` where that did not change.
    pub(super) fn contested(&mut self) -> Option<Vec<Problem>> {
        if !std::mem::take(&mut self.is_contested_anew) {
            return None;
        }
        let problem = |((key, store), object): (&(Key, SourceId), &Object)| {
            let StoredObject { object: counting, by } = self.counting.get(key)?;
            let holder = by.as_ref().map_or("", |holder| &*holder.0);
            let is_same = object.means_the_same_as(counting);
            let message = match is_same {
                true => format!("stores {holder} and {} have the same: that of {holder} is used", store.0),
                false => format!("stores {holder} and {} both have it: only that of {holder} is used", store.0),
            };
            let severity = if is_same { Severity::Info } else { Severity::Error };
            let about = key.clone().into();
            Some(Problem { severity, about, location: object.meta.location.clone(), message: message.into() })
        };
        Some(self.behind.iter().filter_map(problem).collect())
    }

    fn contest(&mut self, store: &SourceId, holder: &SourceId, object: Object, order: &[Str]) -> bool {
        let key = object.key();
        self.is_contested_anew = true;
        if rank(order, holder) < rank(order, store) {
            self.behind.insert((key, store.clone()), object);
            return false;
        }
        self.behind.remove(&(key.clone(), store.clone()));
        if let Some(told) = self.counting.get(&key) {
            self.behind.insert((key.clone(), holder.clone()), told.object.clone());
        }
        self.hold(store, &key, object)
    }

    fn hold(&mut self, store: &SourceId, key: &Key, object: Object) -> bool {
        let is_new = self.get(key).is_none_or(|known| !known.means_the_same_as(&object));
        // Whether two stores say the same may have changed.
        self.is_contested_anew |= is_new && self.others(key).next().is_some();
        self.counting.insert(key.clone(), StoredObject { object, by: Some(store.clone()) });
        is_new
    }

    fn release(&mut self, key: &Key, order: &[Str]) -> bool {
        let next = self.others(key).min_by_key(|store| rank(order, store)).cloned();
        let next = next.and_then(|store| Some((self.behind.remove(&(key.clone(), store.clone()))?, store)));
        match next {
            Some((object, store)) => {
                self.is_contested_anew = true;
                self.hold(&store, key, object)
            }
            None => self.counting.remove(key).is_some(),
        }
    }

    /// Stores that have the object too.
    fn others<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a SourceId> {
        let first = (key.clone(), SourceId(Str::from("")));
        self.behind
            .range(first..)
            .map(|((of, store), _)| (of, store))
            .take_while(move |(of, _)| *of == key)
            .map(|(_, s)| s)
    }
}

/// Stores that were not given by name come last.
fn rank<'a>(order: &[Str], store: &'a SourceId) -> (usize, &'a SourceId) {
    (order.iter().position(|name| *name == store.0).unwrap_or(order.len()), store)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::change::{Batch, Change, SourceId};

    use crate::config::{Key, Object, parse};
    use crate::conflict::ConflictSettings;
    use crate::settings::Settings;

    use crate::snapshot::{Delta, Snapshot};

    fn snapshot() -> Snapshot {
        let stores = ["xds", "files"].map(Into::into).to_vec();
        let conflicts = ConflictSettings { stores, ..ConflictSettings::default() };
        Snapshot::empty(Settings { conflicts, ..Settings::default() })
    }

    fn gateway(port: u16) -> Object {
        let text = format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: edge, namespace: shop}}\n\
             spec: {{servers: [{{port: {{number: {port}, name: http, protocol: HTTP}}, hosts: ['*']}}]}}\n"
        );
        let mut parsed = parse::documents(&text, "edge.yaml");
        assert!(parsed.problems.is_empty(), "{:?}", parsed.problems);
        parsed.objects.remove(0)
    }

    fn told(snapshot: &Snapshot, store: &str, change: Change) -> (Snapshot, Delta) {
        snapshot.apply(vec![Batch { source: SourceId(store.into()), changes: vec![change] }])
    }

    /// The port that counts, the messages about it, and whether the last change was one.
    fn shown((snapshot, delta): &(Snapshot, Delta)) -> (Option<u32>, Vec<String>, bool) {
        let port = snapshot.gateways.gateways.first().and_then(|g| Some(g.spec.servers.first()?.port.as_ref()?.number));
        let problems = snapshot.problems.values().flatten().map(|p| p.message.to_string()).collect();
        (port, problems, !delta.objects.is_empty())
    }

    fn check(steps: &[(&str, Option<u16>)], port: Option<u32>, problems: &[&str], is_change: bool) {
        let key: Key = gateway(1).key();
        let mut last = (snapshot(), Delta::default());
        for (store, port) in steps {
            let change = port.map_or(Change::Deleted(key.clone()), |port| Change::Applied(gateway(port)));
            last = told(&last.0, store, change);
        }
        let problems = problems.iter().map(|p| (*p).to_owned()).collect();
        assert_eq!(shown(&last), (port, problems, is_change), "{steps:?}");
    }

    const BOTH: &str = "stores xds and files both have it: only that of xds is used";

    #[test]
    fn the_first_store_counts_whoever_comes_first() {
        check(&[("files", Some(1)), ("xds", Some(2))], Some(2), &[BOTH], true);
        check(&[("xds", Some(2)), ("files", Some(1))], Some(2), &[BOTH], false);
        check(&[("xds", Some(2)), ("files", Some(1)), ("files", Some(3))], Some(2), &[BOTH], false);
        check(
            &[("other", Some(9)), ("files", Some(1))],
            Some(1),
            &["stores files and other both have it: only that of files is used"],
            true,
        );
        let same = "stores xds and files have the same: that of xds is used";
        check(&[("files", Some(2)), ("xds", Some(2))], Some(2), &[same], false);
        check(&[("files", Some(2)), ("xds", Some(2)), ("xds", Some(3))], Some(3), &[BOTH], true);
    }

    #[test]
    fn another_takes_over_when_the_first_has_it_no_more() {
        let both = [("files", Some(1)), ("xds", Some(2))];
        check(&[both[0], both[1], ("xds", None)], Some(1), &[], true);
        check(&[both[0], both[1], ("files", None)], Some(2), &[], false);
        check(&[both[0], both[1], ("xds", None), ("files", None)], None, &[], true);
        check(&[both[0], ("xds", None)], Some(1), &[], false);
        check(
            &[both[0], both[1], ("other", Some(3)), ("xds", None)],
            Some(1),
            &["stores files and other both have it: only that of files is used"],
            true,
        );
    }

    #[test]
    fn an_object_that_is_replaced_for_one_reader_is_replaced_whoever_told_it() {
        let (snapshot, _) = told(&snapshot(), "files", Change::Applied(gateway(1)));
        let key = gateway(1).key();
        let port = |snapshot: &Snapshot| shown(&(snapshot.clone(), Delta::default())).0;
        assert_eq!(port(&snapshot.with([(key.clone(), Some(gateway(2)))])), Some(2));
        assert_eq!(port(&snapshot.with([(key, None)])), None);
        assert!(Arc::ptr_eq(&snapshot.services, &snapshot.with([]).services));
    }
}
