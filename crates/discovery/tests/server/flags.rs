//! The command line: accepted and rejected flags, and their messages.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use testkit::{client, wait};

use crate::started::{BINARY, SHOP, Started, folder};

fn run(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).env_clear().output().unwrap()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn an_unknown_flag_is_logged_and_not_fatal() {
    let mut server = Started::new(&["--registries=", "--brandNew=1", "--alsoNew", "x", "--log_rotate=x"]);
    server.ready().await;
    for flag in ["brandNew", "alsoNew"] {
        server.says(&format!("warn\tdefault\tignoring unknown flag flag=\"{flag}\"")).await;
    }
    server.says("info\tdefault\tignoring flag without effect flag=\"log_rotate\"").await;
}

#[tokio::test]
async fn files_are_served_without_an_api_server() {
    let mut server = Started::new(&[]);
    server.ready().await;
    server.says("no API server is configured").await;
}

#[test]
fn an_unknown_registry_is_rejected_with_the_known_ones() {
    for args in [&["--registries=Zookeeper,Mock"][..], &["--registries=Nonsense"]] {
        let folder = folder();
        let config = format!("--configDir={}", folder.path().display());
        let output = run(&[&["discovery", &config], args].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains("--registries="), "{args:?}: {error}");
        assert!(error.contains("Mock") && error.contains("--configDir"), "{args:?}: {error}");
    }
}

