//! pilotctl writes to and reads from the configuration API of a real pilot-discovery.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::{ports, programs};

struct Fixture {
    _server: DiscoveryProcess,
    folder: TempDir,
    kubeconfig: PathBuf,
}

impl Fixture {
    async fn start() -> Fixture {
        let binary = programs::binary("discovery", "pilot-discovery");
        let folder = tempfile::tempdir().expect("a folder");
        let address = format!("127.0.0.1:{}", ports::free());
        let storage = format!("--configStorage={}", folder.path().join("config.redb").display());
        let args = vec![format!("--configAPI={address}"), storage.clone()];
        let options = DiscoveryOptions { args, ..DiscoveryOptions::default() };
        let server = DiscoveryProcess::start(&binary.to_string_lossy(), options).await;
        let printed = Command::new(binary)
            .args(["config-api", "kubeconfig", "-n", "default", &format!("--server=https://{address}"), &storage])
            .output()
            .expect("pilot-discovery");
        let kubeconfig = folder.path().join("kubeconfig");
        fs::write(&kubeconfig, printed.stdout).expect("a kubeconfig");
        Fixture { _server: server, folder, kubeconfig }
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pilotctl"));
        command
            .args(args)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .env("KUBE_EDITOR", "sed -i s/b.example/c.example/");
        command.output().expect("pilotctl")
    }

