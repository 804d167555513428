//! Registration by a real agent with its Envoy: without Kubernetes, and with two replicas and a real API server.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::backend::HttpBackend;
use testkit::forwarder::TcpForwarder;
use testkit::kubernetes::ApiServer;
use testkit::process::Process;
use testkit::{client, programs, servers, wait};

use crate::kubernetes::{cluster, replica_with, roots, token};
use crate::registration::{
    DEFINITIONS, ENTRY, GONE, GRACE, SOON, entry, mesh, objects, stored, until_endpoints, until_gone,
};

/// Where the agent's server is, and who the workload is.
struct AgentInput {
    discovery: SocketAddr,
    roots: String,
    token: String,
    account: &'static str,
    /// Port of the application, which is probed.
    probed: u16,
}

/// Starts an agent with an Envoy that registers with the group and probes a backend.
fn agent(folder: &Path, input: &AgentInput) -> Process {
    for (name, text) in [("tokens/istio-token", &input.token), ("istio/root-cert.pem", &input.roots)] {
        let path = folder.join("var/run/secrets").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let probe = json!({"periodSeconds": 1, "httpGet": {"host": "127.0.0.1", "port": input.probed, "path": "/"}});
    let config = json!({"discoveryAddress": input.discovery.to_string(), "readinessProbe": probe,
        "binaryPath": servers::binary("envoy"), "configPath": folder.join("proxy"),
        "proxyAdminPort": testkit::ports::free(), "concurrency": 1});
    let line = format!(
        "cd {} && exec {} proxy sidecar --ip 10.0.0.7 --id vm.shop --domain shop.svc.cluster.local \
         --statusPort 0",
        folder.display(),
        programs::binary("agent", "pilot-agent").display(),
    );
    let env = [
        ("PROXY_CONFIG", config.to_string()),
        ("POD_NAMESPACE", "shop".to_owned()),
        ("SERVICE_ACCOUNT", input.account.to_owned()),
        ("ECC_SIGNATURE_ALGORITHM", "ECDSA".to_owned()),
        ("ISTIO_META_AUTO_REGISTER_GROUP", "cart".to_owned()),
        ("ENVOY_STATUS_PORT", testkit::ports::free().to_string()),
        ("ENVOY_PROMETHEUS_PORT", testkit::ports::free().to_string()),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value));
    Process::start("pilot-agent", Path::new("/bin/sh"), &["-c".to_owned(), line], &env)
}

/// Waits until the agent's stream is there, and then until its entry is; returns the time between.
async fn until_registered(monitoring: SocketAddr, agent: &mut Process) -> Duration {
    wait::until_within(Duration::from_secs(60), "the stream of the agent", async || {
        agent.check_alive();
        let page = client::get(monitoring, "discovery", "/debug/connections").await?;
        if page.body.contains("vm.shop") { Ok(()) } else { Err(page.body) }
    })
    .await;
    let begun = Instant::now();
    wait::until("the entry", async || entry(monitoring).await.map(drop).ok_or("no entry".to_owned())).await;
    begun.elapsed()
}

/// Lets the next probe fail; returns the time from there until the workload is out of EDS.
async fn out_after_a_failed_probe(monitoring: SocketAddr, backend: &HttpBackend) -> Duration {
    backend.answer_with(503);
    let before = backend.requests();
    wait::until("a failed probe", async || {
        let probes = backend.requests() - before;
        if probes > 0 { Ok(()) } else { Err("no probe yet".to_owned()) }
    })
    .await;
    let out = until_endpoints(monitoring, 0).await;
    backend.answer_with(200);
    until_endpoints(monitoring, 1).await;
    out
}

