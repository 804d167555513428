//! The interface of the in-memory store.

use std::sync::{Arc, Mutex};

use model::config::{Key, Kind, Object, parse};
use sources::store::memory::{MemoryStore, MemoryStoreError, StoreEvent};

use crate::follower::Follower;

fn service(namespace: &str, name: &str, host: &str) -> Object {
    let text = format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{hosts: [{host}], http: [{{route: [{{destination: {{host: h}}}}]}}]}}\n"
    );
    parse::documents(&text, "test").objects.remove(0)
}

fn at_version(mut object: Object, version: &str) -> Object {
    Arc::make_mut(&mut object.meta).resource_version = version.into();
    object
}

fn key(namespace: &str, name: &str) -> Key {
    service(namespace, name, "h").key()
}

fn store() -> MemoryStore {
    MemoryStore::new("memory", [Kind::VirtualService, Kind::Sidecar])
}

#[test]
fn created_objects_can_be_read_and_listed() {
    let store = store();
    for (namespace, name) in [("b", "1"), ("a", "2"), ("a", "1")] {
        store.create(service(namespace, name, "h")).expect("create");
    }
    let listed = |namespace: Option<&str>| {
        let objects = store.list(Kind::VirtualService, namespace.map(Into::into).as_ref());
        objects.iter().map(|o| format!("{}/{}", o.meta.namespace, o.meta.name)).collect::<Vec<_>>()
    };
    assert_eq!(listed(None), ["a/1", "a/2", "b/1"]);
    assert_eq!(listed(Some("a")), ["a/1", "a/2"]);
    assert_eq!(listed(Some("c")), Vec::<String>::new());
    assert!(store.list(Kind::Sidecar, None).is_empty());
    let stored = store.get(&key("a", "2")).expect("stored");
    assert!(stored.meta.created > 0 && !stored.meta.resource_version.is_empty());
    assert_eq!(store.get(&key("a", "3")), None);
    assert_eq!(store.schemas().collect::<Vec<_>>(), [Kind::VirtualService, Kind::Sidecar]);
}

#[test]
fn failed_operations_return_typed_errors_and_change_nothing() {
    let store = store();
    let first = store.create(service("a", "1", "one")).expect("create");
    let here = key("a", "1");
    assert_eq!(store.create(service("a", "1", "two")), Err(MemoryStoreError::AlreadyExists(here.clone())));
    assert_eq!(store.update(service("a", "2", "two")), Err(MemoryStoreError::NotFound(key("a", "2"))));
    assert_eq!(store.delete(&key("a", "2"), None), Err(MemoryStoreError::NotFound(key("a", "2"))));
    let conflict = MemoryStoreError::Conflict { key: here.clone(), expected: "old".into(), found: first.clone() };
    assert_eq!(store.update(at_version(service("a", "1", "two"), "old")), Err(conflict.clone()));
    assert_eq!(store.delete(&here, Some("old")), Err(conflict));
    let gateway = Key { kind: Kind::Gateway, ..here.clone() };
    assert_eq!(store.delete(&gateway, None), Err(MemoryStoreError::UnknownKind(Kind::Gateway)));
    assert_eq!(store.get(&here).map(|o| o.meta.resource_version.clone()), Some(first));
}

#[test]
fn an_invalid_object_is_rejected() {
    let mut object = service("a", "1", "h");
    object.spec = service("a", "1", "''").spec;
    assert!(matches!(store().create(object), Err(MemoryStoreError::Invalid { problems, .. }) if !problems.is_empty()));
}

#[test]
fn an_update_needs_the_stored_version_or_none() {
    let store = store();
    let first = store.create(service("a", "1", "one")).expect("create");
    let created = store.get(&key("a", "1")).map(|o| o.meta.created);
    let second = store.update(at_version(service("a", "1", "two"), &first)).expect("update at the stored version");
    assert_ne!(first, second);
    assert!(store.update(at_version(service("a", "1", "three"), &first)).is_err());
    let third = store.update(service("a", "1", "three")).expect("update without a version");
    assert_eq!(store.get(&key("a", "1")).map(|o| o.meta.created), created);
    store.delete(&key("a", "1"), Some(&third)).expect("delete at the stored version");
}

#[test]
fn handlers_see_every_event_in_order_even_their_own() {
    let store = store();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, inner) = (seen.clone(), store.clone());
    let handler = move |old: Option<&Object>, object: &Object, event: StoreEvent| {
        let versions = (old.map(|o| o.meta.resource_version.clone()), object.meta.resource_version.clone());
        log.lock().expect("the log").push((event, versions));
        if event == StoreEvent::Add {
            inner.update(object.clone()).expect("update from a handler");
        }
    };
    store.register_event_handler(Kind::VirtualService, handler).expect("register");
    assert!(store.register_event_handler(Kind::Gateway, |_, _, _| {}).is_err());
    store.create(service("a", "1", "one")).expect("create");
    store.delete(&key("a", "1"), None).expect("delete");
    let expected = [
        (StoreEvent::Add, (None, "1".into())),
        (StoreEvent::Update, (Some("1".into()), "2".into())),
        (StoreEvent::Delete, (None, "2".into())),
    ];
    assert_eq!(*seen.lock().expect("the log"), expected);
}

#[test]
fn a_handler_that_panics_does_not_stop_the_store() {
    let store = store();
    store.register_event_handler(Kind::VirtualService, |_, _, _| panic!("clumsy handler")).expect("register");
    store.create(service("a", "1", "one")).expect("create");
    store.create(service("a", "2", "one")).expect("create");
    assert_eq!(store.list(Kind::VirtualService, None).len(), 2);
}

#[tokio::test]
async fn changes_of_the_store_are_sent() {
    let store = store();
    store.create(service("shop", "a", "one")).expect("create");
    store.create(service("shop", "gone", "one")).expect("create");
    store.delete(&key("shop", "gone"), None).expect("delete");
    assert!(!store.has_synced());
    let mut follower = Follower::synced(store.clone()).await;
    assert_eq!(follower.names(), ["a"]);
    store.update(service("shop", "a", "one")).expect("update with the same meaning");
    store.update(service("shop", "a", "two")).expect("update");
    follower.until("the update", |f| f.host("a") == Some("two")).await;
    assert!(store.has_synced());
    store.delete(&key("shop", "a"), None).expect("delete");
    follower.until("the deletion", |f| f.objects.is_empty()).await;
    assert_eq!(follower.log, ["+VirtualService shop/a", "+VirtualService shop/a", "-VirtualService shop/a"]);
}
