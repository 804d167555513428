//! Typical mistakes in a file of a running mesh, one after the other. Each is named by `pilotctl check` and in the log,
//! with the file and the line of the value. Meanwhile the rules of other files apply to traffic through a real Envoy,
//! and where the document is not usable any longer, its last good version does too.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use serde_json::json;
use testkit::backend::HttpBackend;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::{client, ports, programs, wait};

const RULE: &str = "apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: cart
  namespace: shop
spec:
  hosts: [cart.shop.svc.cluster.local]
  http:
  - route:
    - destination:
        host: cart.shop.svc.cluster.local
    headers: {response: {add: {x-rule: cart}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: cart, namespace: shop}
spec:
  host: cart.shop.svc.cluster.local
  subsets: [{name: stable}]
";

/// What is written in place of a part of the rule, and what is reported about it.
struct Mistake {
    good: &'static str,
    bad: &'static str,
    /// The line of the bad text that is named, counted from its first line.
    line: usize,
    code: &'static str,
    phrase: &'static str,
    /// Whether the last good version of the rule is served.
    keeps: bool,
}

const fn mistake(
    good: &'static str,
    bad: &'static str,
    line: usize,
    code: &'static str,
    phrase: &'static str,
    keeps: bool,
) -> Mistake {
    Mistake { good, bad, line, code, phrase, keeps }
}

const ROUTE: &str = "        host: cart.shop.svc.cluster.local\n";

const MISTAKES: &[Mistake] = &[
    mistake("kind: VirtualService", "kind: VirtualServce", 0, "PIL0103", "did you mean kind \"VirtualService\"?", true),
    mistake(
        "apiVersion: networking.istio.io/v1\nkind: V",
        "apiVersion: networking.istio.oi/v1\nkind: V",
        0,
        "PIL0103",
        "did you mean apiVersion \"networking.istio.io/v1\"?",
        true,
    ),
    mistake("kind: VirtualService", "knid: VirtualService", 0, "PIL0102", "did you mean \"kind\" by \"knid\"?", true),
    mistake("metadata:\n", "metdata:\n", 0, "PIL0113", "did you mean \"metadata\"?", true),
    mistake("  name: cart\n", "  nmae: cart\n", 0, "PIL0113", "did you mean \"name\"?", true),
    mistake("  namespace: shop\n", "  namespce: shop\n", 0, "PIL0113", "did you mean \"namespace\"?", true),
    mistake("spec:\n  hosts", "sepc:\n  hosts", 0, "PIL0104", "did you mean \"spec\"?", true),
    mistake("  hosts:", "  host:", 0, "PIL0104", "\"spec.host\"; did you mean \"hosts\"?", false),
    mistake("    headers:", "    haeders:", 0, "PIL0104", "did you mean \"headers\"?", false),
    mistake("    headers:", "  headers:", 0, "PIL0104", "it belongs below http: check the indentation", false),
    mistake("  http:\n", "  http:\n  http:\n", 1, "PIL0101", "duplicate key \"http\"", true),
    mistake("  hosts: [cart", "  hosts: cart", 0, "PIL0105", "could not read spec.hosts: expected a list", true),
    mistake("  - route:", "  - timeout: 5\n    route:", 0, "PIL0105", "expected a duration such as 1m30s", true),
    mistake(ROUTE, "        host: 1.10\n", 0, "PIL0105", "text needs quotes", true),
    mistake(
        ROUTE,
        "        host: cart.shop.svc.cluster.local\n      weight: heavy\n",
        1,
        "PIL0105",
        "expected a 32-bit integer, found \"heavy\"",
        true,
    ),
    mistake(
        ROUTE,
        "        host: cart.shop.svc.cluster.local\n        port: {number: 70000}\n",
        1,
        "PIL0106",
        "port",
        true,
    ),
    mistake(
        ROUTE,
        "        host: crat.shop.svc.cluster.local\n",
        0,
        "IST0101",
        "Did you mean \"cart.shop.svc.cluster.local\"?",
        false,
    ),
    mistake(
        ROUTE,
        "        host: cart.shop.svc.cluster.local\n        port:\n          number: 81\n",
        2,
        "IST0101",
        "Referenced host:port not found",
        false,
    ),
    mistake(
        ROUTE,
        "        host: cart.shop.svc.cluster.local\n        subset: stabel\n",
        1,
        "IST0101",
        "did you mean \"stable\"?",
        false,
    ),
    mistake(
        "  http:\n",
        "  gateways: [edge]\n  http:\n",
        0,
        "IST0101",
        "Referenced gateway not found: \"edge\"",
        false,
    ),
    mistake(
        "metadata: {name: cart, namespace: shop}\nspec:\n  host: cart.shop.svc.cluster.local",
        "metadata: {name: cart, namespace: shpo}\nspec:\n  host: cart",
        2,
        "IST0174",
        "The host cart defined in the DestinationRule does not match any services",
        false,
    ),
    mistake(
        "---\n",
        "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: more, namespace: shop}\nspec:\n  \
         hosts: [cart.shop.svc.cluster.local]\n  http: [{directResponse: {status: 418}}]\n---\n",
        5,
        "IST0109",
        "define the same host",
        true,
    ),
    mistake(
        "---\n",
        "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: cart, namespace: shop}\nspec:\n  \
         hosts: [other.example]\n  http: [{directResponse: {status: 418}}]\n---\n",
        1,
        "PIL0108",
        "the object is also defined at",
        true,
    ),
    mistake(
        "  subsets: [{name: stable}]",
        "  trafficPolicy:\n    tls: {mode: DISABLED}",
        1,
        "PIL0105",
        "expected one of DISABLE, SIMPLE, MUTUAL, ISTIO_MUTUAL",
        true,
    ),
];

struct Mesh {
    server: DiscoveryProcess,
    _envoy: Envoy,
    address: SocketAddr,
}

impl Mesh {
    async fn start(backend: &HttpBackend) -> Mesh {
        let port = ports::free();
        let service = |name: &str| {
            format!(
                "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: shop}}\n\
                 spec:\n  hosts: [{name}.shop.svc.cluster.local]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
                 ports: [{{name: http, number: {port}, protocol: HTTP}}]\n  \
                 endpoints: [{{address: 127.0.0.1, ports: {{http: {}}}}}]\n---\n",
                backend.port()
            )
        };
        let catalog = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: catalog, namespace: shop}\n\
                       spec:\n  hosts: [catalog.shop.svc.cluster.local]\n  http:\n  - route: [{destination: {host: \
                       catalog.shop.svc.cluster.local}}]\n    headers: {response: {add: {x-rule: catalog}}}\n";
        let good = format!("{}{}{catalog}", service("cart"), service("catalog"));
        let options = DiscoveryOptions {
            files: vec![("good.yaml".to_owned(), good), ("mine.yaml".to_owned(), RULE.to_owned())],
            mesh: "enableAutoMtls: false\n".to_owned(),
            ..DiscoveryOptions::default()
        };
        let binary = programs::binary("discovery", "pilot-discovery");
        let server = DiscoveryProcess::start(&binary.to_string_lossy(), options).await;
        let labels = json!({"app": "client"});
        let bootstrap = Bootstrap::sidecar(server.grpc().port(), XdsTransport::Sotw, "client", "outside", labels);
        let mut envoy = Envoy::start(&bootstrap).await;
        envoy.ready().await;
        Mesh { server, _envoy: envoy, address: (Ipv4Addr::LOCALHOST, port).into() }
    }

    /// Exit status and output of `pilotctl check`.
    fn check(&self) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pilotctl"));
        let output = command.args(["check", "--server", &self.server.http().to_string()]).output().expect("pilotctl");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Whether the rule of this service applies to requests.
    async fn applies(&self, service: &str) -> Result<(), String> {
        let reply = client::get(self.address, &format!("{service}.shop.svc.cluster.local"), "/").await?;
        if reply.header("x-rule") == service { Ok(()) } else { Err(format!("{service}: {reply:?}")) }
    }

    async fn until_good(&self) {
        wait::until("no problems", async || match self.check() {
            (Some(0), _) => self.applies("cart").await,
            (status, text) => Err(format!("{status:?} {text}")),
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn typical_mistakes_are_named_with_file_and_line_and_other_rules_apply() {
    let backend = HttpBackend::start("v1").await;
    let mesh = Mesh::start(&backend).await;
    mesh.until_good().await;
    mesh.applies("catalog").await.expect("the other rule applies");
    for mistake in MISTAKES {
        let at = RULE.find(mistake.good).unwrap_or_else(|| panic!("no {:?} in the rule", mistake.good));
        let text = format!("{}{}{}", &RULE[..at], mistake.bad, &RULE[at + mistake.good.len()..]);
        let line = 1 + RULE[..at].matches('\n').count() + mistake.line;
        mesh.server.write("mine.yaml", &text);
        let place = format!("{}:{line}: ", mesh.server.config().join("mine.yaml").display());
        let found = wait::until(&format!("{:?} to be named", mistake.bad), async || {
            let (status, text) = mesh.check();
            let code = format!("[{}] ", mistake.code);
            let found = text.lines().find(|l| l.contains(&code) && l.contains(&place) && l.contains(mistake.phrase));
            match found.and_then(|line| line.split_once(&code)) {
                Some((_, problem)) if status == Some(1) => Ok(problem.to_owned()),
                _ => Err(format!("expected {code}{place}{}, found {status:?}:\n{text}", mistake.phrase)),
            }
        })
        .await;
        assert_eq!(found.matches("mine.yaml").count(), if mistake.code == "PIL0108" { 2 } else { 1 }, "{found}");
        let log = mesh.server.output();
        assert_eq!(log.matches(&found).count(), 1, "the log has {found:?} once:\n{log}");
        let metrics = client::get(mesh.server.monitoring(), "localhost", "/metrics").await.expect("metrics").body;
        let of = |severity: &str| {
            let name = format!("pilotage_problems{{severity=\"{severity}\"}} ");
            let value = metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse::<f64>().ok());
            value.unwrap_or_else(|| panic!("no {name} in\n{metrics}"))
        };
        assert!(of("error") + of("warning") >= 1.0, "{}", mistake.bad);
        mesh.applies("catalog").await.unwrap_or_else(|e| panic!("{}: {e}", mistake.bad));
        if mistake.keeps {
            mesh.applies("cart").await.unwrap_or_else(|e| panic!("{}: {e}", mistake.bad));
        }
        mesh.server.write("mine.yaml", RULE);
        mesh.until_good().await;
    }
    eprintln!("{} mistakes", MISTAKES.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn live_analysis_and_help_have_the_same_codes() {
    let files = vec![("mine.yaml".to_owned(), RULE.to_owned())];
    let options = DiscoveryOptions { files, ..DiscoveryOptions::default() };
    let binary = programs::binary("discovery", "pilot-discovery");
    let server = DiscoveryProcess::start(&binary.to_string_lossy(), options).await;
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_pilotctl")).args(args).output().expect("pilotctl");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (status, text) = run(&["analyze", "--server", &server.http().to_string()]);
    assert_eq!(status, Some(79), "{text}");
    assert!(text.contains("mine.yaml:11) Referenced host not found: \"cart.shop.svc.cluster.local\""), "{text}");
    let (status, page) = run(&["help", "IST0101"]);
    assert!(status == Some(0) && page.contains("What to do: "), "{page}");
    let (status, _) = run(&["check", "--server", &format!("127.0.0.1:{}", ports::free())]);
    assert_eq!(status, Some(3));
}
