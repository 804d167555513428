//! The storage in etcd, with real members: several processes on one cluster, a killed member, no quorum, compaction,
//! conflicts, TLS and users.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use configapi::store::cache::{HistoryLimits, RevisionError};
use configapi::store::etcd::EtcdStorage;
use configapi::store::{ObjectKey, Storage, StoreError, Write};
use etcd::{EtcdOptions, EtcdTls, EtcdUser};
use testkit::certificates::Authority;
use testkit::etcd::EtcdCluster;
use testkit::wait;

/// How soon every process must have a write that was acknowledged by another.
const FRESH: Duration = Duration::from_secs(2);

async fn open(url: &str) -> EtcdStorage {
    let options = EtcdOptions::parse(url).expect("an address");
    EtcdStorage::open(options, HistoryLimits::default()).await.expect("a storage")
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("configmaps", "shop", name)
}

fn put(name: &str, expected: Option<u64>, number: u64) -> Write {
    let text = format!("{{\"metadata\":{{\"name\":\"{name}\"}},\"data\":{{\"number\":\"{number}\"}}}}");
    Write::new(key(name), expected, Some(text.into()))
}

fn number(storage: &EtcdStorage, name: &str) -> Option<u64> {
    let stored = storage.cache().get(&key(name))?;
    let value: serde_json::Value = serde_json::from_str(&stored.text).expect("whole objects");
    value["data"]["number"].as_str().and_then(|text| text.parse().ok())
}

