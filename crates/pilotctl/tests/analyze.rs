//! Runs the `pilotctl analyze` binary on files.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const BROKEN: &str = "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: shop}
spec: {hosts: [cart], gateways: [edge], http: [{route: [{destination: {host: missing.example}}]}]}
";

const GOOD: &str = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart}
spec: {hosts: [cart.example], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}]}
";

fn analyze(folder: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilotctl"));
    command.arg("analyze").args(arguments).arg(folder.path()).output().expect("pilotctl runs")
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder can be made");
        fs::write(path, text).expect("a file can be written");
    }
    folder
}

#[test]
fn findings_are_printed_with_code_and_line_and_set_the_exit_status() {
    let folder = folder(&[("deep/broken.yaml", BROKEN), ("good.yml", GOOD), ("notes.txt", "{")]);
    let output = analyze(&folder, &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(79), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("Error [IST0101] (VirtualService shop/cart "), "{text}");
    assert!(lines[0].ends_with("deep/broken.yaml:5) Referenced gateway not found: \"edge\""), "{text}");
    let quiet = ["-S", "IST0101=VirtualService *.shop"];
    assert_eq!(analyze(&folder, &quiet).status.code(), Some(0));
}

#[test]
fn json_and_yaml_list_the_same_findings_and_exit_with_0() {
    let folder = folder(&[("broken.yaml", BROKEN), ("good.yaml", GOOD)]);
    let json = analyze(&folder, &["-o", "json"]);
    let found: Value = serde_json::from_slice(&json.stdout).expect("JSON is printed");
    assert_eq!((json.status.code(), found.as_array().map(Vec::len)), (Some(0), Some(2)));
    assert_eq!((&found[0]["code"], &found[0]["level"]), (&"IST0101".into(), &"Error".into()));
    assert_eq!(found[0]["origin"], "VirtualService shop/cart");
    let yaml = String::from_utf8_lossy(&analyze(&folder, &["-o", "yaml"]).stdout).into_owned();
    assert!(yaml.contains("code: IST0101"), "{yaml}");
}

#[test]
fn good_files_get_a_message_and_unparsable_ones_a_finding() {
    let good = analyze(&folder(&[("good.yaml", GOOD)]), &[]);
    assert_eq!((good.status.code(), good.stdout.is_empty()), (Some(0), true));
    assert!(String::from_utf8_lossy(&good.stderr).contains("No validation issues found"));
    let bad = folder(&[("bad.yaml", "a: [")]);
    assert_eq!(analyze(&bad, &[]).status.code(), Some(79));
    assert_eq!(analyze(&bad, &["--ignore-unknown"]).status.code(), Some(0));
}

#[test]
fn hole_15_pipes_and_symlink_loops_do_not_stop_an_analysis() {
    let folder = folder(&[("deep/broken.yaml", BROKEN), ("good.yml", GOOD)]);
    let path = |name: &str| folder.path().join(name);
    nix::unistd::mkfifo(&path("aaa.yaml"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe can be made");
    std::os::unix::fs::symlink("/dev/zero", path("zero.yaml")).expect("a link can be made");
    std::os::unix::fs::symlink(folder.path(), path("deep/back")).expect("a link can be made");
    // The same file under another name, as in volumes that Kubernetes mounts.
    std::os::unix::fs::symlink(path("deep"), path("again")).expect("a link can be made");
    std::os::unix::fs::symlink(path("good.yml"), path("same.yml")).expect("a link can be made");
    let started = std::time::Instant::now();
    let output = analyze(&folder, &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    eprintln!("analyzed in {:?}", started.elapsed());
    let about = |file: &str, reason: &str| text.lines().filter(|l| l.contains(file) && l.contains(reason)).count();
    assert_eq!(about("aaa.yaml", "not a regular file"), 1, "{text}");
    assert_eq!(about("zero.yaml", "not a regular file"), 1, "{text}");
    assert_eq!(about("back", "leads back to one of its parent folders"), 1, "{text}");
    assert_eq!(about("VirtualService shop/cart", "Referenced gateway not found"), 1, "{text}");
    assert_eq!(text.lines().count(), 5, "{text}");
    // An argument must be readable.
    let named = Command::new(env!("CARGO_BIN_EXE_pilotctl")).arg("analyze").arg(path("aaa.yaml")).output();
    let named = named.expect("pilotctl runs");
    assert!(!named.status.success() && String::from_utf8_lossy(&named.stderr).contains("not a regular file"));
}

#[test]
fn services_of_files_are_known_and_unknown_inputs_leave_checks_out() {
    let route = "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart]
  http:
  - match: [{uri: {prefix: /}}]
    route: [{destination: {host: cart}}]
  - route:
    - destination: {host: catr}
";
    let alone = analyze(&folder(&[("route.yaml", route)]), &[]);
    assert_eq!(alone.status.code(), Some(0), "{}", String::from_utf8_lossy(&alone.stdout));
    let notes = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(
        notes.contains("check left out: virtualservice.DestinationHostAnalyzer: the files have neither"),
        "{notes}"
    );
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: cart, namespace: shop}\n\
                   spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}\n";
    let both = analyze(&folder(&[("route.yaml", route), ("service.yaml", service)]), &[]);
    let text = String::from_utf8_lossy(&both.stdout).into_owned();
    assert_eq!((both.status.code(), text.lines().count()), (Some(79), 1), "{text}");
    assert!(text.contains("route.yaml:11) Referenced host not found: \"catr\" Did you mean \"cart\"?"), "{text}");
}
