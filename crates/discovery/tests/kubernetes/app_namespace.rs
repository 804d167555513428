//! `--appNamespace` watches only some namespaces, with permissions in those only; `--clusterRegistriesDir` names remote
//! clusters.

use std::fs;
use std::time::Duration;

use discovery::startup::Server;
use model::config::Kind;
use model::names::ServiceKey;
use serde_json::{Value, json};
use testkit::wait;

use crate::cluster::{cluster, create, is_left_out};
use crate::serving::{serve_with, web};

fn objects(namespace: &str) -> Vec<Value> {
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": namespace},
            "spec": {"ports": [{"name": "http", "port": 80}]}}),
        json!({"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
            "metadata": {"name": "web", "namespace": namespace}, "spec": {"host": "web"}}),
    ]
}

/// Namespaces of known services and DestinationRules.
fn seen(server: &Server) -> (Vec<String>, Vec<String>) {
    let world = server.pilot.world().now().snapshot.clone();
    let mut services: Vec<String> = world.services.iter().map(|service| service.namespace.to_string()).collect();
    services.sort();
    services.dedup();
    let rules = world.objects.of(Kind::DestinationRule);
    (services, rules.map(|rule| rule.meta.namespace.to_string()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_named_namespaces_are_watched() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = cluster().await;
    for namespace in ["one", "two", "three"] {
        create(&api_server, &objects(namespace)).await;
    }
    let settings = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "istio", "namespace": "istio-system"}, "data": {"mesh": "trustDomain: narrow.example"}});
    let root = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "istio-system"}});
    create(&api_server, &[root, settings]).await;
    let proxy = api_server.faulty().await;
    let server = serve_with(proxy.kubeconfig(), None, &[], &["--meshConfig=none", "--appNamespace=one,two"]).await;
    let both = || vec!["one".to_owned(), "two".to_owned()];
    assert_eq!(seen(&server), (both(), both()));
    assert_eq!(server.pilot.world().now().snapshot.settings.mesh.trust_domain, "narrow.example");
    let wide = |asked: &String| {
        ["/api/v1/services?", "/api/v1/secrets?", "/v1/destinationrules?"].iter().any(|w| asked.contains(w))
    };
    assert_eq!(proxy.requests().into_iter().filter(wide).collect::<Vec<_>>(), [""; 0], "looked beyond");
    // Listing one namespace again removes nothing of the others.
    api_server.delete("/api/v1/namespaces/two/services/web").await.unwrap();
    wait::until_within(Duration::from_secs(60), "the deletion", async || match seen(&server).0 {
        services if services == ["one"] => Ok(()),
        services => Err(format!("{services:?}")),
    })
    .await;
    server.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_names_remote_clusters() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = cluster().await;
    create(&api_server, &web(&["10.4.0.1"])).await;
    let folder = tempfile::tempdir().unwrap();
    fs::copy(api_server.kubeconfig(), folder.path().join("east")).unwrap();
    let flag = format!("--clusterRegistriesDir={}", folder.path().display());
    let server = serve_with(api_server.kubeconfig(), None, &[], &[&flag]).await;
    let clusters = || {
        let world = server.pilot.world().now().snapshot.clone();
        let web = ServiceKey { hostname: "web.shop.svc.cluster.local".into(), namespace: "shop".into() };
        let mut found: Vec<String> = world.endpoints.of(&web).map(|endpoint| endpoint.cluster.to_string()).collect();
        found.sort();
        found
    };
    let until = async |expected: &[&str]| {
        wait::until_within(Duration::from_secs(60), "endpoints of the clusters", async || match clusters() {
            found if found == expected => Ok(()),
            found => Err(format!("{found:?}")),
        })
        .await;
    };
    until(&["Kubernetes", "east"]).await;
    fs::remove_file(folder.path().join("east")).unwrap();
    until(&["Kubernetes"]).await;
    server.stop(Duration::ZERO).await;
}
