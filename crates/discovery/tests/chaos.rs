//! The promises of the control plane under faults, proven from recorded histories; and one planted bug per promise, which
//! the checker must find. `cargo xtask chaos` runs the same for longer.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use testkit::chaos::{self, ChaosLength, ChaosOptions};
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::envoy::XdsTransport;
use testkit::promises::content::Marker;
use testkit::promises::proxy::{ProxyOptions, ProxyTarget, RecordedProxy};
use testkit::promises::{Event, History, Planted, Promise, check, real};
use testkit::{client, wait};
use tokio::sync::watch;

const BINARY: &str = env!("CARGO_BIN_EXE_pilot-discovery");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_are_kept_under_each_fault() {
    let options = ChaosOptions { seed: 20, length: ChaosLength::EachOnce };
    let report = chaos::run(Path::new(BINARY), options).await;
    println!("{report}");
    report.kept().unwrap_or_else(|broken| panic!("{broken}"));
}

const CLUSTER: &str = "outbound|80||cart.shop.svc.cluster.local";

fn address(number: usize) -> String {
    format!("10.0.{}.{}", number / 250, number % 250 + 1)
}

fn cart(address: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: cart, namespace: shop}}\nspec:\n  \
         hosts: [cart.shop.svc.cluster.local]\n  addresses: [10.96.0.1]\n  location: MESH_INTERNAL\n  \
         resolution: STATIC\n  ports: [{{name: http, number: 80, protocol: HTTP}}]\n  endpoints: [{{address: {address}}}]\n"
    )
}

/// A run of a real server with one proxy whose record has this bug; returns the broken promises. The server has endpoint
/// `first` and gets the three after it.
async fn broken_with(
    server: &DiscoveryProcess,
    planted: Option<Promise>,
    transport: XdsTransport,
    first: usize,
) -> BTreeSet<Promise> {
    let history = History::new(vec![Marker { bytes: b"of-no-one".to_vec(), allowed: BTreeSet::new() }]);
    let mut options = ProxyOptions::sidecar("planted", 1, transport);
    options.planted = planted.map(Planted::new);
    let (_target, targets) = watch::channel(ProxyTarget { address: server.grpc(), replica: 0 });
    let id = real::page_name(&options.node.id).to_owned();
    let input = |address: &str, begun: Duration| {
        let (source, service, endpoints) = ("files".into(), CLUSTER.into(), [address.to_owned()].into());
        history.record(Event::Input { source, service, endpoints, begun });
    };
    input(&address(first), Duration::ZERO);
    let proxy = RecordedProxy::start(&history, options, targets);
    for number in first..=first + 3 {
        let address = address(number);
        if number > first {
            let begun = history.now();
            server.write("cart.yaml", &cart(&address));
            input(&address, begun);
        }
        wait::until("the endpoint", async || {
            let now = proxy.endpoints(CLUSTER);
            if now.contains(&address) { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .await;
    }
    let page = client::get(server.http(), "localhost", "/debug/syncz").await.expect("the server is up").json();
    for (_, nonces) in real::reported(&page).into_iter().filter(|(known, _)| *known == id) {
        for (url, sent, acked) in nonces {
            let Some(kind) = testkit::promises::content::ResourceKind::of(&url) else { continue };
            history.record(Event::Reported { proxy: "planted".into(), kind, sent, acked });
        }
    }
    history.record(Event::Expected { proxy: "planted".into(), held: proxy.held() });
    let checked = check(&history.events(), history.markers(), Duration::from_secs(60));
    checked.violations.into_iter().map(|violation| violation.promise).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_bugs_are_found() {
    let files = vec![("cart.yaml".to_owned(), cart(&address(0)))];
    let server = DiscoveryProcess::start(BINARY, DiscoveryOptions { files, ..DiscoveryOptions::default() }).await;
    let mut first = 0;
    for transport in [XdsTransport::Delta, XdsTransport::Sotw] {
        for planted in std::iter::once(None).chain(Promise::ALL.map(Some)) {
            let broken = broken_with(&server, planted, transport, first).await;
            first += 3;
            match planted {
                Some(promise) => {
                    assert!(broken.contains(&promise), "{transport:?}: {promise} is broken, found {broken:?}")
                }
                None => assert_eq!(broken, BTreeSet::new(), "{transport:?} without a bug"),
            }
        }
    }
}

/// docs/robustness.md says for each of the 39 faults how it is injected, or why not.
#[test]
fn the_table_of_faults_is_complete_and_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/robustness.md")).expect("the page");
    let (_, table) = page.split_once("\n## Faults\n").expect("the section");
    let rows: Vec<(&str, &str)> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "))
        .filter(|(fault, _)| *fault != "fault")
        .collect();
    let id = |row: &(&str, &str)| row.0.split(' ').next().unwrap_or_default().to_owned();
    let expected = [('A', 14), ('B', 8), ('C', 9), ('D', 8)];
    let expected: Vec<String> =
        expected.iter().flat_map(|(group, count)| (1..=*count).map(move |number| format!("{group}{number}"))).collect();
    assert_eq!(rows.iter().map(id).collect::<Vec<_>>(), expected);
    for fault in chaos::Fault::ALL {
        for number in fault.describe().0.split(", ") {
            let row = rows.iter().find(|row| id(row) == number);
            assert!(row.is_some_and(|row| row.1.contains("nemesis")), "{fault:?} of {number} is not in the table");
        }
    }
    let names = rows.iter().flat_map(|(_, how)| how.split('`').skip(1).step_by(2));
    let tests: BTreeSet<&str> = names.filter(|name| name.contains('_') && !name.contains(['/', '.', ' '])).collect();
    assert!(tests.len() > 20, "{tests:?}");
    assert_eq!(missing_tests(&root.join("crates"), tests), BTreeSet::new());
}

/// Names of functions that are in no source below this folder.
fn missing_tests<'a>(folder: &Path, mut names: BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            names = missing_tests(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            names.retain(|name| !text.contains(&format!("fn {name}(")));
        }
    }
    names
}
