//! Real kubectl against the configuration API.

mod informer;
mod limits;
mod malformed;
mod namespaces;
mod server;
mod watches;

use std::io::{BufRead, BufReader};
use std::time::Duration;

use server::{Server, finished};

fn virtual_service(name: &str, host: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop, labels: \
         {{app: {name}}}}}\nspec:\n  hosts: [{host}]\n  http:\n  - route:\n    - destination: {{host: {host}}}\n"
    )
}

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  selector: {app: cart}
  ports:
  - {name: http, port: 80}
";

#[tokio::test(flavor = "multi_thread")]
async fn apply_get_patch_and_delete() {
    let server = Server::start().await;
    let both = format!("{SERVICE}---\n{}", virtual_service("cart", "cart.shop"));
    let done = server.kubectl(&["apply", "-f", "-"], &both).await;
    assert_eq!(done, "service/cart created\nvirtualservice.networking.istio.io/cart created\n");
    let again = server.kubectl(&["apply", "-f", "-"], &both).await;
    assert_eq!(again, "service/cart unchanged\nvirtualservice.networking.istio.io/cart unchanged\n");

    let changed = both.replace("cart.shop", "cart.example.com").replace("port: 80}", "port: 80, appProtocol: http}");
    let done = server.kubectl(&["apply", "-f", "-"], &changed).await;
    assert_eq!(done, "service/cart configured\nvirtualservice.networking.istio.io/cart configured\n");
    let table = server.kubectl(&["get", "vs,svc", "-n", "shop"], "").await;
    assert!(table.contains("[\"cart.example.com\"]"), "{table}");
    assert!(table.contains("80/TCP"), "{table}");
    let protocol =
        server.kubectl(&["get", "svc", "cart", "-n", "shop", "-o", "jsonpath={.spec.ports[0].appProtocol}"], "");
    assert_eq!(protocol.await, "http");

    // Older versions of the kind show the same object.
    let old =
        ["get", "virtualservices.v1alpha3.networking.istio.io", "cart", "-n", "shop", "-o", "jsonpath={.apiVersion}"];
    assert_eq!(server.kubectl(&old, "").await, "networking.istio.io/v1alpha3");

    let patch = ["patch", "vs", "cart", "-n", "shop", "--type=merge", "-p", r#"{"spec":{"hosts":["a.example.com"]}}"#];
    server.kubectl(&patch, "").await;
    let patch = [
        "patch",
        "vs",
        "cart",
        "-n",
        "shop",
        "--type=json",
        "-p",
        r#"[{"op":"add","path":"/spec/hosts/-","value":"b.example.com"}]"#,
    ];
    server.kubectl(&patch, "").await;
    let patch = ["patch", "svc", "cart", "-n", "shop", "-p", r#"{"spec":{"ports":[{"port":90,"name":"grpc"}]}}"#];
    server.kubectl(&patch, "").await;
    let hosts = server.kubectl(&["get", "vs", "cart", "-n", "shop", "-o", "jsonpath={.spec.hosts}"], "").await;
    assert_eq!(hosts, r#"["a.example.com","b.example.com"]"#);
    let ports = server.kubectl(&["get", "svc", "cart", "-n", "shop", "-o", "jsonpath={.spec.ports[*].port}"], "").await;
    assert_eq!(ports.split(' ').count(), 2, "{ports}");

    let selected = server.kubectl(&["get", "vs", "-A", "-l", "app=cart", "-o", "name"], "").await;
    assert_eq!(selected, "virtualservice.networking.istio.io/cart\n");
    let none = server.kubectl(&["get", "vs", "-A", "-l", "app!=cart", "-o", "name"], "").await;
    assert_eq!(none, "");

    server.kubectl(&["delete", "-f", "-"], &both).await;
    let gone = server.refused(&["get", "vs", "cart", "-n", "shop"], "").await;
    assert!(gone.contains("virtualservices.networking.istio.io \"cart\" not found"), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_side_apply_and_its_conflicts() {
    let server = Server::start().await;
    let apply = ["apply", "--server-side", "-f", "-"];
    let first = virtual_service("cart", "a.example.com");
    let done = server.kubectl(&apply, &first).await;
    assert_eq!(done, "virtualservice.networking.istio.io/cart serverside-applied\n");
    let second = virtual_service("cart", "b.example.com");
    let refused = server.refused(&["apply", "--server-side", "--field-manager=other", "-f", "-"], &second).await;
    assert!(refused.contains("conflict with \"kubectl\""), "{refused}");
    assert!(refused.contains(".spec.hosts"), "{refused}");
    let forced = ["apply", "--server-side", "--field-manager=other", "--force-conflicts", "-f", "-"];
    server.kubectl(&forced, &second).await;
    let managers = [
        "get",
        "vs",
        "cart",
        "-n",
        "shop",
        "--show-managed-fields",
        "-o",
        "jsonpath={.metadata.managedFields[*].manager}",
    ];
    let managers = server.kubectl(&managers, "").await;
    assert!(managers.contains("kubectl") && managers.contains("other"), "{managers}");

    // An object of client-side apply can be taken over.
    server.kubectl(&["apply", "-f", "-"], SERVICE).await;
    server.kubectl(&apply, SERVICE).await;
    let changed = SERVICE.replace("name: http, port: 80", "name: web, port: 81");
    server.kubectl(&apply, &changed).await;
    let ports = server.kubectl(&["get", "svc", "cart", "-n", "shop", "-o", "jsonpath={.spec.ports[*].port}"], "").await;
    assert_eq!(ports, "81");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_objects_are_refused_with_reasons() {
    let server = Server::start().await;
    let object = virtual_service("cart", "cart.shop");
    let typo = object.replace("hosts:", "hostz:");
    let refused = server.refused(&["apply", "--validate=strict", "-f", "-"], &typo).await;
    assert!(refused.contains("unknown field \"spec.hostz\""), "{refused}");
    let warned = server.output(&["apply", "--validate=warn", "-f", "-"], &format!("{object}  hostz: []\n")).await;
    let text = String::from_utf8_lossy(&warned.stderr);
    assert!(warned.status.success() && text.contains("Warning: unknown field \"spec.hostz\""), "{text}");
    server.kubectl(&["apply", "--validate=ignore", "-f", "-"], &format!("{object}  hostz: []\n")).await;

    let wrong = object.replace("destination: {host: cart.shop}", "{destination: {host: cart.shop}, weight: -3}");
    let refused = server.refused(&["create", "-f", "-"], &wrong.replace("name: cart,", "name: wrong,")).await;
    assert!(refused.contains("weight"), "{refused}");
    let missing = server.refused(&["create", "-f", "-"], &object.replace("namespace: shop", "namespace: absent")).await;
    assert!(missing.contains("namespaces \"absent\" not found"), "{missing}");
    let again = server.refused(&["create", "-f", "-"], &object).await;
    assert!(again.contains("already exists"), "{again}");

    let dry = server.kubectl(&["apply", "--dry-run=server", "-f", "-"], &virtual_service("dry", "dry.shop")).await;
    assert!(dry.contains("created (server dry run)"), "{dry}");
    server.refused(&["get", "vs", "dry", "-n", "shop"], "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_wait_edit_diff_and_explain() {
    let server = Server::start().await;
    let object = virtual_service("cart", "a.example.com");
    server.kubectl(&["apply", "-f", "-"], &object).await;

    let mut watch = server.command(&["get", "vs", "-n", "shop", "-w", "-o", "name"]).spawn().expect("kubectl");
    let mut lines = BufReader::new(watch.stdout.take().expect("its output")).lines();
    let first = tokio::task::spawn_blocking(move || (lines.next(), lines)).await.expect("a thread");
    let (name, mut lines) = first;
    assert_eq!(name.expect("a line").expect("text"), "virtualservice.networking.istio.io/cart");
    server.kubectl(&["apply", "-f", "-"], &virtual_service("pay", "pay.shop")).await;
    let second = tokio::task::spawn_blocking(move || lines.next());
    let second = tokio::time::timeout(Duration::from_secs(30), second).await.expect("an event").expect("a thread");
    assert_eq!(second.expect("a line").expect("text"), "virtualservice.networking.istio.io/pay");
    watch.kill().expect("kubectl");
    watch.wait().expect("kubectl");

    let diff = server.output(&["diff", "-f", "-"], &object.replace("a.example.com", "z.example.com")).await;
    let text = String::from_utf8_lossy(&diff.stdout);
    let error = String::from_utf8_lossy(&diff.stderr);
    assert!(text.contains("+  - z.example.com") && diff.status.code() == Some(1), "{text} {error}");

    let editor = server.folder.path().join("editor.sh");
    std::fs::write(&editor, "#!/bin/sh\nsed -i s/a.example.com/edited.example.com/ \"$1\"\n").expect("a script");
    let mut edit = server.command(&["edit", "vs", "cart", "-n", "shop"]);
    edit.env("KUBE_EDITOR", format!("/bin/sh {}", editor.display()));
    let edited = finished(edit, "").await;
    let text = String::from_utf8_lossy(&edited.stdout);
    assert!(text.contains("edited"), "{text} {}", String::from_utf8_lossy(&edited.stderr));
    let hosts = server.kubectl(&["get", "vs", "cart", "-n", "shop", "-o", "jsonpath={.spec.hosts[0]}"], "").await;
    assert_eq!(hosts, "edited.example.com");

    let explained = server.kubectl(&["explain", "virtualservice.spec.http.timeout"], "").await;
    assert!(explained.contains("VirtualService") && explained.contains("timeout <string>"), "{explained}");

    let wait = ["wait", "vs/cart", "-n", "shop", "--for=jsonpath={.spec.hosts[0]}=edited.example.com", "--timeout=30s"];
    server.kubectl(&wait, "").await;
    server.kubectl(&["delete", "vs", "cart", "-n", "shop", "--wait=true"], "").await;
    server.kubectl(&["wait", "vs/cart", "-n", "shop", "--for=delete", "--timeout=30s"], "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_secrets_and_definitions() {
    let server = Server::start().await;
    let objects = "
apiVersion: v1
kind: Namespace
metadata: {name: pay}
---
apiVersion: v1
kind: Secret
metadata: {name: key, namespace: pay}
stringData: {a: b}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: pay}
data: {a: b}
";
    server.kubectl(&["create", "-f", "-"], objects).await;
    // Typed clients send protobuf.
    server.kubectl(&["create", "namespace", "typed"], "").await;
    server.kubectl(&["create", "secret", "generic", "key", "-n", "typed", "--from-literal=a=b"], "").await;
    server.kubectl(&["create", "configmap", "settings", "-n", "typed", "--from-literal=a=b"], "").await;
    server.kubectl(&["create", "service", "clusterip", "cart", "-n", "typed", "--tcp=80:8080"], "").await;
    let port = ["get", "svc", "cart", "-n", "typed", "-o", "jsonpath={.spec.ports[0].targetPort}"];
    assert_eq!(server.kubectl(&port, "").await, "8080");
    let data = server.kubectl(&["get", "secret", "key", "-n", "typed", "-o", "jsonpath={.data.a}"], "").await;
    assert_eq!(data, "Yg==");
    let can =
        server.kubectl(&["auth", "can-i", "create", "virtualservices.networking.istio.io", "-n", "typed"], "").await;
    assert_eq!(can.trim(), "yes");
    server.kubectl(&["delete", "namespace", "typed", "--timeout=30s"], "").await;
    let data = server.kubectl(&["get", "secret", "key", "-n", "pay", "-o", "jsonpath={.data.a}"], "").await;
    assert_eq!(data, "Yg==");
    server.kubectl(&["label", "namespace", "pay", "istio-injection=enabled"], "").await;
    server.kubectl(&["annotate", "cm", "settings", "-n", "pay", "note=x"], "").await;
    let crds = server.kubectl(&["get", "crd", "-o", "name"], "").await;
    assert!(
        crds.contains("customresourcedefinition.apiextensions.k8s.io/virtualservices.networking.istio.io"),
        "{crds}"
    );

    server.kubectl(&["delete", "namespace", "pay", "--timeout=30s"], "").await;
    server.refused(&["get", "secret", "key", "-n", "pay"], "").await;
    let kinds = server.kubectl(&["api-resources", "--api-group=networking.istio.io", "-o", "name"], "").await;
    assert!(kinds.contains("virtualservices.networking.istio.io"), "{kinds}");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_deleted_with_their_last_owner() {
    let server = Server::start().await;
    let map = |name: &str, owners: &[(&str, &str)]| {
        let owners: Vec<String> = owners
            .iter()
            .map(|(name, uid)| format!("{{apiVersion: v1, kind: ConfigMap, name: {name}, uid: {uid}}}"))
            .collect();
        let owners = owners.join(", ");
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: shop, ownerReferences: [{owners}]}}\n"
        )
    };
    let uid = async |name: &str| {
        server.kubectl(&["get", "configmap", name, "-n", "shop", "-o", "jsonpath={.metadata.uid}"], "").await
    };
    let names = async || {
        server.kubectl(&["get", "configmap", "-n", "shop", "-o", "jsonpath={.items[*].metadata.name}"], "").await
    };
    for name in ["one", "two"] {
        server.kubectl(&["apply", "-f", "-"], &map(name, &[])).await;
    }
    let (one, two) = (uid("one").await, uid("two").await);
    server.kubectl(&["apply", "-f", "-"], &map("child", &[("one", &one)])).await;
    let child = uid("child").await;
    server.kubectl(&["apply", "-f", "-"], &map("grandchild", &[("child", &child)])).await;
    server.kubectl(&["apply", "-f", "-"], &map("shared", &[("one", &one), ("two", &two)])).await;
    server.kubectl(&["delete", "configmap", "one", "-n", "shop"], "").await;
    assert_eq!(names().await, "shared two");
    server.kubectl(&["delete", "configmap", "two", "-n", "shop", "--cascade=orphan"], "").await;
    assert_eq!(names().await, "shared");
    let owners = ["get", "configmap", "shared", "-n", "shop", "-o", "jsonpath={.metadata.ownerReferences}"];
    assert_eq!(server.kubectl(&owners, "").await, "");
    let shared = uid("shared").await;
    server.kubectl(&["apply", "-f", "-"], &map("child", &[("shared", &shared)])).await;
    server.kubectl(&["delete", "configmap", "shared", "-n", "shop", "--cascade=foreground", "--timeout=20s"], "").await;
    assert_eq!(names().await, "");
}

/// A chart with a kind of the mesh and a core kind.
fn write_chart(folder: &std::path::Path, host: &str) {
    let templates = folder.join("templates");
    std::fs::create_dir_all(&templates).expect("a folder");
    std::fs::write(folder.join("Chart.yaml"), "apiVersion: v2\nname: cart\nversion: 0.1.0\n").expect("a chart");
    std::fs::write(folder.join("values.yaml"), format!("host: {host}\n")).expect("values");
    let object = virtual_service("cart", "{{ .Values.host }}").replace("namespace: shop, ", "");
    std::fs::write(templates.join("route.yaml"), object).expect("a template");
    let service = SERVICE.replace(", namespace: shop", "");
    std::fs::write(templates.join("service.yaml"), service).expect("a template");
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_installs_upgrades_and_uninstalls() {
    let server = Server::start().await;
    let chart = server.folder.path().join("cart");
    let chart_path = chart.display().to_string();
    let kubeconfig = server.folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{{name: a, cluster: {{server: 'http://{}'}}}}]\n\
         users: [{{name: a, user: {{}}}}]\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n",
        server.address
    );
    std::fs::write(&kubeconfig, text).expect("a kubeconfig");
    let helm = async |args: &[&str]| {
        let mut command = std::process::Command::new(testkit::servers::binary("helm"));
        command.args(args).args(["-n", "shop", "--kubeconfig"]).arg(&kubeconfig);
        command.env_clear().env("HOME", server.folder.path()).env("PATH", "/usr/bin:/bin");
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        let output = finished(command, "").await;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm {}: {error}", args.join(" "));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let hosts = async || server.kubectl(&["get", "vs", "cart", "-n", "shop", "-o", "jsonpath={.spec.hosts}"], "").await;
    write_chart(&chart, "a.example.com");
    let installed = helm(&["install", "shop", &chart_path]).await;
    assert!(installed.contains("STATUS: deployed"), "{installed}");
    assert_eq!(hosts().await, r#"["a.example.com"]"#);
    let upgraded = helm(&["upgrade", "shop", &chart_path, "--set", "host=b.example.com"]).await;
    assert!(upgraded.contains("REVISION: 2"), "{upgraded}");
    assert_eq!(hosts().await, r#"["b.example.com"]"#);
    helm(&["rollback", "shop", "1"]).await;
    assert_eq!(hosts().await, r#"["a.example.com"]"#);
    let listed = helm(&["list"]).await;
    assert!(listed.contains("deployed"), "{listed}");
    helm(&["uninstall", "shop"]).await;
    let left = server.kubectl(&["get", "vs,svc,secret", "-n", "shop", "-o", "name"], "").await;
    assert_eq!(left, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn old_versions_are_read_and_large_objects_refused() {
    let server = Server::start().await;
    let version = async || {
        let path = ["get", "vs", "cart", "-n", "shop", "-o", "jsonpath={.metadata.resourceVersion}"];
        server.kubectl(&path, "").await
    };
    let mut versions = Vec::new();
    for host in ["a.example.com", "b.example.com"] {
        server.kubectl(&["apply", "-f", "-"], &virtual_service("cart", host)).await;
        versions.push(version().await);
    }
    server.kubectl(&["delete", "vs", "cart", "-n", "shop"], "").await;
    let at = |collection: &str, version: &str| {
        format!(
            "/apis/networking.istio.io/v1/namespaces/shop/virtualservices{collection}?resourceVersion={version}&resourceVersionMatch=Exact"
        )
    };
    for (version, host) in versions.iter().zip(["a.example.com", "b.example.com"]) {
        for path in [at("/cart", version), at("", version)] {
            let old = server.kubectl(&["get", "--raw", &path], "").await;
            assert!(old.contains(host) && old.contains(&format!("\"resourceVersion\":\"{version}\"")), "{old}");
        }
    }
    let refused = server.refused(&["get", "--raw", &at("/cart", "999999")], "").await;
    assert!(
        refused.contains("too large resource version") || refused.contains("Too large resource version"),
        "{refused}"
    );

    let large = format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"large\",\"namespace\":\"shop\"}},\"data\":{{\"a\":\"{}\"}}}}",
        "x".repeat(10 << 20)
    );
    let refused = server.refused(&["create", "--validate=false", "-f", "-"], &large).await;
    assert!(refused.contains("/api/v1/namespaces/shop/configmaps is too large"), "{refused}");
}