#[test]
fn a_missing_kubeconfig_is_rejected() {
    let output = run(&["discovery", "--kubeconfig=/nowhere/kubeconfig"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("could not read kubeconfig /nowhere/kubeconfig"));
}

#[test]
fn an_invalid_cloud_foundry_file_is_rejected_with_the_name_of_the_field() {
    let folder = folder();
    let file = folder.path().join("cf.yaml");
    std::fs::write(&file, "copilot: {address: 'copilot:9000', poll_interval: 5s}\nservice_port: 8080\n").unwrap();
    let flag = format!("--cfConfig={}", file.display());
    for (args, parts) in [
        (vec!["--registries=CloudFoundry"], vec!["--cfConfig=FILE"]),
        (vec!["--registries=CloudFoundry", &flag], vec!["cf.yaml", "copilot.client_cert_path"]),
        (vec!["--registries=CloudFoundry", "--cfConfig=/nowhere/cf.yaml"], vec!["could not read /nowhere/cf.yaml"]),
    ] {
        let output = run(&[&["discovery"][..], &args].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
    }
}

#[test]
fn nothing_to_serve_is_an_error() {
    let output = run(&["discovery", "--registries="]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("could not find anything to serve"));
}

#[test]
fn an_invalid_flag_value_is_an_error() {
    for bad in ["--shutdownDuration=soon", "--log_output_level=loud"] {
        let output = run(&["discovery", "--registries=Mock", bad]);
        assert!(!output.status.success(), "{bad}");
    }
}

#[tokio::test]
async fn a_used_port_is_an_error_that_names_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("--grpcAddr={}", taken.local_addr().unwrap());
    let output = run(&["discovery", "--registries=Mock", &address]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("could not listen on 127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn mock_registry_is_served_without_files() {
    let mut server = Started::new(&["--registries=Mock"]);
    server.ready().await;
    let services = server.get("/debug/registryz").await.json();
    let hosts: Vec<&str> = services.as_array().unwrap().iter().filter_map(|s| s["hostname"].as_str()).collect();
    assert!(hosts.contains(&"hello.default.svc.cluster.local"), "{hosts:?}");
}

#[test]
fn version_is_printed_as_text_and_as_json() {
    let line = stdout(&run(&["version"]));
    assert_eq!(line.trim_end().splitn(3, '-').count(), 3, "{line}");
    let json: Value = serde_json::from_str(&stdout(&run(&["version", "-o", "json"]))).unwrap();
    assert_eq!(json["version"], stdout(&run(&["version", "--short"])).trim_end());
    for field in ["revision", "golang_version", "status", "tag"] {
        assert!(json[field].is_string(), "{field}");
    }
}

#[tokio::test]
async fn request_prints_a_page_of_a_running_server() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let address = server.port("monitoring").await.to_string();
    let page = run(&["request", "GET", "debug/list", "--address", &address]);
    assert!(page.status.success() && stdout(&page).contains("\"syncz\""), "{page:?}");
    let missing = run(&["request", "GET", "/debug/nothing", "--address", &address]);
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("received 404"), "{missing:?}");
}

#[tokio::test]
async fn log_can_be_json() {
    let mut server = Started::new(&["--registries=", "--log_as_json"]);
    server.says("\"msg\":\"starting\"").await;
    let output = server.process.output();
    for line in output.lines() {
        let json: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(json["time"].is_string() && json["level"].is_string() && json["scope"].is_string(), "{line}");
    }
}

#[tokio::test]
async fn log_levels_are_read_and_set_while_the_server_runs() {
    let mut server = Started::new(&["--registries=", "--log_output_level=default:info"]);
    let controlz = server.port("controlz").await;
    let level = async |scope: &str| {
        let reply = client::get(controlz, "localhost", &format!("/scopej/{scope}")).await.unwrap();
        (reply.status.as_u16(), reply.json()["output_level"].clone())
    };
    let set = async |scope: &str, body: &str| {
        let request = http::Request::put(format!("/scopej/{scope}")).header("host", "localhost");
        client::send(controlz, request.body(body.to_owned()).unwrap()).await.unwrap().status.as_u16()
    };
    let all = client::get(controlz, "localhost", "/scopej/").await.unwrap().json();
    let names: Vec<&str> = all.as_array().unwrap().iter().filter_map(|scope| scope["name"].as_str()).collect();
    assert!(names.contains(&"ads") && names.contains(&"default"), "{names:?}");
    assert_eq!(level("ads").await, (200, "info".into()));
    assert_eq!(set("ads", r#"{"name": "ads", "output_level": "debug"}"#).await, 202);
    assert_eq!(set("ads", r#"{"name": "ads", "stack_trace_level": "none"}"#).await, 202);
    assert_eq!((level("ads").await, level("default").await), ((200, "debug".into()), (200, "info".into())));
    assert_eq!((set("ads", r#"{"output_level": "loud"}"#).await, set("ads", "{").await), (400, 400));
    assert_eq!((set("loud", r#"{"output_level": "debug"}"#).await, level("loud").await.0), (400, 400));
    assert_eq!(set("default", r#"{"output_level": "none"}"#).await, 202);
}

#[tokio::test]
async fn a_taken_controlz_port_turns_controlz_off() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = format!("--ctrlz_port={}", taken.local_addr().unwrap().port());
    let mut server = Started::new(&["--registries=", "--ctrlz_address=127.0.0.1", &port]);
    server.ready().await;
    server.says("ControlZ is off: could not listen on 127.0.0.1").await;
}

#[test]
fn settings_are_printed_with_their_origin_and_without_secrets() {
    let mut command = Command::new(BINARY);
    command.args(["settings", "--registries=Consul", "--consulserverURL=http://user:hidden-word@127.0.0.1:8500"]);
    let output = command.env_clear().env("PILOT_DEBOUNCE_AFTER", "7ms").output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success() && !text.contains("hidden-word"), "{output:?}");
    let row = |name: &str| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(text.lines().next().unwrap().split_whitespace().collect::<Vec<_>>(), ["NAME", "VALUE", "ORIGIN"]);
    assert_eq!(row("--registries"), "Consul flag");
    assert_eq!(row("PILOT_DEBOUNCE_AFTER"), "7ms environment");
    assert!(row("--grpcAddr").ends_with(" default"), "{text}");
}

#[tokio::test]
async fn a_file_that_is_broken_at_the_start_is_served_from_the_state_folder() {
    let folder = folder();
    let file = folder.path().join("config/shop.yaml");
    std::fs::write(&file, SHOP).unwrap();
    let state = folder.path().join("state");
    let flag = format!("--stateDir={}", state.display());
    let mut server = Started::on(folder, &["--registries=", &flag]);
    server.ready().await;
    wait::until("a copy of the file", async || {
        let copies = files_below(&state);
        let has_copy =
            copies.iter().any(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("web.shop")));
        if has_copy { Ok(()) } else { Err(format!("{copies:?}")) }
    })
    .await;
    let Started { process, folder } = server;
    drop(process);
    std::fs::write(&file, "apiVersion: [\n").unwrap();
    let mut server = Started::on(folder, &["--registries=", &flag]);
    server.ready().await;
    server.says("file is broken; serving its last good content from the state folder").await;
    let services = server.get("/debug/registryz").await.body;
    assert!(services.contains("web.shop.example"), "{services}");
}
