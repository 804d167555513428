//! Objects change while the API server is down, and etcd is compacted: no resource set becomes empty, no change is lost,
//! nothing flaps.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::cluster::{cluster, create, is_left_out, made};
use crate::push_recorder::{CLUSTERS, HOSTS, PushRecorder};
use crate::serving::{CLUSTER, SLICE, endpoints, seconds, serve, web};

/// Duration of the outage; a minute is worth trying now and then.
const LENGTH: &str = "PILOTAGE_OUTAGE_SECONDS";

const SERVICES: &str = "/api/v1/namespaces/shop/services";
const RULES: &str = "/apis/networking.istio.io/v1/namespaces/shop/destinationrules";

#[tokio::test(flavor = "multi_thread")]
async fn changes_during_an_outage_arrive_and_nothing_is_emptied() {
    if is_left_out(&[]) {
        return;
    }
    let mut api_server = cluster().await;
    create(&api_server, &web(&["10.4.0.1", "10.4.0.2"])).await;
    create(&api_server, &[service("doomed")]).await;
    let proxy = api_server.faulty().await;
    let server = serve(proxy.kubeconfig(), None, &[]).await;
    let recorder = PushRecorder::of(server.addresses.grpc.unwrap(), &[CLUSTER]).await;
    recorder.until_addresses(CLUSTER, &["10.4.0.1", "10.4.0.2"]).await;
    let before = recorder.pushes();

    let second = api_server.second().await;
    api_server.stop();
    second.patch(SLICE, &endpoints(&["10.4.0.2"])).await.unwrap();
    second.patch(SLICE, &endpoints(&["10.4.0.2", "10.4.0.3"])).await.unwrap();
    second.delete(&format!("{SERVICES}/doomed")).await.unwrap();
    second.create(SERVICES, &service("late")).await.unwrap();
    made(&format!("{SERVICES}/late"));
    second.create(RULES, &rule()).await.unwrap();
    made(&format!("{RULES}/web"));
    let compacted = api_server.compact().await;
    // Long enough for every watch to notice and retry.
    let length = seconds(LENGTH, 3);
    tokio::time::sleep(length).await;
    let meanwhile = recorder.pushes() - before;
    assert_eq!(meanwhile, 0, "pushes while the API server is down");

    api_server.resume().await;
    let back = Instant::now();
    recorder.until_addresses(CLUSTER, &["10.4.0.2", "10.4.0.3"]).await;
    let has = |names: &std::collections::BTreeSet<String>, name: &str| names.iter().any(|n| n.contains(name));
    recorder
        .until(CLUSTERS, |names| has(names, "late.shop") && has(names, "|v1|web") && !has(names, "doomed.shop"))
        .await;
    recorder.until(HOSTS, |names| has(names, "late.shop") && !has(names, "doomed.shop")).await;
    let caught_up = back.elapsed();
    let (pushes, figures) = (recorder.pushes() - before, proxy.figures());
    println!(
        "API server gone for {length:?}, store compacted at revision {compacted}: 5 changes meanwhile, {meanwhile} \
         pushes meanwhile, {} watches expired; all changes pushed {caught_up:?} after it was back, in {pushes} pushes; \
         {} sets emptied, {} endpoints or names that went and came back",
        figures.expired,
        recorder.emptied().len(),
        recorder.flapped().len(),
    );
    recorder.assert_calm();
    assert!(figures.expired > 0, "no watch expired: {figures:?}");
    assert!(caught_up < Duration::from_secs(20), "late after {caught_up:?}");
    server.stop(Duration::ZERO).await;
}

fn service(name: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"ports": [{"name": "http", "port": 80}]}})
}

fn rule() -> serde_json::Value {
    json!({"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"host": "web", "subsets": [{"name": "v1", "labels": {"version": "v1"}}]}})
}
