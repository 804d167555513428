//! Hostile kubeconfigs of remote clusters: commands that would run as the server, and files of the server that would be
//! sent to the author.

use std::fs;
use std::path::Path;

use api::TypeUrl;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::Response;
use serde_json::{Value, json};
use testkit::discovery::DiscoveryProcess;
use testkit::fake_api::{FakeApi, text};
use testkit::scripted::ScriptedServer;
use testkit::wait;

use crate::honest::{Honest, channel, fetch, server, until_problem};

const SETTING: &str = "PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS";
const WEB: &str = "outbound|80||web.shop.svc.cluster.local";
const TOKEN: &str = "token-of-the-service-account";

/// An API server with `web` at this address.
async fn web(address: &str) -> FakeApi {
    let api = FakeApi::start(|_| None).await;
    api.set(
        "services",
        vec![json!({"metadata": {"name": "web", "namespace": "shop"},
            "spec": {"clusterIP": "10.96.0.7", "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}})],
    );
    api.set(
        "endpointslices",
        vec![json!({"addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}}]})],
    );
    api
}

fn secret(name: &str, kubeconfigs: &[(&str, String)]) -> Value {
    let data = kubeconfigs.iter().map(|(cluster, text)| (cluster.to_string(), BASE64_STANDARD.encode(text).into()));
    json!({"metadata": {"name": name, "namespace": "istio-system", "labels": {"istio/multiCluster": "true"}},
        "data": Value::Object(data.collect())})
}

/// Users that would run `touch FILE`.
fn runs(file: &Path) -> [Value; 2] {
    let file = file.to_str().unwrap();
    let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [file],
        "interactiveMode": "Never"});
    let provider = json!({"name": "gcp", "config": {"cmd-path": "touch", "cmd-args": file}});
    [json!({"exec": exec}), json!({"auth-provider": provider})]
}

async fn until_endpoints(server: &DiscoveryProcess, addresses: &[&str]) {
    wait::until(&format!("endpoints {addresses:?}"), async || {
        let bytes = fetch(channel(server).await, &TypeUrl::ENDPOINT, &[WEB]).await?;
        let has = |address: &&&str| bytes.windows(address.len()).any(|window| window == address.as_bytes());
        let found: Vec<_> = addresses.iter().filter(has).collect();
        if found.len() == addresses.len() { Ok(()) } else { Err(format!("only {found:?}")) }
    })
    .await;
}

/// Detects a successful attack: a file that commands would create, a token that would be sent, and its receiver.
struct AttackProbe {
    folder: tempfile::TempDir,
    collector: ScriptedServer,
    registries: tempfile::TempDir,
    primary: FakeApi,
}

impl AttackProbe {
    async fn set(east: &FakeApi) -> AttackProbe {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), TOKEN).unwrap();
        let collector = ScriptedServer::start(async |_| Response::new(String::new())).await;
        let probe =
            AttackProbe { folder, collector, registries: tempfile::tempdir().unwrap(), primary: web("10.4.0.1").await };
        let [exec, provider] = runs(&probe.folder.path().join("ran-from-secret"));
        let [exec_of_file, _] = runs(&probe.folder.path().join("ran-from-file"));
        let url = probe.collector.url();
        let sends = json!({"tokenFile": probe.folder.path().join("token")});
        probe.primary.set(
            "secrets",
            vec![
                secret("good", &[("east", text(&east.url(), &json!({"token": "of-east"})))]),
                secret(
                    "evil",
                    &[("runs", text(&url, &exec)), ("gcp", text(&url, &provider)), ("sends", text(&url, &sends))],
                ),
            ],
        );
        fs::write(probe.registries.path().join("filed"), text(&url, &exec_of_file)).unwrap();
        probe
    }

    async fn server(&self, env: &[(&str, &str)]) -> DiscoveryProcess {
        let kubeconfig = format!("--kubeconfig={}", self.primary.kubeconfig().display());
        let registries = format!("--clusterRegistriesDir={}", self.registries.path().display());
        let env = [&[("PILOT_REMOTE_CLUSTER_TIMEOUT", "1s")], env].concat();
        server(&["--registries=Kubernetes", &kubeconfig, &registries], &env).await
    }

    fn has_run(&self, name: &str) -> bool {
        self.folder.path().join(name).exists()
    }

    /// Whether the token was sent.
    fn was_sent(&self) -> bool {
        let asked = self.collector.requests();
        asked.iter().any(|asked| asked.headers.get("authorization").is_some_and(|v| *v == *format!("Bearer {TOKEN}")))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_01_kubeconfigs_run_nothing_and_send_no_file() {
    let east = web("10.5.0.1").await;
    let probe = AttackProbe::set(&east).await;
    let server = probe.server(&[]).await;
    let honest = Honest::start(&server).await;
    let place = "Secret istio-system/evil, key ";
    for (key, field, option) in [
        ("runs", "users[0].user.exec", "exec"),
        ("gcp", "user.auth-provider", "gcp"),
        ("sends", "tokenFile", "tokenFile"),
    ] {
        until_problem(&server, &[&format!("{place}{key}"), field, &format!("{SETTING}={option}")]).await;
    }
    until_problem(&server, &["/filed", "users[0].user.exec"]).await;
    until_endpoints(&server, &["10.4.0.1", "10.5.0.1"]).await;

    // Replacing a good kubeconfig by a rejected one removes nothing.
    let [exec, _] = runs(&probe.folder.path().join("ran-from-secret"));
    probe.primary.set("secrets", vec![secret("good", &[("east", text(&probe.collector.url(), &exec))])]);
    probe.primary.expire_watches();
    until_problem(&server, &["Secret istio-system/good, key east", "exec", "keeping its last credentials"]).await;
    until_endpoints(&server, &["10.4.0.1", "10.5.0.1"]).await;
    honest.assert_served("hostile kubeconfigs").await;
    assert!(!probe.has_run("ran-from-secret") && !probe.has_run("ran-from-file"), "a command was run");
    assert_eq!(probe.collector.requests().len(), 0, "the author's server was asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_01_kubeconfigs_run_commands_that_the_operator_allows() {
    let east = web("10.5.0.1").await;
    let probe = AttackProbe::set(&east).await;
    let server = probe.server(&[(SETTING, "exec,tokenFile")]).await;
    wait::until("commands and a token that are allowed", async || {
        let seen = (probe.has_run("ran-from-secret"), probe.has_run("ran-from-file"), probe.was_sent());
        if seen == (true, true, true) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    until_problem(&server, &["Secret istio-system/evil, key gcp", &format!("{SETTING}=gcp")]).await;
}
