//! The conformance suite of registries: one sequence of changes to a server, observed through its source.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use model::change::SourceId;
use sources::health::SourceState;
use sources::registry::adapter::SourcePlace;
use sources::registry::config::RegistryConfig;
use sources::registry::config_file::RegistryConfigFile;
use sources::registry::diff::MassLossGuard;
use sources::source::Source;
use sources::source_set::SourceSet;

use crate::follower::Follower;

/// A place in cluster `c1` with this source id.
pub(crate) fn place(id: &str) -> SourcePlace {
    SourcePlace { id: SourceId(id.into()), cluster: "c1".into(), guard: MassLossGuard::default() }
}

/// An instance as the suite registers it: port 8080 of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) service: String,
    pub(crate) id: String,
    pub(crate) address: String,
}

impl Instance {
    pub(crate) fn new(service: &str, number: usize) -> Instance {
        let address = format!("10.{}.{}.{}", number / 65536, number / 256 % 256, number % 256);
        Instance { service: service.to_owned(), id: format!("{service}-{number}"), address }
    }
}

/// A change of instances.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Edit<'a> {
    Add(&'a [Instance]),
    /// Whether the instance is healthy.
    Serving(&'a Instance, bool),
    Remove(&'a Instance),
}

/// Instances by id and whether each is healthy, for servers that get the complete list with each change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Instances(BTreeMap<String, (Instance, bool)>);

impl Instances {
    pub(crate) fn take(&mut self, edit: Edit<'_>) {
        match edit {
            Edit::Add(new) => self.0.extend(new.iter().map(|i| (i.id.clone(), (i.clone(), true)))),
            Edit::Serving(instance, serves) => _ = self.0.insert(instance.id.clone(), (instance.clone(), serves)),
            Edit::Remove(instance) => _ = self.0.remove(&instance.id),
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&Instance, bool)> {
        self.0.values().map(|(instance, serves)| (instance, *serves))
    }

    /// Addresses of healthy instances by service, including services without any.
    pub(crate) fn serving(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut by_service: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (instance, serves) in self.all() {
            by_service.entry(&instance.service).or_default().extend(serves.then_some(instance.address.as_str()));
        }
        by_service
    }
}

/// The server of a registry.
pub(crate) trait RegistryServer {
    /// A source that watches the server.
    fn source(&self) -> impl Source;
    /// The section of `--registryConfig` for this server, with this namespace for its services; `None` where there is
    /// none.
    fn described(&self, _namespace: &str) -> Option<String> {
        None
    }
    /// The host name that a service gets.
    fn host(&self, service: &str) -> String;
    async fn edit(&mut self, edit: Edit<'_>);
    /// Kills the server.
    async fn stop(&mut self);
    /// Starts it again with the same instances, from its disk or because clients register again.
    async fn start_again(&mut self);

    /// The effect of removing the last instance of a service.
    fn without_instances(&self) -> WithoutInstances {
        WithoutInstances::Gone
    }

    /// Services and endpoints that the source reports at the end.
    fn held(&self) -> (usize, usize) {
        (21, 10_001)
    }
}

/// The state of a service without instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithoutInstances {
    Gone,
    /// The service exists by configuration.
    Empty,
}

/// Runs the suite.
pub(crate) async fn conforms(server: &mut impl RegistryServer) {
    let [a, b, c] = [1, 2, 3].map(|n| Instance::new("web", n));
    let other = Instance::new("other", 9);
    let (web, rest) = (server.host("web"), server.host("other"));

    server.edit(Edit::Add(&[a.clone(), other.clone()])).await;
    let mut seen = Follower::synced(server.source()).await;
    assert_eq!(seen.serving(&web), ["10.0.0.1"], "the initial state comes before sync");
    assert_eq!(seen.serving(&rest), ["10.0.0.9"]);

    server.edit(Edit::Add(&[b.clone(), c.clone()])).await;
    seen.until("scale out", |f| f.serving(&web) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]).await;
    server.edit(Edit::Remove(&c)).await;
    seen.until("scale in", |f| f.serving(&web) == ["10.0.0.1", "10.0.0.2"]).await;

    server.edit(Edit::Serving(&b, false)).await;
    seen.until("a drained instance", |f| f.serving(&web) == ["10.0.0.1"]).await;
    server.edit(Edit::Serving(&a, false)).await;
    seen.until("all unhealthy", |f| f.serving(&web).is_empty()).await;
    assert!(seen.has_service(&web), "a service whose instances all fail is still a service");
    server.edit(Edit::Serving(&a, true)).await;
    server.edit(Edit::Serving(&b, true)).await;
    seen.until("healthy again", |f| f.serving(&web) == ["10.0.0.1", "10.0.0.2"]).await;

    survives_a_server_restart(server, &mut seen, &web).await;
    follows_its_config_file(server).await;

    let late = Instance::new("web", 4);
    server.edit(Edit::Add(std::slice::from_ref(&late))).await;
    seen.until("changes after the restart", |f| f.serving(&web).contains(&"10.0.0.4".to_owned())).await;
    for instance in [&a, &b, &late] {
        server.edit(Edit::Remove(instance)).await;
    }
    let is_left = server.without_instances() == WithoutInstances::Empty;
    seen.until("a service removed", |f| f.has_service(&web) == is_left && f.serving(&web).is_empty()).await;
    assert_eq!(seen.serving(&rest), ["10.0.0.9"], "other services stay");

    holds_ten_thousand(server, &mut seen).await;
}

/// A stopped server removes no endpoints, and is followed again after its restart.
async fn survives_a_server_restart(server: &mut impl RegistryServer, seen: &mut Follower, web: &str) {
    let lost = seen.lost;
    server.stop().await;
    seen.until_state("a stale source", |r| matches!(r.state, SourceState::Stale { .. })).await;
    server.start_again().await;
    seen.until_state("a live source", |r| r.state == SourceState::Live).await;
    assert_eq!(seen.serving(web), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(seen.lost, lost, "endpoints lost while the server was stopped");
}

/// Removing an entry of the file removes the services of that registry only; changing an entry keeps services until the
/// new source is in sync. `web` has two instances and `other` one.
async fn follows_its_config_file(server: &impl RegistryServer) {
    let entry = |name: &str, namespace: &str| Some(format!("- name: {name}\n  {}\n", server.described(namespace)?));
    let (Some(one), Some(two), Some(moved)) = (entry("one", "one"), entry("two", "two"), entry("two", "three")) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("registries.yaml");
    let both = put(&file, &[&one, &two]);
    let source_set = SourceSet::default();
    let config_file =
        RegistryConfigFile::new(&file, RegistryConfig::parse(&both).unwrap(), "c1".into(), source_set.clone());
    let mut seen = Follower::new(config_file);
    seen.until("both", |f| count_in(f, "one") == 3 && count_in(f, "two") == 3).await;
    assert_eq!(source_set.healths().len(), 2);

    put(&file, &["nonsense"]);
    seen.until("the problem", |f| f.has_problem(&["registries.yaml", "could not use", "watched as before"])).await;
    assert_eq!((count_in(&seen, "one"), seen.lost), (3, 0), "endpoints, endpoints lost by an invalid file");

    put(&file, &[&two]);
    seen.until("a registry removed", |f| !has_services_in(f, "one")).await;
    assert_eq!((count_in(&seen, "two"), seen.lost, source_set.healths().len()), (3, 3, 1));
    seen.until("no problem", |f| f.problems.is_empty()).await;

    put(&file, &[&moved, &one]);
    seen.until("a changed entry", |f| !has_services_in(f, "two")).await;
    assert_eq!((count_in(&seen, "three"), seen.lost), (3, 6), "the new services come before the old ones go");
    seen.until("a registry added", |f| count_in(f, "one") == 3).await;
}

/// Replaces the file atomically. Returns its text.
fn put(file: &Path, entries: &[&str]) -> String {
    let text = format!("registries:\n{}", entries.concat());
    fs::write(file.with_extension("part"), &text).unwrap();
    fs::rename(file.with_extension("part"), file).unwrap();
    text
}

fn count_in(seen: &Follower, namespace: &str) -> usize {
    let of_namespace = seen.endpoints.iter().filter(|(key, _)| *key.namespace == *namespace);
    of_namespace.map(|(_, endpoints)| endpoints.len()).sum()
}

fn has_services_in(seen: &Follower, namespace: &str) -> bool {
    seen.services.keys().any(|key| *key.namespace == *namespace)
}

async fn holds_ten_thousand(server: &mut impl RegistryServer, seen: &mut Follower) {
    let instances: Vec<Instance> = (0..10_000).map(|n| Instance::new(&format!("many-{}", n / 500), n + 256)).collect();
    let started = Instant::now();
    server.edit(Edit::Add(&instances)).await;
    let registered = started.elapsed();
    let hosts: Vec<String> = (0..20).map(|n| server.host(&format!("many-{n}"))).collect();
    let count = |f: &Follower| hosts.iter().map(|host| f.serving(host).len()).sum::<usize>();
    seen.until("ten thousand endpoints", |f| count(f) == 10_000).await;
    println!("10,000 endpoints: registered in {registered:?}, all seen after {:?}", started.elapsed());
    let (counts, last) = (seen.report().counts, &instances[9_999]);
    assert_eq!((counts.services, counts.endpoints), server.held());
    server.edit(Edit::Serving(last, false)).await;
    let started = Instant::now();
    seen.until("one of them drained", |f| count(f) == 9_999).await;
    println!("one of 10,000 drained, seen after {:?}", started.elapsed());
}
