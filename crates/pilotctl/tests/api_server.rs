//! pilotctl writes to, reads from and converts the objects of a real API server of Kubernetes, with the definitions that
//! pilot-discovery prints.

use std::fs;
use std::process::{Command, Output};

use testkit::kubectl::Kubectl;
use testkit::kubernetes::ApiServer;
use testkit::{programs, servers};

/// pilotctl with the kubeconfig of an API server.
struct Cluster {
    server: ApiServer,
}

impl Cluster {
    async fn start() -> Cluster {
        let server = ApiServer::start().await;
        let kubectl = Kubectl::new(&server);
        let program = programs::binary("discovery", "pilot-discovery");
        for args in [&["crds"][..], &["crds", "--legacy"]] {
            let printed = Command::new(&program).args(args).output().expect("pilot-discovery").stdout;
            kubectl.run_with(&["apply", "--server-side", "-f", "-"], &String::from_utf8(printed).expect("YAML")).await;
        }
        kubectl.run(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=120s"]).await;
        Cluster { server }
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.server.folder().join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pilotctl"));
        command.args(args).arg("--kubeconfig").arg(self.server.kubeconfig());
        command.env("KUBE_EDITOR", "sed -i s/b.example/c.example/").output().expect("pilotctl")
    }

    fn output(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn virtual_service(host: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: cart}}\nspec:\n  hosts: [{host}]\n  \
         http:\n  - route:\n    - destination: {{host: {host}}}\n"
    )
}

const SERVICES: &str = "apiVersion: v1
kind: Service
metadata: {name: cart, namespace: default}
spec: {selector: {run: carts}, ports: [{port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: pay, namespace: default}
spec:
  hosts: [pay.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{name: http, number: 80, protocol: HTTP}]
  workloadSelector: {labels: {run: payments}}
";
const POLICY: &str = "apiVersion: authentication.istio.io/v1alpha1
kind: Policy
metadata: {name: strict, namespace: default}
spec: {targets: [{name: cart}, {name: pay}], peers: [{mtls: {}}]}
---
apiVersion: config.istio.io/v1alpha2
kind: RouteRule
metadata: {name: cart, namespace: default}
spec: {destination: {name: cart}, route: [{labels: {version: v1}}]}
";

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_cluster_are_written_read_and_converted() {
    if ["etcd", "kube-apiserver", "kubectl"].iter().any(|part| servers::without(part)) {
        return;
    }
    let cluster = Cluster::start().await;
    written_and_read(&cluster);
    converted(&cluster);
}

fn written_and_read(cluster: &Cluster) {
    let first = cluster.file("first.yaml", &virtual_service("a.example"));
    let second = cluster.file("second.yaml", &virtual_service("b.example"));
    let name = "virtualservices.networking.istio.io/cart";
    assert_eq!(cluster.output(&["create", "-f", &first]), format!("{name} created\n"));
    let again = cluster.run(&["create", "-f", &first]);
    let error = String::from_utf8_lossy(&again.stderr);
    assert!(!again.status.success() && error.contains("first.yaml:1: could not create"), "{error}");
    let compared = cluster.run(&["diff", "-f", &second]);
    assert_eq!(compared.status.code(), Some(1), "{}", String::from_utf8_lossy(&compared.stderr));
    assert!(String::from_utf8_lossy(&compared.stdout).contains("b.example"));
    let refused = cluster.run(&["apply", "--field-manager=other", "-f", &second]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("conflict"), "fields belong to the create");
    assert_eq!(cluster.output(&["replace", "-f", &second]), format!("{name} replaced\n"));
    assert!(cluster.output(&["get", "vs"]).contains("[\"b.example\"]"));
    assert_eq!(cluster.output(&["edit", "vs", "cart"]), format!("{name} edited\n"));
    assert!(cluster.output(&["get", "vs", "cart", "-o", "yaml"]).contains("c.example"));
    assert_eq!(cluster.output(&["apply", "--force-conflicts", "-f", &first]), format!("{name} applied\n"));
    assert_eq!(cluster.output(&["delete", "-f", &first]), format!("{name} deleted\n"));
    assert!(!cluster.run(&["get", "vs", "cart"]).status.success());
}

fn converted(cluster: &Cluster) {
    cluster.output(&["apply", "-f", &cluster.file("services.yaml", SERVICES)]);
    let policy = cluster.file("policy.yaml", POLICY);
    let of_file = cluster.output(&["convert", &policy, "--services-from-server"]);
    cluster.output(&["apply", "-f", &policy]);
    let of_server = cluster.output(&["convert", "--from-server"]);
    for printed in [&of_file, &of_server] {
        let mut selectors: Vec<&str> = printed.lines().filter(|line| line.contains("run: ")).map(str::trim).collect();
        selectors.sort_unstable();
        assert_eq!(selectors, ["run: carts", "run: payments"], "{printed}");
        assert!(!printed.contains("kind: Service"), "{printed}");
        assert!(printed.contains("kind: VirtualService") && printed.contains("kind: DestinationRule"), "{printed}");
    }
    // What is printed is valid for the same server.
    let applied = cluster.output(&["apply", "--dry-run", "-f", &cluster.file("new.yaml", &of_server)]);
    assert!(applied.contains("peerauthentications.security.istio.io/strict applied"), "{applied}");
}
