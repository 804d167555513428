//! Log lines and debug page for an operator when the API server is down or denies access: one line per collection at the
//! start of the outage and one at its end, even if no object changes meanwhile.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::{client, wait};

use crate::cluster::{cluster, create, is_left_out, made};
use crate::serving::{CLUSTER, follow, web};

const PATIENCE: Duration = Duration::from_secs(60);
const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

async fn server(kubeconfig: &Path) -> DiscoveryProcess {
    let args = vec!["--registries=Kubernetes".to_owned(), format!("--kubeconfig={}", kubeconfig.display())];
    DiscoveryProcess::start(
        env!("CARGO_BIN_EXE_pilot-discovery"),
        DiscoveryOptions { args, ..DiscoveryOptions::default() },
    )
    .await
}

/// Waits until the debug page shows this state of the cluster.
async fn until_state(server: &DiscoveryProcess, state: &str) {
    wait::until_within(PATIENCE, state, async || {
        let page = client::get(server.monitoring(), "discovery", "/debug/sources").await?.json();
        let of_cluster = page.as_array().and_then(|all| all.iter().find(|one| one["source"] == "Kubernetes"));
        if of_cluster.is_some_and(|one| one["state"] == state) { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
}

/// Collections of the log lines with this text, sorted.
fn collections(output: &str, said: &str) -> Vec<String> {
    let lines = output.lines().filter(|line| line.contains(said));
    let named = |line: &str| line.split("collection=").nth(1)?.split_whitespace().next().map(str::to_owned);
    let mut found: Vec<String> =
        lines.map(|line| named(line).unwrap_or_else(|| panic!("no collection: {line}"))).collect();
    found.sort();
    found
}

/// Collections whose outage was logged.
fn lost(output: &str) -> Vec<String> {
    collections(output, "keeping known objects")
}

/// Waits until the log has the end of each outage that it has since a position, and returns its length then. A line may
/// follow the debug page that shows the same, because a separate thread writes the log.
async fn until_over(server: &mut DiscoveryProcess, from: usize) -> usize {
    wait::until_within(PATIENCE, "every outage to be over", async || {
        let output = server.process().output();
        let (begun, over) = (lost(&output[from..]), collections(&output[from..], "watched again"));
        if begun == over { Ok(output.len()) } else { Err(format!("{begun:?} began, {over:?} are over")) }
    })
    .await
}

fn assert_each_once(collections: &[String], output: &str) {
    let twice = collections.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone());
    let lines = |name: String| output.lines().filter(|line| line.contains(&name)).collect::<Vec<_>>().join("\n");
    assert!(twice.is_none(), "logged twice:\n{}", twice.map(lines).unwrap_or_default());
}

/// Log lines of the Kubernetes library, which contain status codes.
fn foreign(output: &str) -> Vec<&str> {
    // As a word: ports and fractions of a second may have these digits.
    let has_code = |line: &str| line.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == "403");
    output.lines().filter(|line| has_code(line) || line.contains("failed with")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_events_is_live_again_once_it_is_watched_again() {
    if is_left_out(&[]) {
        return;
    }
    let mut api_server = cluster().await;
    create(&api_server, &web(&["10.4.0.1"])).await;
    let mut server = server(api_server.kubeconfig()).await;
    until_state(&server, "live").await;
    // Kinds that were just defined cannot be watched for a moment.
    let start = until_over(&mut server, 0).await;
    api_server.stop();
    until_state(&server, "stale").await;
    wait::until_within(PATIENCE, "every watch to notice", async || {
        let output = server.process().output();
        if lost(&output[start..]).len() > 20 { Ok(()) } else { Err(output) }
    })
    .await;
    api_server.resume().await;
    until_state(&server, "live").await;
    let end = until_over(&mut server, start).await;
    let output = &server.process().output()[start..end];
    println!("{} collections were lost and seen again, {} lines in all", lost(output).len(), output.lines().count());
    assert_each_once(&lost(output), output);
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_watches_are_logged_once_and_start_when_allowed() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = cluster().await;
    create(&api_server, &web(&["10.4.0.1"])).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "poor"}});
    let accounts = "/api/v1/namespaces/shop/serviceaccounts";
    // May exist from a previous test.
    let _ = api_server.create(accounts, &account).await;
    let kubeconfig = api_server.account("shop", "poor").await;
    let mut server = server(&kubeconfig).await;
    let refused = |asked: &[(String, bool)]| asked.iter().filter(|(what, no)| *no && what.ends_with("v1/pods")).count();
    wait::until_within(PATIENCE, "several refusals", async || match refused(&api_server.requests_by("shop", "poor")) {
        0..4 => Err("only few".to_owned()),
        _ => Ok(()),
    })
    .await;
    let output = server.process().output();
    let not_watched = collections(&output, "not watched");
    assert!(not_watched.iter().any(|collection| collection == "Pod"), "{output}");
    assert_each_once(&not_watched, &output);
    assert_eq!(foreign(&output), [""; 0], "the library logs too");

    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "poor"}, "subjects": [{"kind": "ServiceAccount", "name": "poor", "namespace": "shop"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    api_server.create(BINDING, &binding).await.unwrap();
    made(&format!("{BINDING}/poor"));
    follow(server.grpc(), CLUSTER).await.until(&["10.4.0.1"]).await;
    wait::until_within(PATIENCE, "a log line at the end", async || {
        let output = server.process().output();
        let over = collections(&output, "watched again");
        if not_watched.iter().all(|one| over.contains(one)) { Ok(()) } else { Err(output) }
    })
    .await;
}
