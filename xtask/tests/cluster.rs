//! A whole mesh in a cluster on this machine: `cargo xtask cluster check`, which needs root.

use std::env;
use std::path::Path;
use std::process::Command;

/// Servers without which the test is skipped where they could not be obtained.
const PARTS: &[&str] = &[
    "envoy",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kubectl",
    "helm",
    "cluster",
    "mesh-app",
    "gateway-api-suite",
    "gateway-api.yaml",
    "echo-basic",
    "echo-server",
    "echo-client",
    "iptables",
    "nft",
];

#[test]
fn a_mesh_works_in_a_cluster() {
    let without = env::var("PILOTAGE_WITHOUT").unwrap_or_default();
    if let Some(part) = PARTS.iter().find(|part| without.split(',').any(|missing| missing == **part)) {
        eprintln!("skipped: no {part}");
        return;
    }
    let user = Command::new("id").arg("-u").output().unwrap();
    if String::from_utf8_lossy(&user.stdout).trim() != "0" {
        assert!(env::var_os("CI").is_none(), "a cluster needs root, and CI must run it");
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let xtask = Path::new(env!("CARGO_BIN_EXE_xtask"));
    let programs = xtask.parent().unwrap();
    let mut command = Command::new(xtask);
    command.args(["cluster", "check"]);
    // `cargo test --workspace` has built them.
    if ["pilot-discovery", "pilot-agent"].iter().all(|name| programs.join(name).is_file()) {
        command.env("PILOTAGE_PROGRAMS", programs);
    }
    let output = command.output().unwrap();
    let [text, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    println!("{text}{errors}");
    assert!(output.status.success(), "{text}{errors}");
}
