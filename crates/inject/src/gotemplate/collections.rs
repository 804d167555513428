//! Sprig's functions for lists and maps.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::arguments::{ANY, Arguments, Outcome, Row, count, entries, list, shown, text};
use super::data::{Data, GoMap};
use super::format;
use super::limits::MOST_ITEMS;

pub(super) const TABLE: &[Row] = &[
    ("list", 0, ANY, |a| Ok(Data::list(a.iter().cloned()))),
    ("tuple", 0, ANY, |a| Ok(Data::list(a.iter().cloned()))),
    ("first", 1, 1, |a| Ok(list(a, 0)?.first().cloned().unwrap_or(Data::Nil))),
    ("last", 1, 1, |a| Ok(list(a, 0)?.last().cloned().unwrap_or(Data::Nil))),
    ("rest", 1, 1, |a| Ok(Data::list(list(a, 0)?.iter().skip(1).cloned()))),
    ("initial", 1, 1, |a| {
        let items = list(a, 0)?;
        Ok(Data::list(items[..items.len().saturating_sub(1)].iter().cloned()))
    }),
    ("append", 2, 2, |a| limited(list(a, 0)?.iter().cloned().chain([a[1].clone()]).collect())),
    ("push", 2, 2, |a| limited(list(a, 0)?.iter().cloned().chain([a[1].clone()]).collect())),
    ("prepend", 2, 2, |a| limited([a[1].clone()].into_iter().chain(list(a, 0)?.iter().cloned()).collect())),
    ("concat", 0, ANY, |a| {
        let mut all = Vec::new();
        for at in 0..a.len() {
            all.extend(list(a, at)?.iter().cloned());
            if all.len() > MOST_ITEMS {
                break;
            }
        }
        limited(all)
    }),
    ("reverse", 1, 1, |a| Ok(Data::list(list(a, 0)?.iter().rev().cloned()))),
    ("uniq", 1, 1, uniq),
    ("without", 1, ANY, |a| {
        let without = |item: &&Data| !a[1..].iter().any(|value| same(value, item));
        Ok(Data::list(list(a, 0)?.iter().filter(without).cloned()))
    }),
    ("has", 2, 2, |a| Ok(Data::Bool(list(a, 1)?.iter().any(|item| same(item, &a[0]))))),
    ("compact", 1, 1, |a| Ok(Data::list(list(a, 0)?.iter().filter(|item| item.is_true()).cloned()))),
    ("chunk", 2, 2, |a| {
        let size = count(a, 0)?.max(1);
        Ok(Data::list(list(a, 1)?.chunks(size).map(|chunk| Data::list(chunk.iter().cloned()))))
    }),
    ("dict", 0, ANY, dict),
    ("get", 2, 2, |a| {
        let key = text(a, 1)?;
        Ok(entries(a, 0)?.into_iter().find(|(known, _)| known == key).map_or_else(|| Data::text(""), |(_, v)| v))
    }),
    ("set", 3, 3, set),
    ("unset", 2, 2, |a| {
        if let Data::Map(map) = &a[0] {
            map.entries.borrow_mut().remove(text(a, 1)?);
        }
        Ok(a[0].clone())
    }),
    ("hasKey", 2, 2, |a| {
        let key = text(a, 1)?;
        Ok(Data::Bool(entries(a, 0)?.iter().any(|(known, _)| known == key)))
    }),
    ("pluck", 1, ANY, |a| {
        let key = text(a, 0)?;
        let mut found = Vec::new();
        for at in 1..a.len() {
            found.extend(entries(a, at)?.into_iter().filter(|(known, _)| known == key).map(|(_, value)| value));
        }
        Ok(Data::list(found))
    }),
    ("keys", 0, ANY, |a| {
        let mut keys = Vec::new();
        for at in 0..a.len() {
            keys.extend(entries(a, at)?.into_iter().map(|(key, _)| Data::text(key)));
        }
        Ok(Data::list(keys))
    }),
    ("values", 1, 1, |a| Ok(Data::list(entries(a, 0)?.into_iter().map(|(_, value)| value)))),
    ("pick", 1, ANY, |a| {
        let keys = keys(a)?;
        Ok(Data::map(entries(a, 0)?.into_iter().filter(|(key, _)| keys.contains(key))))
    }),
    ("merge", 1, ANY, |a| merged(a, false)),
    ("mergeOverwrite", 1, ANY, |a| merged(a, true)),
    ("deepCopy", 1, 1, |a| Ok(copied(&a[0], 0))),
    ("dig", 3, ANY, dig),
];

