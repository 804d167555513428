//! What every registry must do, as one story told to an outside server and watched through its adapter.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use sources::health::SourceState;
use sources::registry::config::RegistryConfig;
use sources::registry::config_file::RegistryConfigFile;
use sources::source::Source;
use sources::source_set::SourceSet;

use crate::follower::Follower;

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

/// What happens to instances.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Edit<'a> {
    Add(&'a [Instance]),
    /// A check fails or passes again.
    Serving(&'a Instance, bool),
    Remove(&'a Instance),
}

/// Instances by id, each with whether it serves, for servers that are told all of them anew.
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

    /// Addresses of those that serve, by service. A service of which none does is there too.
    pub(crate) fn serving(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut by_service: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (instance, serves) in self.all() {
            by_service.entry(&instance.service).or_default().extend(serves.then_some(instance.address.as_str()));
        }
        by_service
    }
}

/// The outside server of a registry.
pub(crate) trait Stage {
    /// A source that watches the server.
    fn source(&self) -> impl Source;
    /// The registry as the file of `--registryConfig` describes it, with this namespace for its services; `None`
    /// where it is described elsewhere.
    fn described(&self, _namespace: &str) -> Option<String> {
        None
    }
    /// The host name that a service gets.
    fn host(&self, service: &str) -> String;
    async fn edit(&mut self, edit: Edit<'_>);
    /// Ends the server without a word.
    async fn stop(&mut self);
    /// Starts it again; what was registered is there, from its disk or because everybody registers again.
    async fn start_again(&mut self);

    /// What becomes of a service whose last instance is removed.
    fn emptied(&self) -> Emptied {
        Emptied::Gone
    }

    /// How many services and endpoints the source says that it holds in the end.
    fn held(&self) -> (usize, usize) {
        (21, 10_001)
    }
}

/// What becomes of a service without instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emptied {
    Gone,
    /// The operator names services, and not their instances.
    Empty,
}

/// Runs the whole story.
pub(crate) async fn conforms(stage: &mut impl Stage) {
    let [a, b, c] = [1, 2, 3].map(|n| Instance::new("web", n));
    let other = Instance::new("other", 9);
    let (web, rest) = (stage.host("web"), stage.host("other"));

    stage.edit(Edit::Add(&[a.clone(), other.clone()])).await;
    let mut seen = Follower::synced(stage.source()).await;
    assert_eq!(seen.serving(&web), ["10.0.0.1"], "what is there at the start comes before sync");
    assert_eq!(seen.serving(&rest), ["10.0.0.9"]);

    stage.edit(Edit::Add(&[b.clone(), c.clone()])).await;
    seen.until("scale out", |f| f.serving(&web) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]).await;
    stage.edit(Edit::Remove(&c)).await;
    seen.until("scale in", |f| f.serving(&web) == ["10.0.0.1", "10.0.0.2"]).await;

    stage.edit(Edit::Serving(&b, false)).await;
    seen.until("a drained instance", |f| f.serving(&web) == ["10.0.0.1"]).await;
    stage.edit(Edit::Serving(&a, false)).await;
    seen.until("all unhealthy", |f| f.serving(&web).is_empty()).await;
    assert!(seen.has_service(&web), "a service whose instances all fail is still a service");
    stage.edit(Edit::Serving(&a, true)).await;
    stage.edit(Edit::Serving(&b, true)).await;
    seen.until("healthy again", |f| f.serving(&web) == ["10.0.0.1", "10.0.0.2"]).await;

    survives_its_server(stage, &mut seen, &web).await;
    comes_and_goes_with_its_file(stage).await;

    let late = Instance::new("web", 4);
    stage.edit(Edit::Add(std::slice::from_ref(&late))).await;
    seen.until("changes after the restart", |f| f.serving(&web).contains(&"10.0.0.4".to_owned())).await;
    for instance in [&a, &b, &late] {
        stage.edit(Edit::Remove(instance)).await;
    }
    let is_left = stage.emptied() == Emptied::Empty;
    seen.until("a service removed", |f| f.has_service(&web) == is_left && f.serving(&web).is_empty()).await;
    assert_eq!(seen.serving(&rest), ["10.0.0.9"], "its neighbour stays");

    holds_ten_thousand(stage, &mut seen).await;
}

/// A server that is gone takes nothing with it, and is followed again when it is back.
async fn survives_its_server(stage: &mut impl Stage, seen: &mut Follower, web: &str) {
    let lost = seen.lost;
    stage.stop().await;
    seen.until_state("a stale source", |r| matches!(r.state, SourceState::Stale { .. })).await;
    stage.start_again().await;
    seen.until_state("a live source", |r| r.state == SourceState::Live).await;
    assert_eq!(seen.serving(web), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(seen.lost, lost, "endpoints lost while the server was away");
}

/// A registry that the file describes no more takes its own services with it and nothing else; one that is described
/// differently is there all the time. `web` has two instances and `other` one.
async fn comes_and_goes_with_its_file(stage: &impl Stage) {
    let entry = |name: &str, namespace: &str| Some(format!("- name: {name}\n  {}\n", stage.described(namespace)?));
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
    assert_eq!((count_in(&seen, "one"), seen.lost), (3, 0), "endpoints, endpoints lost by a file that cannot be used");

    put(&file, &[&two]);
    seen.until("a registry removed", |f| !has_services_in(f, "one")).await;
    assert_eq!((count_in(&seen, "two"), seen.lost, source_set.healths().len()), (3, 3, 1));
    seen.until("no problem", |f| f.problems.is_empty()).await;

    put(&file, &[&moved, &one]);
    seen.until("one that is described differently", |f| !has_services_in(f, "two")).await;
    assert_eq!((count_in(&seen, "three"), seen.lost), (3, 6), "the new is there before the old goes");
    seen.until("a registry added", |f| count_in(f, "one") == 3).await;
}

/// Writes the file at once, as an editor does; gives its text.
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

async fn holds_ten_thousand(stage: &mut impl Stage, seen: &mut Follower) {
    let instances: Vec<Instance> = (0..10_000).map(|n| Instance::new(&format!("many-{}", n / 500), n + 256)).collect();
    let begun = Instant::now();
    stage.edit(Edit::Add(&instances)).await;
    let registered = begun.elapsed();
    let hosts: Vec<String> = (0..20).map(|n| stage.host(&format!("many-{n}"))).collect();
    let count = |f: &Follower| hosts.iter().map(|host| f.serving(host).len()).sum::<usize>();
    seen.until("ten thousand endpoints", |f| count(f) == 10_000).await;
    println!("10,000 endpoints: registered in {registered:?}, all seen after {:?}", begun.elapsed());
    let (counts, last) = (seen.report().counts, &instances[9_999]);
    assert_eq!((counts.services, counts.endpoints), stage.held());
    stage.edit(Edit::Serving(last, false)).await;
    let begun = Instant::now();
    seen.until("one of them drained", |f| count(f) == 9_999).await;
    println!("one of 10,000 drained, seen after {:?}", begun.elapsed());
}
