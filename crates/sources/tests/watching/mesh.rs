//! MeshConfig and MeshNetworks in files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use sources::health::SourceState;
use sources::mesh::{mesh_config, networks};
use tempfile::TempDir;

use crate::follower::Follower;

fn file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("mesh");
    (folder, path)
}

fn root(follower: &Follower) -> Option<&str> {
    follower.mesh.as_ref().map(|mesh| mesh.root_namespace.as_str())
}

#[tokio::test]
async fn defaults_are_used_until_the_file_exists() {
    let (_folder, path) = file();
    let mut follower = Follower::synced(mesh_config(&path)).await;
    assert_eq!(root(&follower), Some("istio-system"));
    assert_eq!(follower.problems, Vec::<String>::new());
    fs::write(&path, "rootNamespace: one").expect("write");
    follower.until("the file", |f| root(f) == Some("one")).await;
}

#[tokio::test]
async fn a_folder_that_is_created_later_is_found() {
    let (folder, _) = file();
    let path = folder.path().join("later/mesh");
    let mut follower = Follower::synced(mesh_config(&path)).await;
    fs::create_dir(folder.path().join("later")).expect("create the folder");
    fs::write(&path, "rootNamespace: one").expect("write");
    follower.until("the file", |f| root(f) == Some("one")).await;
}

#[tokio::test]
async fn bad_content_keeps_the_last_good_settings() {
    let (_folder, path) = file();
    fs::write(&path, "rootNamespace: one").expect("write");
    let mut follower = Follower::synced(mesh_config(&path)).await;
    assert_eq!(root(&follower), Some("one"));
    for bad in ["rootNamespace: [", "rootNamespace: {}", ""] {
        fs::write(&path, bad).expect("write");
        follower.until("the problem", |f| f.has_problem(&["mesh", "keeping the last good version"])).await;
        assert_eq!(root(&follower), Some("one"), "{bad}");
        fs::write(&path, "rootNamespace: one").expect("write");
        follower.until("the repair", |f| f.problems.is_empty()).await;
    }
    fs::remove_file(&path).expect("remove");
    follower.until("the problem", |f| f.has_problem(&["the file is gone; keeping the last good version"])).await;
    fs::write(&path, "rootNamespace: two").expect("write");
    follower.until("the new file", |f| root(f) == Some("two") && f.problems.is_empty()).await;
}

#[tokio::test]
async fn bad_content_at_the_start_means_defaults_and_a_problem() {
    let (_folder, path) = file();
    fs::write(&path, "rootNamespace: [").expect("write");
    let mut follower = Follower::synced(mesh_config(&path)).await;
    assert_eq!(root(&follower), Some("istio-system"));
    assert!(!follower.problems.is_empty());
    fs::write(&path, "rootNamespace: one").expect("write");
    follower.until("the repair", |f| root(f) == Some("one") && f.problems.is_empty()).await;
}

#[tokio::test]
async fn a_new_version_of_a_mounted_config_map_is_read() {
    let (folder, path) = file();
    for generation in ["one", "two"] {
        let inner = folder.path().join(format!("..{generation}"));
        fs::create_dir(&inner).expect("create a generation");
        fs::write(inner.join("mesh"), format!("rootNamespace: {generation}")).expect("write");
    }
    symlink("..one", folder.path().join("..data")).expect("link");
    symlink("..data/mesh", &path).expect("link");
    let mut follower = Follower::synced(mesh_config(&path)).await;
    assert_eq!(root(&follower), Some("one"));
    symlink("..two", folder.path().join("..data_tmp")).expect("link");
    fs::rename(folder.path().join("..data_tmp"), folder.path().join("..data")).expect("swap");
    follower.until("the swap", |f| root(f) == Some("two")).await;
}

#[tokio::test]
async fn changes_of_networks_are_read() {
    let (_folder, path) = file();
    let mut follower = Follower::synced(networks(&path)).await;
    let text = "networks: {east: {endpoints: [{fromRegistry: a}], gateways: [{address: 1.2.3.4, port: 15443}]}}";
    fs::write(&path, text).expect("write");
    follower.until("the network", |f| f.networks.as_ref().is_some_and(|n| n.networks.contains_key("east"))).await;
}

#[tokio::test]
async fn hole_08_a_pipe_in_place_of_the_file_keeps_the_last_good_settings() {
    let (folder, path) = file();
    fs::write(&path, "rootNamespace: one").expect("write");
    let mut follower = Follower::synced(mesh_config(&path)).await;
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("run mkfifo").success());
    fs::rename(&pipe, &path).expect("move");
    follower.until("the problem", |f| f.has_problem(&["not a regular file; keeping the last good version"])).await;
    follower.until_state("a stale source", |r| matches!(r.state, SourceState::Stale { .. })).await;
    assert_eq!(root(&follower), Some("one"));
    fs::remove_file(&path).expect("remove");
    fs::write(&path, "rootNamespace: two").expect("write");
    follower.until("the new file", |f| root(f) == Some("two") && f.problems.is_empty()).await;
    follower.until_state("a live source", |r| r.state == SourceState::Live).await;
}