fn limited(items: Vec<Data>) -> Outcome {
    if items.len() > MOST_ITEMS {
        return Err(format!("more than {MOST_ITEMS} entries"));
    }
    Ok(Data::list(items))
}

/// Whether two values print the same and have the same kind.
fn same(one: &Data, other: &Data) -> bool {
    one.kind() == other.kind() && matches!((format::print(one), format::print(other)), (Ok(a), Ok(b)) if a == b)
}

fn uniq(a: Arguments<'_>) -> Outcome {
    let mut seen = std::collections::BTreeSet::new();
    let mut kept = Vec::new();
    for item in list(a, 0)? {
        if seen.insert((item.kind(), format::print(item)?)) {
            kept.push(item.clone());
        }
    }
    Ok(Data::list(kept))
}

fn keys(a: Arguments<'_>) -> Result<Vec<String>, String> {
    (1..a.len()).map(|at| text(a, at).map(str::to_owned)).collect()
}

fn dict(a: Arguments<'_>) -> Outcome {
    let mut made = BTreeMap::new();
    for at in (0..a.len()).step_by(2) {
        made.insert(shown(a, at)?, a.get(at + 1).cloned().unwrap_or_else(|| Data::text("")));
    }
    Ok(Data::map(made))
}

fn set(a: Arguments<'_>) -> Outcome {
    let Data::Map(map) = &a[0] else { return Err(format!("expected a map, found a {}", a[0].kind())) };
    let key = text(a, 1)?.to_owned();
    // A map within itself could not be printed.
    if reaches(&a[2], map, 0) {
        return Err("a map can't contain itself".to_owned());
    }
    map.entries.borrow_mut().insert(key, a[2].clone());
    Ok(a[0].clone())
}

fn reaches(value: &Data, map: &Rc<GoMap>, depth: usize) -> bool {
    match value {
        _ if depth > 8 => true,
        Data::Map(other) => {
            Rc::ptr_eq(other, map) || other.entries.borrow().values().any(|value| reaches(value, map, depth + 1))
        }
        Data::List(list) => list.iter().any(|value| reaches(value, map, depth + 1)),
        _ => false,
    }
}

fn merged(a: Arguments<'_>, overwrites: bool) -> Outcome {
    let Data::Map(target) = &a[0] else { return Err(format!("expected a map, found a {}", a[0].kind())) };
    for at in 1..a.len() {
        for (key, value) in entries(a, at)? {
            if reaches(&value, target, 0) {
                return Err("a map can't contain itself".to_owned());
            }
            let known = target.entries.borrow().get(&key).cloned();
            let value = match (known, value) {
                (Some(known @ Data::Map(_)), value @ Data::Map(_)) => merged(&[copied(&known, 0), value], overwrites)?,
                (Some(known), value) if overwrites != value.is_true() || (!overwrites && known.is_true()) => known,
                (_, value) => value,
            };
            target.entries.borrow_mut().insert(key, value);
        }
    }
    Ok(a[0].clone())
}

fn copied(value: &Data, depth: usize) -> Data {
    match value {
        Data::Map(map) if depth < 16 => {
            let entries = map.entries.borrow();
            Data::map(entries.iter().map(|(key, value)| (key.clone(), copied(value, depth + 1))))
        }
        other => other.clone(),
    }
}

/// `dig "a" "b" default map`
fn dig(a: Arguments<'_>) -> Outcome {
    let (path, rest) = a.split_at(a.len() - 2);
    let mut value = rest[1].clone();
    for at in 0..path.len() {
        let key = text(path, at)?;
        let next = match &value {
            Data::Map(map) => map.entries.borrow().get(key).cloned(),
            _ => None,
        };
        match next {
            Some(next) => value = next,
            None => return Ok(rest[0].clone()),
        }
    }
    Ok(value)
}