    fn output(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn virtual_service(host: &str) -> String {
    format!(
        "# routes\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: cart}}\nspec:\n  \
         hosts: [{host}]\n  http:\n  - route:\n    - destination: {{host: {host}}}\n      weight: 100\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_written_shown_compared_edited_and_deleted() {
    let fixture = Fixture::start().await;
    let first = fixture.file("first.yaml", &virtual_service("a.example"));
    let second = fixture.file("second.yaml", &virtual_service("b.example"));
    let name = "virtualservices.networking.istio.io/cart";
    assert_eq!(fixture.output(&["create", "-f", &first]), format!("{name} created\n"));
    let again = fixture.run(&["create", "-f", &first]);
    let error = String::from_utf8_lossy(&again.stderr);
    assert!(!again.status.success() && error.contains("first.yaml:2: could not create"), "{error}");

    let compared = fixture.run(&["diff", "-f", &second]);
    let text = String::from_utf8_lossy(&compared.stdout);
    assert_eq!(compared.status.code(), Some(1), "{text} {}", String::from_utf8_lossy(&compared.stderr));
    assert!(text.contains("+- b.example") || text.contains("+  - b.example"), "{text}");

    // The fields belong to the create.
    let dry = fixture.output(&["apply", "--dry-run", "--force-conflicts", "-f", &second]);
    assert_eq!(dry, format!("{name} applied (dry run)\n"));
    let refused = fixture.run(&["apply", "--field-manager=other", "-f", &second]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("conflict with \"pilotctl\""));
    assert_eq!(fixture.output(&["replace", "-f", &second]), format!("{name} replaced\n"));
    let table = fixture.output(&["get", "vs"]);
    assert!(table.starts_with("NAME") && table.contains("[\"b.example\"]"), "{table}");
    assert_eq!(fixture.output(&["edit", "vs", "cart"]), format!("{name} edited\n"));
    let yaml = fixture.output(&["get", "virtualservice", "cart", "-o", "yaml"]);
    assert!(yaml.contains("c.example") && yaml.contains("resourceVersion"), "{yaml}");
    assert_eq!(fixture.output(&["get", "vs", "-A", "-o", "name"]), format!("{name}\n"));
    assert_eq!(fixture.output(&["delete", "-f", &first]), format!("{name} deleted\n"));
    assert!(!fixture.run(&["get", "vs", "cart"]).status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_reported_by_line_before_anything_is_sent() {
    let fixture = Fixture::start().await;
    let good = virtual_service("a.example");
    let bad = good.replace("name: cart", "name: bad").replace("weight: 100", "weight: -1");
    let file = fixture.file("two.yaml", &format!("{good}---\n{bad}"));
    let refused = fixture.run(&["apply", "-f", &file]);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && error.contains("two.yaml:") && error.contains("weight"), "{error}");
    assert_eq!(fixture.output(&["get", "vs", "-o", "name"]), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_folder_makes_the_same_objects_elsewhere() {
    let (one, other) = (Fixture::start().await, Fixture::start().await);
    let objects = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: cart, namespace: a-shop}}\nspec: {{ports: [{{port: 80}}]}}\n---\n\
         apiVersion: v1\nkind: Namespace\nmetadata: {{name: a-shop, labels: {{a: b}}}}\n---\n{}",
        virtual_service("a.example")
    );
    one.output(&["apply", "-f", &one.file("objects.yaml", &objects)]);
    let folder = one.folder.path().join("export");
    let path = folder.display().to_string();
    let done = one.output(&["export", &path]);
    assert!(done.contains("objects written to"), "{done}");
    let text =
        fs::read_to_string(folder.join("default/virtualservices.networking.istio.io.cart.yaml")).expect("a file");
    assert!(text.contains("a.example") && !text.contains("uid") && !text.contains("managedFields"), "{text}");
    let again = one.run(&["export", &path]);
    let error = String::from_utf8_lossy(&again.stderr);
    assert!(!again.status.success() && error.contains("the folder is not empty"), "{error}");
    // Fields of namespaces that every server makes belong to it.
    other.output(&["apply", "--force-conflicts", "-f", &path]);
    let copy = other.folder.path().join("export");
    other.output(&["export", &copy.display().to_string()]);
    let compared = Command::new("diff").arg("-r").arg(&folder).arg(&copy).output().expect("diff");
    assert!(compared.status.success(), "{}", String::from_utf8_lossy(&compared.stdout));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversion_reads_the_services_of_the_server() {
    let fixture = Fixture::start().await;
    let objects = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n\
                   apiVersion: v1\nkind: Service\nmetadata: {name: cart, namespace: shop}\n\
                   spec: {selector: {run: carts}, ports: [{port: 80}]}\n---\n\
                   apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: pay, namespace: shop}\n\
                   spec:\n  hosts: [pay.shop.svc.cluster.local]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
                   ports: [{name: http, number: 80, protocol: HTTP}]\n  workloadSelector: {labels: {run: payments}}\n";
    fixture.output(&["apply", "-f", &fixture.file("services.yaml", objects)]);
    let policy = "apiVersion: authentication.istio.io/v1alpha1\nkind: Policy\nmetadata: {name: strict, namespace: shop}\n\
                  spec: {targets: [{name: cart}, {name: pay}], peers: [{mtls: {}}]}\n";
    let file = fixture.file("policy.yaml", policy);
    let of_file = fixture.output(&["convert", &file, "--services-from-server"]);
    fixture.output(&["apply", "-f", &file]);
    let of_server = fixture.output(&["convert", "--from-server"]);
    for printed in [of_file, of_server] {
        let mut selectors: Vec<&str> = printed.lines().filter(|line| line.contains("run: ")).map(str::trim).collect();
        selectors.sort_unstable();
        assert_eq!(selectors, ["run: carts", "run: payments"], "{printed}");
        assert!(
            !printed.contains("kind: Service") && printed.matches("kind: PeerAuthentication").count() == 2,
            "{printed}"
        );
    }
}

#[test]
fn a_server_that_does_not_answer_is_not_taken_for_an_empty_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: a, clusters: [{{name: a, cluster: {{server: 'http://127.0.0.1:{}'}}}}], \
         users: [], contexts: [{{name: a, context: {{cluster: a, user: ''}}}}]}}",
        ports::free()
    );
    fs::write(&kubeconfig, text).expect("a kubeconfig");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilotctl"));
    let output =
        command.args(["convert", "--from-server", "--kubeconfig"]).arg(&kubeconfig).output().expect("pilotctl");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("could not reach the server"), "{error}");
}
