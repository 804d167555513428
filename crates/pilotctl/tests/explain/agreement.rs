//! `pilotctl explain --verify` agrees with a real Envoy: the command itself, over requests made for recorded cases.

use std::process::Command;

use api::TypeUrl;
use explain::{ProxyConfig, Request};
use fastrand::Rng;
use serde_json::{Value, json};
use testkit::cases::CaseStore;
use testkit::servers;

use super::generated::request;

const WANTED: usize = 24;
const SEED: u64 = 20;

/// Dumps of recorded proxies, each with a request for one of their route tables.
fn trials(random: &mut Rng) -> Vec<(String, String, Request)> {
    let mut found = Vec::new();
    for case in CaseStore::read(|_| true).cases {
        for proxy in &case.proxies {
            let kinds = [&TypeUrl::LISTENER, &TypeUrl::ROUTE, &TypeUrl::CLUSTER, &TypeUrl::ENDPOINT];
            let of_kind = |kind: &&TypeUrl| case.expected(&proxy.name, kind).iter().map(|r| (**r).clone()).collect();
            let resources: Vec<Value> = kinds.iter().flat_map(|kind| -> Vec<Value> { of_kind(kind) }).collect();
            let dump = json!({"configs": resources}).to_string();
            let Ok(config) = ProxyConfig::from_dump(&dump) else { continue };
            // Names of sidecars' tables are ports.
            for (name, table) in &config.routes {
                let (Ok(port), true) = (name.parse::<u16>(), table.virtual_hosts.iter().any(|h| h.routes.len() > 1))
                else {
                    continue;
                };
                let Some(mut request) = request(table, random) else { continue };
                request.port = port;
                found.push((format!("{} {name}", case.label()), dump.clone(), request));
            }
        }
    }
    random.shuffle(&mut found);
    found
}

#[test]
fn the_command_agrees_with_a_real_envoy() {
    if servers::without("envoy") {
        return;
    }
    let envoy = servers::binary("envoy");
    let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let file = folder.path().join("dump.json");
    let mut random = Rng::with_seed(SEED);
    let (mut verified, mut excused) = (0, 0);
    for (label, dump, request) in trials(&mut random) {
        std::fs::write(&file, dump).unwrap_or_else(|e| panic!("{e}"));
        let host = request.host().to_owned();
        let url = format!("http://{host}:{}{}", request.port, request.path);
        let mut command = Command::new(env!("CARGO_BIN_EXE_pilotctl"));
        command.args(["explain", "--verify", "-o", "json", "--dump"]).arg(&file).arg("--envoy").arg(&envoy);
        for (name, value) in &request.headers {
            command.args(["-H", &format!("{name}: {value}")]);
        }
        let output = command.args([&request.method, &url]).output().unwrap_or_else(|e| panic!("{e}"));
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{label} {url}: {e}: {text}"));
        let verdict = report["verified"]["text"].as_str().unwrap_or_default().to_owned();
        if verdict.contains("there are no routes") {
            continue;
        }
        assert_eq!(report["verified"]["agrees"], true, "{label} {url}: {text}");
        let is_served = report["outcome"]["notServed"].is_null();
        assert_eq!(output.status.code(), Some(i32::from(!is_served)), "{label} {url}: {text}");
        excused += usize::from(verdict.contains("depends on chance"));
        verified += 1;
        if verified == WANTED {
            break;
        }
    }
    println!("{verified} requests through the command, {excused} that depend on chance, seed {SEED}");
    assert_eq!(verified, WANTED);
    assert!(excused <= 1, "{excused} of {verified} depend on chance");
}
