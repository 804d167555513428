//! Hostile paths in configuration: devices, pipes, huge files, keys, and files in other directories.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::Mode;
use testkit::wait;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use xds::client::SotwClient;

use crate::fixture::Agent;

/// Maximum memory growth from reading all of them, in a debug build.
const LEFT_BEHIND_KIB: u64 = 24 * 1024;

/// CPU time of a debug build for refusing all of them. Reading one of them to its end would take minutes, or never end.
const MOST_CPU: Duration = Duration::from_secs(20);

/// Maximum probe time. Kubernetes' default timeout is 1 s; a busy machine needs more.
const PROBE: Duration = Duration::from_secs(5);

fn root(path: &Path) -> String {
    format!("file-root:{}", path.display())
}

/// Writes a file below `certs`.
fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join("certs").join(name);
    fs::create_dir_all(folder.join("certs")).unwrap();
    fs::write(&path, text).unwrap();
    path
}

fn certificate() -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["authority.test".to_owned()]).unwrap();
    params.self_signed(&key).unwrap().pem()
}

async fn is_served(stream: &mut SotwClient, text: &str) {
    let response = timeout(wait::PATIENCE, stream.next()).await.expect("a secret in time").unwrap().expect("a secret");
    let value = &response.resources[0].value;
    assert!(value.windows(text.len()).any(|at| at == text.as_bytes()), "another content");
}

async fn is_silent(stream: &mut SotwClient) {
    let answer = timeout(Duration::ZERO, stream.next()).await;
    assert!(answer.is_err(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_10_a_path_in_configuration_cannot_harm_the_agent() {
    let folder = tempfile::tempdir().unwrap();
    let good_text = certificate();
    let good = file(folder.path(), "good.pem", &good_text);
    let key = file(folder.path(), "key.pem", "-----BEGIN PRIVATE KEY-----\nMIIC\n-----END PRIVATE KEY-----\n");
    let [pipe, huge, link] = ["pipe", "huge", "link"].map(|name| folder.path().join("certs").join(name));
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    fs::File::create(&huge).unwrap().set_len(8 << 30).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
    let outside = folder.path().join("outside.pem");
    fs::write(&outside, &good_text).unwrap();
    let bad = [PathBuf::from("/dev/zero"), "/proc/self/environ".into(), pipe, huge, link, outside];
    let names: Vec<String> = bad.iter().chain([&good, &key]).map(|path| root(path)).collect();
    let agent = Agent::start(folder, &names).await;
    agent.configure().await;
    let (before, cpu) = (agent.process.memory_kib().unwrap(), agent.process.cpu().unwrap());
    let stop = CancellationToken::new();
    let probe = agent.probe(stop.clone());

    let mut streams = Vec::new();
    for path in &bad {
        streams.push(agent.secret(&root(path)).await);
    }
    for path in &bad {
        agent.logs(&format!("file={}", path.display())).await;
    }
    is_served(&mut agent.secret(&root(&good)).await, &good_text).await;
    // A CA path that points to a key serves nothing.
    let mut of_key = agent.secret(&root(&key)).await;
    is_served(&mut agent.secret(&root(&good)).await, &good_text).await;
    is_silent(&mut of_key).await;
    for stream in &mut streams {
        is_silent(stream).await;
    }
    stop.cancel();
    let longest = probe.await.unwrap();
    let after = agent.process.memory_kib().unwrap();
    let spent = agent.process.cpu().unwrap() - cpu;
    eprintln!("RSS {before} KiB before, {after} KiB after; longest probe {longest:?}; {spent:?} of CPU");
    assert!(spent < MOST_CPU, "{spent:?} of CPU");
    assert!(after < before + LEFT_BEHIND_KIB, "{before} KiB before, {after} KiB after");
    assert!(longest < PROBE, "a probe waited {longest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_10_only_files_that_configuration_names_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let text = certificate();
    let [named, other] = ["named.pem", "other.pem"].map(|name| file(folder.path(), name, &text));
    let agent = Agent::start(folder, &[root(&named)]).await;
    // Before the configuration arrives, no file is named.
    let mut early = agent.secret(&root(&named)).await;
    agent.logs("refused a file secret that Envoy's configuration does not name").await;
    is_silent(&mut early).await;
    agent.configure().await;
    is_served(&mut agent.secret(&root(&named)).await, &text).await;
    let mut unnamed = agent.secret(&root(&other)).await;
    agent.logs(&root(&other)).await;
    is_silent(&mut unnamed).await;
}
