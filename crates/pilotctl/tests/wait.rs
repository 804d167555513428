//! `pilotctl wait` returns when the last proxy has the objects, never before, with real server and simulated Envoys that
//! take a random time to answer.

// Clippy recognizes tests by their attribute, but not the helper functions.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::TypeUrl;
use http::Request;
use serde_json::Value;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::tracked::{TrackedOptions, TrackedProxy};
use testkit::{client, programs, wait};
use tokio::task::JoinSet;

const LANES: usize = 8;
const PROXIES: usize = 4;

fn service(lane: usize) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{lane}, namespace: shop}}\nspec: {{hosts: \
         [s{lane}.example.com], addresses: [10.96.0.{lane}], ports: [{{number: 80{lane:02}, name: http, protocol: HTTP}}], \
         resolution: STATIC, endpoints: [{{address: 10.0.0.{lane}}}]}}\n---\n"
    )
}

fn route(lane: usize, trial: usize) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: v{lane}, namespace: shop}}\nspec: {{hosts: \
         [s{lane}.example.com], http: [{{name: trial-{lane}-{trial}-, route: [{{destination: {{host: s{lane}.example.com}}}}]}}]}}\n"
    )
}

async fn start(rejects: Option<&str>) -> (Arc<DiscoveryProcess>, Arc<Vec<TrackedProxy>>) {
    let files = vec![("services.yaml".to_owned(), (1..=LANES).map(service).collect())];
    let binary = programs::binary("discovery", "pilot-discovery");
    let server =
        DiscoveryProcess::start(&binary.to_string_lossy(), DiscoveryOptions { files, ..DiscoveryOptions::default() })
            .await;
    let proxies: Vec<TrackedProxy> = (0..PROXIES)
        .map(|number| TrackedOptions {
            node: format!("sidecar~10.1.0.{number}~p{number}.shop~shop.svc.cluster.local"),
            delay: 0..60,
            rejects: rejects.filter(|_| number == 0).map(str::to_owned),
            ..TrackedOptions::default()
        })
        .map(|options| TrackedProxy::connect(server.grpc(), options))
        .collect();
    wait::until("proxies with routes", async || {
        let is_ready = |proxy: &TrackedProxy| proxy.contains(&TypeUrl::ROUTE, "s1.example.com");
        if proxies.iter().all(is_ready) { Ok(()) } else { Err("not all have routes".to_owned()) }
    })
    .await;
    (Arc::new(server), Arc::new(proxies))
}

/// Asks until the server says that all proxies have it.
async fn waited(server: &DiscoveryProcess, text: &str, delete: &str) -> Value {
    let begun = Instant::now();
    loop {
        let path = format!("/api/v1/wait?timeout=10{delete}");
        let request = Request::post(path).header("host", "localhost").body(text.to_owned()).unwrap();
        let reply = client::send(server.monitoring(), request).await.unwrap_or_else(|e| panic!("{e}"));
        let report = reply.json();
        if report["state"] != "waiting" {
            return report;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{report}");
    }
}

/// Writes a file atomically, next to other lanes.
fn write(server: &DiscoveryProcess, name: &str, text: &str) {
    let part = server.config().with_file_name(format!("part-{name}"));
    std::fs::write(&part, text).unwrap();
    std::fs::rename(part, server.config().join(name)).unwrap();
}

/// Runs trials in lanes at once; returns how long after the last proxy each wait ended.
async fn trials(count: usize) -> Vec<Duration> {
    let (server, proxies) = start(None).await;
    let mut lanes = JoinSet::new();
    for lane in 1..=LANES {
        let (server, proxies) = (server.clone(), proxies.clone());
        lanes.spawn(async move {
            let mut late = Vec::new();
            for trial in 0..count / LANES {
                let (file, text) = (format!("v{lane}.yaml"), route(lane, trial));
                let marker = format!("trial-{lane}-{trial}-");
                write(&server, &file, &text);
                let seen = tokio::spawn(first_with(proxies.clone(), marker.clone(), true));
                let report = waited(&server, &text, "").await;
                let returned = Instant::now();
                assert_eq!(report["state"], "done", "{report}");
                let missing: Vec<usize> =
                    (0..PROXIES).filter(|of| !proxies[*of].contains(&TypeUrl::ROUTE, &marker)).collect();
                assert!(missing.is_empty(), "lane {lane}, trial {trial}: proxies {missing:?} do not have it: {report}");
                late.push(returned.saturating_duration_since(seen.await.unwrap()));
                if trial % 5 == 4 {
                    server.remove(&file);
                    let report = waited(&server, &text, "&delete").await;
                    assert_eq!(report["state"], "done", "{report}");
                    let left = (0..PROXIES).filter(|of| proxies[*of].contains(&TypeUrl::ROUTE, &marker)).count();
                    assert_eq!(left, 0, "lane {lane}, trial {trial}: a deleted route is left");
                }
            }
            late
        });
    }
    let mut late = lanes.join_all().await.concat();
    late.sort();
    late
}

/// When all proxies first have, or no longer have, a text in their routes.
async fn first_with(proxies: Arc<Vec<TrackedProxy>>, marker: String, wanted: bool) -> Instant {
    loop {
        if proxies.iter().all(|proxy| proxy.contains(&TypeUrl::ROUTE, &marker) == wanted) {
            return Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn report(late: &[Duration]) {
    let at = |share: usize| late[(late.len() - 1) * share / 100];
    println!("{} trials: late by median {:?}, p99 {:?}, most {:?}", late.len(), at(50), at(99), at(100));
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_never_ends_before_the_last_proxy_has_it() {
    let late = trials(80).await;
    report(&late);
    // A busy machine delays single trials.
    assert!(late[late.len() / 2] < Duration::from_millis(1000), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute; the short form runs always"]
async fn waiting_a_thousand_times() {
    let late = trials(1000).await;
    report(&late);
    // The tail is that of lanes that change the mesh all the time: a proxy counts when nothing is under way to it.
    assert!(late[late.len() / 2] < Duration::from_millis(200), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejections_and_missing_objects_end_the_wait() {
    let (server, _proxies) = start(Some("trial-1-7-")).await;
    let folder = tempfile::tempdir().unwrap();
    // Blocks one thread; the proxies answer on others.
    let run = |arguments: &[&str], text: &str| {
        let file = folder.path().join("v.yaml");
        std::fs::write(&file, text).unwrap();
        let address = server.monitoring().to_string();
        let output = Command::new(env!("CARGO_BIN_EXE_pilotctl"))
            .args(["wait", "-f", &file.to_string_lossy(), "--server", &address])
            .args(arguments)
            .output()
            .unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code(), text)
    };
    server.write("v1.yaml", &route(1, 1));
    let (code, text) = run(&[], &route(1, 1));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("4 proxies have it"), "{text}");
    server.write("v1.yaml", &route(1, 7));
    let (code, text) = run(&[], &route(1, 7));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("rejected") && text.contains("p0.shop"), "{text}");
    let (code, text) = run(&["--timeout", "1s"], &route(2, 1));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("VirtualService shop/v2 is not there yet"), "{text}");
    let (code, text) = run(&[], "kind: [");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("could not parse"), "{text}");
}
