//! Cloud Foundry with a Copilot of these tests: the suite, outages and faults.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use sources::health::SourceState;
use sources::registry::adapter::Adapter;
use sources::registry::cloudfoundry::{CloudFoundryOptions, CloudFoundryRegistry};
use sources::registry::flags::FlagValues;
use sources::registry::shared_options::GoDuration;
use sources::source::Source;
use testkit::copilot::{Copilot, CopilotInternalRoute, CopilotRoute, UNIMPLEMENTED};

use crate::conformance::{Edit, Instances, RegistryServer, conforms, place};
use crate::follower::Follower;

const HOST: &str = "web.example.com";

fn options(copilot: &Copilot) -> CloudFoundryOptions {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cf.yaml");
    std::fs::write(&file, copilot.config("20ms", 8080)).unwrap();
    let values = BTreeMap::from([("cfConfig", file.display().to_string())]);
    let options = CloudFoundryOptions::from_flags(&FlagValues { values, ..FlagValues::default() }).unwrap();
    CloudFoundryOptions {
        timeout: GoDuration(Duration::from_secs(5)),
        resync: GoDuration(Duration::from_secs(1)),
        ..options
    }
}

fn adapter(options: CloudFoundryOptions) -> CloudFoundryRegistry {
    CloudFoundryRegistry::new(options, place("CloudFoundry"))
}

/// A route of `web` to backends with these last octets.
fn web(backends: &[u8]) -> CopilotRoute {
    CopilotRoute::new(HOST, "web", backends.iter().map(|n| (format!("10.0.0.{n}"), 61000)))
}

/// A Copilot with one route, and a follower that is in sync.
async fn followed(backends: &[u8]) -> (Copilot, Follower) {
    let copilot = Copilot::start().await;
    copilot.edit(|state| state.routes = vec![web(backends)]);
    let seen = Follower::synced(adapter(options(&copilot))).await;
    (copilot, seen)
}

struct Platform {
    copilot: Copilot,
    /// Copilot has no health, so it lists healthy instances only.
    instances: Instances,
}

impl Platform {
    fn publish(&self) {
        let route = |(service, addresses): (&str, Vec<&str>)| {
            CopilotRoute::new(&self.host(service), service, addresses.iter().map(|address| (address.to_string(), 8080)))
        };
        let routes = self.instances.serving().into_iter().map(route).collect();
        self.copilot.edit(|state| state.routes = routes);
    }
}

impl RegistryServer for Platform {
    fn source(&self) -> impl Source {
        adapter(options(&self.copilot))
    }

    fn described(&self, namespace: &str) -> Option<String> {
        let CloudFoundryOptions { address, tls, .. } = options(&self.copilot);
        let file = |path: Option<PathBuf>| path.unwrap().display().to_string();
        let (ca, cert, key) = (file(tls.ca_file), file(tls.cert_file), file(tls.key_file));
        Some(format!(
            "cloudFoundry: {{address: '{address}', namespace: {namespace}, interval: 20ms, \
             tls: {{caFile: {ca}, certFile: {cert}, keyFile: {key}}}}}"
        ))
    }

    fn host(&self, service: &str) -> String {
        format!("{service}.example.com")
    }

    async fn edit(&mut self, edit: Edit<'_>) {
        self.instances.take(edit);
        self.publish();
    }

    async fn stop(&mut self) {
        self.copilot.kill();
    }