/// Writes the numbers up to `last` one after the other. Writes that fail are repeated until they succeed.
async fn write_numbers(storage: Arc<EtcdStorage>, name: String, last: u64) -> u64 {
    let (mut failures, mut next) = (0, 0);
    let deadline = Instant::now() + wait::PATIENCE;
    while next <= last {
        let expected = storage.cache().get(&key(&name)).map(|stored| stored.revision);
        match storage.write(put(&name, expected, next)).await {
            Ok(_) => {
                assert_eq!(number(&storage, &name), Some(next), "an acknowledged write is in the cache");
                next += 1;
            }
            Err(_) if number(&storage, &name) == Some(next) => next += 1,
            Err(error) => {
                failures += 1;
                assert!(Instant::now() < deadline, "{error}");
            }
        }
    }
    failures
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_member_loses_nothing_and_leaves_no_process_behind() {
    let mut cluster = EtcdCluster::start(3).await;
    let mut storages = Vec::new();
    for first in 0..3 {
        storages.push(Arc::new(open(&cluster.url(first)).await));
    }
    let names: Vec<String> = (0..6).map(|n| format!("object-{n}")).collect();
    let (half, last) = (20, 150);
    let run = |from: &[Arc<EtcdStorage>], last: u64| {
        let writers = names.iter().enumerate();
        writers
            .map(|(n, name)| tokio::spawn(write_numbers(from[n % 3].clone(), name.clone(), last)))
            .collect::<Vec<_>>()
    };
    for writer in run(&storages, half) {
        writer.await.expect("a writer");
    }
    let leader = cluster.leader().await;
    let writers = run(&storages, last);
    wait::until("writes", async || {
        if number(&storages[0], &names[0]) < Some(half / 2) { Ok(()) } else { Err("not begun".to_owned()) }
    })
    .await;
    cluster.kill(leader);
    assert!(number(&storages[0], &names[0]) < Some(last), "killed under load");
    let mut failures = 0;
    for writer in writers {
        failures += writer.await.expect("a writer");
    }
    let done = Instant::now();
    for storage in &storages {
        for name in &names {
            wait::until("the last write", async || match number(storage, name) {
                Some(found) if found == last => Ok(()),
                found => Err(format!("{name} is {found:?}")),
            })
            .await;
        }
    }
    let delay = done.elapsed();
    println!("killed the leader under load: {failures} failed writes, all processes had everything after {delay:?}");
    assert!(delay < FRESH, "{delay:?}");
    let (known, revision) = storages[0].cache().current();
    for storage in &storages {
        storage.reach(revision).await;
        assert_eq!(storage.cache().current().0, known);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_writes_fail_and_reads_go_on() {
    let mut cluster = EtcdCluster::start(3).await;
    let storage = open(&cluster.url(0)).await;
    let first = storage.write(put("a", None, 1)).await.expect("a write");
    cluster.kill(1);
    cluster.kill(2);
    let refused = storage.write(put("a", Some(first), 2)).await.expect_err("no majority");
    println!("{refused}");
    assert!(matches!(refused, StoreError::Unavailable { .. } | StoreError::Unconfirmed { .. }), "{refused:?}");
    assert!(refused.to_string().contains("configmaps \"shop/a\""), "{refused}");
    // Once the member knows that it has no leader, it says so at once.
    let refused = wait::until("a definite answer", async || match storage.write(put("b", None, 1)).await {
        Err(error @ StoreError::Unavailable { .. }) => Ok(error.to_string()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert!(refused.contains("the object is unchanged"), "{refused}");
    assert_eq!(number(&storage, "a"), Some(1));
    let stale = storage.refresh().await.expect_err("no majority").to_string();
    assert!(stale.contains(&format!("revision {first}")), "{stale}");
    cluster.resume(1).await;
    let number_now = wait::until("a write", async || {
        let current = storage.cache().get(&key("a")).map(|stored| stored.revision);
        storage.write(put("a", current, 3)).await.map_err(|error| error.to_string())?;
        number(&storage, "a").ok_or("lost".to_owned())
    })
    .await;
    assert_eq!(number_now, 3);
    let second = open(&cluster.url(1)).await;
    assert_eq!(second.cache().current().0, storage.cache().current().0);
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_of_different_processes_do_not_overwrite_each_other() {
    let cluster = EtcdCluster::start(1).await;
    let storages = [Arc::new(open(&cluster.url(0)).await), Arc::new(open(&cluster.url(0)).await)];
    storages[0].write(put("a", None, 0)).await.expect("a write");
    let refused = storages[1].write(put("a", None, 7)).await;
    assert!(matches!(refused, Err(StoreError::Conflict { found: Some(_), .. })), "{refused:?}");
    let count = |storage: Arc<EtcdStorage>| async move {
        let (mut done, mut conflicts) = (0, 0);
        while done < 50 {
            let stored = storage.cache().get(&key("a")).expect("the object");
            let next = number(&storage, "a").expect("a number") + 1;
            match storage.write(put("a", Some(stored.revision), next)).await {
                Ok(_) => done += 1,
                Err(StoreError::Conflict { .. }) => conflicts += 1,
                Err(error) => panic!("{error}"),
            }
        }
        conflicts
    };
    let (one, two) = tokio::join!(count(storages[0].clone()), count(storages[1].clone()));
    println!("{} conflicts", one + two);
    for storage in &storages {
        storage.refresh().await.expect("fresh");
        assert_eq!(number(storage, "a"), Some(100));
    }
    let deleted = storages[1].cache().get(&key("a")).map(|stored| stored.revision);
    storages[1].write(Write::new(key("a"), deleted, None)).await.expect("a delete");
    storages[0].refresh().await.expect("fresh");
    assert_eq!(storages[0].cache().get(&key("a")), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compacted_watch_reads_everything_again() {
    let mut cluster = EtcdCluster::start(3).await;
    let storage = open(&cluster.url(0)).await;
    // This one knows only the first member.
    let alone = open(&format!("etcd://{}/test", cluster.address(0))).await;
    let mut seen = storage.write(put("a", None, 1)).await.expect("a write");
    let first = seen;
    alone.refresh().await.expect("fresh");
    cluster.kill(0);
    for number in 2..5 {
        seen = wait::until("a write", async || {
            let current = storage.cache().get(&key("a")).map(|stored| stored.revision);
            storage.write(put("a", current, number)).await.map_err(|error| error.to_string())
        })
        .await;
    }
    storage.write(put("b", None, 1)).await.expect("a write");
    let compacted = cluster.compact(1).await;
    cluster.resume(0).await;
    wait::until("all objects", async || match (number(&alone, "a"), number(&alone, "b")) {
        (Some(4), Some(1)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let expired = alone.cache().events_after(first);
    assert_eq!(expired, Err(RevisionError::Expired { asked: first, oldest: compacted }));
    // A process that was following needs no second read.
    assert!(storage.cache().events_after(first).is_ok());
    let found = storage.objects_at(seen, Some(&key("a"))).await.expect("in the history");
    assert_eq!(found.get(&key("a")).map(|stored| stored.revision), Some(seen));
}

#[tokio::test(flavor = "multi_thread")]
async fn old_versions_are_read_from_etcd_until_they_are_compacted() {
    let cluster = EtcdCluster::start(1).await;
    let storage = open(&cluster.url(0)).await;
    let mut revisions = BTreeMap::new();
    let mut last = None;
    for number in 1..4 {
        last = Some(storage.write(put("a", last, number)).await.expect("a write"));
        revisions.insert(number, last.expect("a revision"));
    }
    let later = open(&cluster.url(0)).await;
    for (number, revision) in &revisions {
        let objects = later.objects_at(*revision, Some(&key("a"))).await.expect("known to etcd");
        let text = &objects.get(&key("a")).expect("the object").text;
        assert!(text.contains(&format!("\"number\":\"{number}\"")), "{text}");
        assert_eq!(later.objects_at(*revision, None).await.expect("known to etcd"), objects);
    }
    cluster.compact(0).await;
    let newest = open(&cluster.url(0)).await;
    let gone = newest.objects_at(revisions[&1], None).await;
    assert!(matches!(gone, Err(RevisionError::Expired { .. })), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_keys_and_large_objects_do_no_harm() {
    let cluster = EtcdCluster::start(1).await;
    cluster.put(0, "/test/v1/configmaps/shop/odd", "no object").await;
    cluster.put(0, "/test/v1/odd", "{}").await;
    let storage = open(&cluster.url(0)).await;
    assert!(storage.cache().current().0.is_empty());
    cluster.put(0, "/other/key", "x").await;
    cluster.put(0, "/test/v1/configmaps/shop/odd", "{\"metadata\":{").await;
    storage.refresh().await.expect("fresh");
    assert!(storage.cache().current().0.is_empty());
    let text = format!("{{\"metadata\":{{\"name\":\"a\"}},\"data\":\"{}\"}}", "x".repeat(4 << 20));
    let refused = storage.write(Write::new(key("a"), None, Some(text.into()))).await;
    let refused = refused.expect_err("too large");
    assert!(matches!(refused, StoreError::TooLarge { .. }), "{refused}");
    assert!(refused.to_string().contains("configmaps \"shop/a\""), "{refused}");
    storage.write(put("a", None, 1)).await.expect("a write");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_and_users() {
    let authority = Authority::new();
    let cluster = EtcdCluster::start_with_tls(&authority).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    let own = authority.workload("spiffe://test/pilot");
    let tls = EtcdTls {
        ca_file: Some(file("ca.pem", &authority.root())),
        cert_file: Some(file("cert.pem", &own.chain)),
        key_file: Some(file("key.pem", &own.key)),
    };
    cluster.require_user(0, "open-sesame").await;
    let password_file = file("password", "open-sesame\n");
    let user = EtcdUser { name: "root".to_owned(), password_file: password_file.clone() };
    let address = format!("etcds://{}/test", cluster.address(1));
    let options = EtcdOptions { tls: Some(tls), user: Some(user), ..EtcdOptions::parse(&address).expect("an address") };
    let storage = EtcdStorage::open(options.clone(), HistoryLimits::default()).await.expect("a storage");
    let revision = storage.write(put("a", None, 1)).await.expect("a write");
    assert_eq!(storage.cache().get(&key("a")).map(|stored| stored.revision), Some(revision));

    std::fs::write(&password_file, "wrong").expect("a file");
    let refused =
        EtcdStorage::open(options.clone(), HistoryLimits::default()).await.err().expect("refused").to_string();
    assert!(refused.contains("authentication failed") && refused.contains("user root"), "{refused}");
    assert!(!refused.contains("wrong"), "{refused}");
    let nameless = EtcdOptions { user: None, ..options };
    let refused = EtcdStorage::open(nameless, HistoryLimits::default()).await.err().expect("refused").to_string();
    assert!(refused.contains("etcd refused the request: etcdserver: permission denied"), "{refused}");
}
