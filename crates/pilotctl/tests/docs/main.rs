//! Runs every command block of README and docs as a reader would, each page in an empty folder with real servers.

mod page;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use page::{Page, missing};
use testkit::sandbox::Sandbox;
use testkit::{programs, servers};

const LIMIT: Duration = Duration::from_secs(240);
/// Commands of a quick start, from an empty folder to the first answer.
const MOST_COMMANDS: usize = 6;
/// Begins the output of a command.
const MARK: &str = "@@@ ";

/// What scripts may use: the last step of `make run`, because the programs are built; a wait for a port.
const HELPERS: &str = r#"
make() { test "$*" = run && pilotctl demo --detach; }
wait_for_port() { until (: </dev/tcp/127.0.0.1/$1) 2>/dev/null; do sleep 0.05; done; }
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> Page {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("could not read {path}: {e}"));
    Page::parse(&text)
}

/// Runs the commands of a page in order, and compares their output with what the page shows.
fn run(path: &str) -> Page {
    let page = read(path);
    for (block, reason) in &page.not_run {
        println!("{path}: not run: {block:?}: {reason}");
    }
    if page.commands.is_empty() {
        return page;
    }
    for (package, name) in [("discovery", "pilot-discovery"), ("agent", "pilot-agent")] {
        programs::binary(package, name);
    }
    let own = Path::new(env!("CARGO_BIN_EXE_pilotctl")).parent().map(Path::to_owned).unwrap_or_default();
    let envoy = servers::binary("envoy");
    let cache = envoy.parent().map(Path::to_owned).unwrap_or_default();
    let sandbox = Sandbox::new(&[own, cache.clone()]);
    sandbox.copy(&root().join("samples"), "samples");
    let mut script = HELPERS.to_owned();
    page.setup.iter().for_each(|setup| script.push_str(&format!("{setup}\n")));
    for (index, command) in page.commands.iter().enumerate() {
        script.push_str(&format!("echo '{MARK}{index}'\n{}\n", command.text));
    }
    let environment = [("PILOTAGE_ENVOY", envoy.display().to_string()), ("SERVERS", cache.display().to_string())];
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    let output = sandbox.run(&script, &environment, LIMIT).good();
    for (index, command) in page.commands.iter().enumerate() {
        let after = output.split(&format!("{MARK}{index}\n")).nth(1).unwrap_or_default();
        let of_command = after.split(&format!("{MARK}{}\n", index + 1)).next().unwrap_or_default();
        if let Some(line) = missing(&command.output, of_command) {
            panic!("{path}:{}: {:?} does not print {line:?}, but\n{of_command}", command.line, command.text);
        }
    }
    page
}

/// Runs a quick start, which must not be long.
fn quick_start(path: &str, server: &str) {
    if servers::without("envoy") || servers::without(server) {
        return;
    }
    let count = run(path).commands.len();
    assert!(count > 0 && count <= MOST_COMMANDS, "{path} has {count} commands");
}

#[test]
fn quick_start_with_files() {
    quick_start("docs/quickstart/files.md", "envoy");
}

#[test]
fn quick_start_with_consul() {
    quick_start("docs/quickstart/consul.md", "consul");
}

#[test]
fn quick_start_with_eureka() {
    quick_start("docs/quickstart/eureka.md", "eureka.jar");
}

#[test]
fn quick_start_with_a_stock_envoy() {
    quick_start("docs/quickstart/envoy.md", "envoy");
}

#[test]
fn quick_start_with_grpc() {
    quick_start("docs/quickstart/grpc.md", "grpc-app");
}

#[test]
fn quick_start_on_kubernetes() {
    quick_start("docs/quickstart/kubernetes.md", "kube-apiserver");
}

#[test]
fn readme() {
    run("README.md");
}

#[test]
fn symptoms() {
    if !servers::without("envoy") && !servers::without("consul") {
        run("docs/symptoms.md");
    }
}

/// Pages with a test of their own above.
const RUN_ALONE: [&str; 7] = [
    "docs/quickstart/files.md",
    "docs/quickstart/consul.md",
    "docs/quickstart/eureka.md",
    "docs/quickstart/envoy.md",
    "docs/quickstart/grpc.md",
    "docs/quickstart/kubernetes.md",
    "docs/symptoms.md",
];

#[test]
fn all_other_pages() {
    for path in pages("docs").iter().filter(|path| !RUN_ALONE.contains(&path.as_str())) {
        run(path);
    }
}

#[test]
fn every_command_block_is_marked() {
    let mut all = pages("docs");
    all.extend(["README.md".to_owned(), "samples/shop/README.md".to_owned()]);
    let unmarked: Vec<String> = all
        .iter()
        .flat_map(|path| read(path).unmarked.into_iter().map(move |line| format!("{path}: {line}")))
        .collect();
    assert!(unmarked.is_empty(), "blocks with commands that are not marked `console`:\n{}", unmarked.join("\n"));
}

/// All pages below a folder, by name.
fn pages(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("could not list {folder}: {e}")) {
        let name = entry.unwrap_or_else(|e| panic!("{e}")).file_name().to_string_lossy().into_owned();
        let path = format!("{folder}/{name}");
        if root().join(&path).is_dir() {
            found.extend(pages(&path));
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
    found.sort();
    found
}