    async fn start_again(&mut self) {
        self.copilot.restart().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copilot_conforms() {
    conforms(&mut Platform { copilot: Copilot::start().await, instances: Instances::default() }).await;
}

#[tokio::test]
async fn failures_keep_routes() {
    let copilot = Copilot::start().await;
    copilot.edit(|state| {
        state.routes = vec![web(&[1, 2])];
        state.internal =
            vec![CopilotInternalRoute::new("db.apps.internal", "127.128.0.1", [("10.1.0.1".to_owned(), 5432)])];
    });
    let options = CloudFoundryOptions { timeout: GoDuration(Duration::from_millis(300)), ..options(&copilot) };
    let mut seen = Follower::synced(adapter(options)).await;
    let mut check = async |what: &str, edit: &dyn Fn(&mut testkit::copilot::CopilotState)| {
        let good = copilot.state();
        copilot.edit(edit);
        seen.until_state(what, |r| matches!(r.state, SourceState::Stale { .. })).await;
        copilot.edit(|state| *state = good);
        seen.until_state("a live source", |r| r.state == SourceState::Live).await;
        (seen.serving(HOST).len(), seen.serving("db.apps.internal").len(), seen.lost)
    };
    for method in ["Routes", "InternalRoutes", "Health"] {
        assert_eq!(check(method, &|state| _ = state.failing.insert(method, 13)).await, (2, 1, 0), "{method}");
    }
    let gone = check("no Routes", &|state| _ = state.failing.insert("Routes", UNIMPLEMENTED)).await;
    assert_eq!(gone, (2, 1, 0), "a server without Routes is a fault");
    let gone = check("no InternalRoutes", &|state| _ = state.failing.insert("InternalRoutes", UNIMPLEMENTED)).await;
    assert_eq!(gone, (2, 1, 0), "a server that had InternalRoutes keeps them");
    let ill = check("ill", &|state| {
        state.is_unhealthy = true;
        state.routes.clear();
    });
    assert_eq!(ill.await, (2, 1, 0));
    assert_eq!(check("stalled", &|state| state.stalls = true).await, (2, 1, 0));
}

#[tokio::test]
async fn a_copilot_of_the_first_releases_is_read() {
    let copilot = Copilot::start().await;
    copilot.edit(|state| {
        state.routes = vec![web(&[1])];
        state.failing = BTreeMap::from([("InternalRoutes", UNIMPLEMENTED), ("Health", UNIMPLEMENTED)]);
    });
    let seen = Follower::synced(adapter(options(&copilot))).await;
    assert_eq!(seen.serving(HOST), ["10.0.0.1"]);
}

#[tokio::test]
async fn a_copilot_without_routes_after_an_outage_does_not_remove_them_at_once() {
    let (mut copilot, mut seen) = followed(&[1, 2]).await;
    copilot.kill();
    seen.until_state("a stale source", |r| matches!(r.state, SourceState::Stale { .. })).await;
    copilot.edit(|state| state.routes.clear());
    copilot.restart().await;
    seen.until("the problem", |f| f.has_problem(&["does not list 1 routes", "keeping them"])).await;
    assert_eq!((seen.serving(HOST).len(), seen.lost), (2, 0));
    copilot.edit(|state| state.routes = vec![web(&[2, 3])]);
    seen.until("the new routes", |f| f.serving(HOST) == ["10.0.0.2", "10.0.0.3"]).await;
    copilot.edit(|state| state.routes.clear());
    seen.until("the end of the resync period", |f| !f.has_service(HOST)).await;
}

#[tokio::test]
async fn a_restart_between_two_polls_is_noticed() {
    let (mut copilot, mut seen) = followed(&[1, 2]).await;
    copilot.kill();
    copilot.edit(|state| state.routes.clear());
    copilot.restart().await;
    seen.until("the problem", |f| f.has_problem(&["does not list 1 routes"])).await;
    assert_eq!((seen.serving(HOST).len(), seen.lost), (2, 0));
}

#[tokio::test]
async fn replaced_certificates_are_used_as_soon_as_they_work() {
    let (copilot, mut seen) = followed(&[1]).await;
    let renewed = copilot.renew_client();
    testkit::wait::until("the new certificate", async || {
        let shown = copilot.state().shown;
        if shown.last() == Some(&renewed) { Ok(()) } else { Err(format!("{} connections", shown.len())) }
    })
    .await;
    copilot.put("cert.pem", "nonsense");
    seen.until("the problem", |f| f.has_problem(&["cert.pem", "previous certificates"])).await;
    copilot.edit(|state| state.routes = vec![web(&[1, 2])]);
    seen.until("a change with the previous certificates", |f| f.serving(HOST).len() == 2).await;
    copilot.renew_client();
    seen.until("no problem", |f| f.problems.is_empty()).await;
    assert_eq!(seen.lost, 0);
}

#[tokio::test]
async fn rules_come_and_go_with_paths_and_weights() {
    let (copilot, mut seen) = followed(&[1]).await;
    assert_eq!(seen.objects.len(), 0);
    let names = || {
        [
            format!("DestinationRule default/dest-rule-for-{HOST}"),
            format!("VirtualService default/virtual-service-for-{HOST}"),
        ]
    };
    copilot.edit(|state| {
        let other = CopilotRoute::new(HOST, "other", [("10.0.0.7".to_owned(), 61000)]);
        state.routes = vec![web(&[1]), other.below("/other")];
    });
    seen.until("rules", |f| f.objects.len() == 2).await;
    assert!(names().iter().all(|name| seen.objects.contains_key(name)), "{:?}", seen.objects.keys());
    copilot.edit(|state| state.routes.truncate(1));
    seen.until("no rules", |f| f.objects.is_empty()).await;
    assert_eq!(seen.serving(HOST), ["10.0.0.1"]);
}

#[tokio::test]
async fn hole_13_responses_slower_than_interval_and_timeout_are_read() {
    let copilot = Copilot::start().await;
    copilot.edit(|state| {
        state.routes = vec![web(&[1, 2])];
        state.delay = Duration::from_secs(1);
    });
    let options = CloudFoundryOptions { timeout: GoDuration(Duration::from_millis(100)), ..options(&copilot) };
    let seen = Follower::synced(adapter(options)).await;
    assert_eq!(seen.serving(HOST).len(), 2);
}
