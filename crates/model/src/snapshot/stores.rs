//! Objects of the same key in several config stores: the one of the first store is used, in the configured order of the
//! stores. When it is deleted there, the one of the next store is used.

use super::objects::{Objects, StoredObject};
use crate::change::SourceId;
use crate::config::problem::{Problem, ProblemCode, Severity};
use crate::config::{Key, Object};
use crate::names::Str;

impl Objects {
    /// Sets or removes an object of a store. True if the used object changed.
    pub(super) fn put(&mut self, store: &SourceId, key: &Key, object: Option<Object>, order: &[Str]) -> bool {
        match (object, self.used.get(key).and_then(|stored| stored.by.clone())) {
            (Some(object), Some(holder)) if holder != *store => self.contest(store, &holder, object, order),
            (Some(object), _) => self.hold(store, key, object),
            (None, Some(holder)) if holder == *store => self.release(key, order),
            (None, _) => {
                self.contested_changed |= self.shadowed.remove(&(key.clone(), store.clone())).is_some();
                false
            }
        }
    }

    /// Problems for keys that several stores have; `None` if nothing changed since the last call.
    pub(super) fn contested(&mut self) -> Option<Vec<Problem>> {
        if !std::mem::take(&mut self.contested_changed) {
            return None;
        }
        let problem = |((key, store), object): (&(Key, SourceId), &Object)| {
            let StoredObject { object: used, by } = self.used.get(key)?;
            let holder = by.as_ref().map_or("", |holder| &*holder.0);
            let is_same = object.means_the_same_as(used);
            let message = match is_same {
                true => format!(
                    "stores {holder} and {} both have this object with the same content; that of {holder} is used",
                    store.0
                ),
                false => {
                    format!("stores {holder} and {} both have this object; only that of {holder} is used", store.0)
                }
            };
            let severity = if is_same { Severity::Info } else { Severity::Error };
            let problem = Problem::new(severity, key.clone().into(), message.into()).coded(ProblemCode::StoreConflict);
            Some(problem.at(object.meta.location.clone()))
        };
        Some(self.shadowed.iter().filter_map(problem).collect())
    }

    fn contest(&mut self, store: &SourceId, holder: &SourceId, object: Object, order: &[Str]) -> bool {
        let key = object.key();
        self.contested_changed = true;
        if rank(order, holder) < rank(order, store) {
            self.shadowed.insert((key, store.clone()), object);
            return false;
        }
        self.shadowed.remove(&(key.clone(), store.clone()));
        if let Some(stored) = self.used.get(&key) {
            self.shadowed.insert((key.clone(), holder.clone()), stored.object.clone());
        }
        self.hold(store, &key, object)
    }

    fn hold(&mut self, store: &SourceId, key: &Key, object: Object) -> bool {
        let is_new = self.get(key).is_none_or(|known| !known.means_the_same_as(&object));
        // The copies of two stores may have become equal or different.
        self.contested_changed |= is_new && self.others(key).next().is_some();
        self.used.insert(key.clone(), StoredObject { object, by: Some(store.clone()) });
        is_new
    }

    fn release(&mut self, key: &Key, order: &[Str]) -> bool {
        let next = self.others(key).min_by_key(|store| rank(order, store)).cloned();
        let next = next.and_then(|store| Some((self.shadowed.remove(&(key.clone(), store.clone()))?, store)));
        match next {
            Some((object, store)) => {
                self.contested_changed = true;
                self.hold(&store, key, object)
            }
            None => self.used.remove(key).is_some(),
        }
    }

    /// Other stores that have the object.
    fn others<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a SourceId> {
        let first = (key.clone(), SourceId(Str::from("")));
        self.shadowed
            .range(first..)
            .map(|((of, store), _)| (of, store))
            .take_while(move |(of, _)| *of == key)
            .map(|(_, s)| s)
    }
}

/// Stores that are not in the configured order come last.
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

    fn applied(snapshot: &Snapshot, store: &str, change: Change) -> (Snapshot, Delta) {
        snapshot.apply(vec![Batch { source: SourceId(store.into()), changes: vec![change] }])
    }

    /// The port of the used object, the messages about it, and whether the last batch changed an object.
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
            last = applied(&last.0, store, change);
        }
        let problems = problems.iter().map(|p| (*p).to_owned()).collect();
        assert_eq!(shown(&last), (port, problems, is_change), "{steps:?}");
    }

    const BOTH: &str = "stores xds and files both have this object; only that of xds is used";

    #[test]
    fn first_store_wins_in_any_order_of_arrival() {
        check(&[("files", Some(1)), ("xds", Some(2))], Some(2), &[BOTH], true);
        check(&[("xds", Some(2)), ("files", Some(1))], Some(2), &[BOTH], false);
        check(&[("xds", Some(2)), ("files", Some(1)), ("files", Some(3))], Some(2), &[BOTH], false);
        check(
            &[("other", Some(9)), ("files", Some(1))],
            Some(1),
            &["stores files and other both have this object; only that of files is used"],
            true,
        );
        let same = "stores xds and files both have this object with the same content; that of xds is used";
        check(&[("files", Some(2)), ("xds", Some(2))], Some(2), &[same], false);
        check(&[("files", Some(2)), ("xds", Some(2)), ("xds", Some(3))], Some(3), &[BOTH], true);
    }

    #[test]
    fn next_store_takes_over_when_the_first_deletes_the_object() {
        let both = [("files", Some(1)), ("xds", Some(2))];
        check(&[both[0], both[1], ("xds", None)], Some(1), &[], true);
        check(&[both[0], both[1], ("files", None)], Some(2), &[], false);
        check(&[both[0], both[1], ("xds", None), ("files", None)], None, &[], true);
        check(&[both[0], ("xds", None)], Some(1), &[], false);
        check(
            &[both[0], both[1], ("other", Some(3)), ("xds", None)],
            Some(1),
            &["stores files and other both have this object; only that of files is used"],
            true,
        );
    }

    #[test]
    fn with_replaces_an_object_of_any_store() {
        let (snapshot, _) = applied(&snapshot(), "files", Change::Applied(gateway(1)));
        let key = gateway(1).key();
        let port = |snapshot: &Snapshot| shown(&(snapshot.clone(), Delta::default())).0;
        assert_eq!(port(&snapshot.with([(key.clone(), Some(gateway(2)))])), Some(2));
        assert_eq!(port(&snapshot.with([(key, None)])), None);
        assert!(Arc::ptr_eq(&snapshot.services, &snapshot.with([]).services));
    }
}
