//! The real istioctl against the real server: through an API server and a kubelet, as in a cluster. Every command runs against
//! istiod too, in a mesh that is the same otherwise, and prints the same but for names and times (`compare`). Without an
//! istiod on this machine its recorded output is what ours must equal.

// Clippy recognizes tests by their attribute, but not the helper functions.
#![allow(clippy::unwrap_used)]

mod compare;
mod kiali;
mod mesh;

use std::time::Duration;

use mesh::{CONTROL_PLANE, Mesh, Peer, WebPorts, is_left_out};
use serde_json::Value;
use testkit::istioctl::IstioctlRun;
use testkit::servers;

/// Time for one command. Without an answer istioctl waits for 30 seconds. A program without optimization on a machine that
/// builds and tests other things needs more; `compare` measures it against istiod then.
const LONGEST: Duration = Duration::from_secs(if cfg!(debug_assertions) { 4 } else { 2 });

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn istioctl_works() {
    if is_left_out() {
        return;
    }
    let ports = WebPorts::free();
    let mut mesh = Mesh::start(Peer::Ours, ports).await;
    kiali::proxies_are_in_sync(&mesh).await;
    status(&mesh).await;
    debug_pages(&mesh).await;
    proxy_config(&mesh).await;
    describe(&mesh).await;
    log_levels(&mesh).await;
    bug_report(&mesh).await;
    let mut ours = compare::outputs(&mesh).await;
    mesh.restart().await;
    kiali::proxies_are_in_sync(&mesh).await;
    status(&mesh).await;
    ours.extend(compare::outputs_after_restart(&mesh).await);
    drop(mesh);
    if servers::has("istiod") {
        let mut mesh = Mesh::start(Peer::Istiod, ports).await;
        let mut istiod = compare::outputs(&mesh).await;
        mesh.restart().await;
        istiod.extend(compare::outputs_after_restart(&mesh).await);
        compare::record(&istiod);
        compare::none_is_slower(&ours, &istiod);
        compare::same_tables(&ours, &istiod);
    } else {
        compare::same_tables(&ours, &compare::recorded());
    }
}

/// Runs a command that must succeed in time.
async fn run(mesh: &Mesh, line: &str) -> IstioctlRun {
    let run = mesh.istioctl.run(line).await;
    eprintln!("istioctl {line}: {:?}", run.took);
    assert!(run.took < LONGEST, "istioctl {line} took {:?}", run.took);
    run.expect();
    run
}

/// The first cell of each row, without the header.
fn names(run: &IstioctlRun) -> Vec<String> {
    run.table().into_iter().skip(1).filter_map(|row| row.into_iter().next()).collect()
}

async fn status(mesh: &Mesh) {
    let version = run(mesh, "version").await;
    let expected =
        format!("control plane version: {}\ndata plane version: 1.29.6 (1 proxies)", env!("CARGO_PKG_VERSION"));
    assert!(version.stdout.contains(&expected), "{}", version.stdout);

    let list = run(mesh, "ps").await.table();
    let expected = [
        vec!["NAME", "CLUSTER", "ISTIOD", "VERSION", "SUBSCRIBED TYPES"],
        vec!["web.shop", "Kubernetes", CONTROL_PLANE, "1.29.6", "4 (CDS,LDS,EDS,RDS)"],
    ];
    assert_eq!(list, expected);

    let states = run(mesh, "ps -v 1").await.table();
    assert_eq!(states[0], ["NAME", "CLUSTER", "CDS", "ECDS", "EDS", "LDS", "RDS", "ISTIOD", "VERSION"]);
    let without_age = |cell: &String| cell.split(" (").next().unwrap_or_default().to_owned();
    let states: Vec<String> = states[1].iter().map(without_age).collect();
    let synced = "SYNCED";
    let expected = ["web.shop", "Kubernetes", synced, "IGNORED", synced, synced, synced, CONTROL_PLANE, "1.29.6"];
    assert_eq!(states, expected);

    let compared = run(mesh, "ps web.shop").await.stdout;
    for part in ["Clusters", "Listeners", "Routes"] {
        assert!(compared.lines().any(|line| line.starts_with(&format!("{part} Match"))), "{compared}");
    }

    let clusters = run(mesh, "remote-clusters").await.table();
    assert_eq!(clusters[0], ["NAME", "SECRET", "STATUS", "ISTIOD", "REVISION"]);
    assert_eq!(clusters[1], ["Kubernetes", "synced", CONTROL_PLANE, "default"]);
}