#[tokio::test]
async fn an_agent_registers_its_workload_and_reports_its_health() {
    if servers::without("envoy") {
        return;
    }
    let mut mesh = mesh(&[GRACE, ("ISTIOD_CUSTOM_HOST", "127.0.0.1")]).await;
    let monitoring = mesh.server.monitoring();
    let backend = HttpBackend::start("app").await;
    let folder = tempfile::tempdir().unwrap();
    let input = AgentInput {
        discovery: mesh.secure,
        roots: mesh.roots().await,
        token: mesh.token("front"),
        account: "front",
        probed: backend.port(),
    };
    let mut process = agent(folder.path(), &input);
    let registered = until_registered(monitoring, &mut process).await;
    until_endpoints(monitoring, 1).await;
    let out = out_after_a_failed_probe(monitoring, &backend).await;
    // After a restart of the server the workload registers again.
    mesh.server.restart().await;
    until_endpoints(monitoring, 1).await;
    process.kill();
    let gone = until_gone(monitoring).await;
    eprintln!("registered after {registered:?}, out of EDS {out:?} after a failed probe, gone {gone:?} after a kill");
    assert!(registered <= SOON && out <= SOON, "registered after {registered:?}, out of EDS after {out:?}");
}

/// The entry once it is connected to this replica.
async fn until_at(api: &ApiServer, replica: &str) -> Value {
    wait::until_within(Duration::from_secs(60), &format!("the entry at replica {replica}"), async || {
        let entry = stored(api).await?;
        let annotations = &entry["metadata"]["annotations"];
        let is_there = annotations["istio.io/workloadController"] == replica;
        if is_there && annotations["istio.io/connectedAt"].is_string() { Ok(entry) } else { Err(entry.to_string()) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_an_agent_survives_a_restart_and_a_move_and_ends_after_the_grace() {
    if servers::without("envoy") {
        return;
    }
    let Some((api, account)) = cluster().await else { return };
    api.define(&DEFINITIONS).await;
    let [mut group, service] = objects();
    group["spec"]["template"]["serviceAccount"] = json!("keeper");
    let collection = |plural: &str| format!("/apis/networking.istio.io/v1/namespaces/shop/{plural}");
    api.create(&collection("workloadgroups"), &group).await.unwrap();
    api.create(&collection("serviceentries"), &service).await.unwrap();
    let host = [("ISTIOD_CUSTOM_HOST", "127.0.0.1")];
    let ((mut one, first), (two, second)) =
        tokio::join!(replica_with(&account, "one", &host, &[]), replica_with(&account, "two", &host, &[]));
    let link = TcpForwarder::start().await;
    link.forward_to(first);
    let backend = HttpBackend::start("app").await;
    let folder = tempfile::tempdir().unwrap();
    let input = AgentInput {
        discovery: link.address(),
        roots: roots(&api).await,
        token: token(&api, "keeper", Some("istio-ca")).await,
        account: "keeper",
        probed: backend.port(),
    };
    let mut process = agent(folder.path(), &input);
    let registered = until_registered(one.monitoring(), &mut process).await;
    let uid = until_at(&api, "one").await["metadata"]["uid"].clone();
    until_endpoints(one.monitoring(), 1).await;
    let out = out_after_a_failed_probe(one.monitoring(), &backend).await;
    // The same entry, for the other replica too, while its own restarts.
    one.restart().await;
    assert_eq!(stored(&api).await.unwrap()["metadata"]["uid"], uid, "after the restart");
    assert_eq!(until_at(&api, "one").await["metadata"]["uid"], uid, "after the agent is back");
    until_endpoints(two.monitoring(), 1).await;
    // The workload moves, and its old replica is gone for good.
    link.forward_to(second);
    one.process().kill();
    assert_eq!(until_at(&api, "two").await["metadata"]["uid"], uid, "after the move");
    until_endpoints(two.monitoring(), 1).await;
    process.kill();
    let begun = Instant::now();
    wait::until_within(Duration::from_secs(60), "the end of the entry", async || match api.get(ENTRY).await {
        Err(_) => Ok(()),
        Ok(entry) => Err(entry.to_string()),
    })
    .await;
    let gone = begun.elapsed();
    eprintln!("registered after {registered:?}, out of EDS {out:?} after a failed probe, gone {gone:?} after a kill");
    assert!(registered <= SOON && out <= SOON, "registered after {registered:?}, out of EDS after {out:?}");
    assert!(GONE.contains(&gone), "gone after {gone:?}");
}