async fn debug_pages(mesh: &Mesh) {
    let page = async |line: &str| -> Value { serde_json::from_str(&run(mesh, line).await.stdout).unwrap() };
    let syncz = page("x internal-debug syncz").await;
    assert_eq!((&syncz[0]["proxy"], &syncz[0]["cluster_sent"]), (&"web.shop".into(), &syncz[0]["cluster_acked"]));
    let list = page("x internal-debug --list").await;
    assert!(list.as_array().is_some_and(|pages| pages.contains(&"registryz".into())), "{list}");
    let services = page("x internal-debug registryz").await;
    let is_web = |service: &Value| service["hostname"] == "web.shop.svc.cluster.local";
    assert!(services.as_array().is_some_and(|services| services.iter().any(is_web)), "{services}");
    let dump = page("x internal-debug config_dump?proxyID=web.shop").await;
    assert_eq!(dump["configs"].as_array().map(Vec::len), Some(7));
    let unknown = run(mesh, "x internal-debug nothingz").await.stdout;
    assert!(unknown.starts_with("error: according to below command list") && unknown.contains("syncz"), "{unknown}");
}

async fn proxy_config(mesh: &Mesh) {
    let clusters = run(mesh, "pc cluster web.shop").await;
    assert_eq!(clusters.table()[0][..3], ["SERVICE FQDN", "PORT", "SUBSET"]);
    assert!(names(&clusters).contains(&"web.shop.svc.cluster.local".to_owned()), "{}", clusters.stdout);
    let listeners = run(mesh, "pc listener web.shop").await;
    assert!(
        listeners.stdout.contains("Cluster: inbound|") && listeners.stdout.contains("Route: "),
        "{}",
        listeners.stdout
    );
    let routes = run(mesh, "pc route web.shop").await;
    assert!(routes.stdout.lines().any(|line| line.contains("/*") && line.ends_with("web.shop")), "{}", routes.stdout);
    for line in ["pc endpoint web.shop", "pc eds web.shop"] {
        let endpoints = run(mesh, line).await;
        assert!(names(&endpoints).contains(&"10.1.0.1:8080".to_owned()), "{}", endpoints.stdout);
    }
    let bootstrap = run(mesh, "pc bootstrap web.shop -o json").await.stdout;
    assert!(bootstrap.contains("sidecar~10.1.0.1~web.shop~shop.svc.cluster.local"), "{bootstrap}");
    assert_eq!(names(&run(mesh, "pc secret web.shop").await), ["default", "ROOTCA"]);
    let all = run(mesh, "pc all web.shop").await.stdout;
    assert!(all.contains("cluster/BlackHoleCluster") && all.contains("Envoy Version: 1."), "{all}");
    assert!(run(mesh, "pc log web.shop").await.stdout.contains("active loggers:"));
    // A proxy without extensions has no such section; istioctl says so.
    let extensions = mesh.istioctl.run("pc ecds web.shop").await;
    assert!(extensions.stderr.contains("config dump has no configuration type"), "{extensions:?}");
}

async fn describe(mesh: &Mesh) {
    let pod = run(mesh, "x describe pod web.shop").await.stdout;
    for line in
        ["Pod: web.shop", "Service: web.shop", "DestinationRule: web.shop for \"web\"", "VirtualService: web.shop"]
    {
        assert!(pod.lines().any(|found| found == line), "no {line} in\n{pod}");
    }
    let service = run(mesh, "x describe svc web.shop").await.stdout;
    assert!(service.lines().any(|line| line == "Service: web.shop"), "{service}");
}

async fn log_levels(mesh: &Mesh) {
    let level = async || {
        let levels = run(mesh, "admin log").await.table();
        assert_eq!(levels[0], ["ACTIVE SCOPE", "DESCRIPTION", "LOG LEVEL", "STACK TRACE LEVEL"]);
        levels.into_iter().find(|row| row[0] == "ads").map(|row| row[2].clone())
    };
    run(mesh, "admin log --level ads:debug").await;
    assert_eq!(level().await.as_deref(), Some("debug"));
    run(mesh, "admin log --reset").await;
    assert_eq!(level().await.as_deref(), Some("info"));
}

async fn bug_report(mesh: &Mesh) {
    let report = run(mesh, "bug-report --istio-namespace istio-system --dir parts --output-dir .").await;
    assert!(!report.stdout.contains("unable to"), "{}", report.stdout);
    let archive = mesh.istioctl.folder().join("bug-report.tar.gz");
    let listed = std::process::Command::new("tar").arg("tzf").arg(&archive).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for file in ["debug/syncz", "debug/registryz", "debug/configz", "proxies/shop/web/config_dump?include_eds"] {
        assert!(listed.lines().any(|line| line.ends_with(file)), "no {file} in\n{listed}");
    }
}
