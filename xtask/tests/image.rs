//! The images of `cargo xtask image`: two runs give the same digests, and the programs of the unpacked layers start in a
//! chroot as the image's user.

// Clippy recognizes tests by their attribute, but not the helper functions.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Assembles the images. Returns the digest of each.
fn assembled() -> Vec<(String, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .current_dir(root())
        .args(["image", "--debug", "--hub", "example/mesh", "--tag", "test", "pilot", "proxyv2", "proxy_init"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let words = printed.lines().filter_map(|line| line.strip_prefix("image: ")).map(|line| line.split(' '));
    words.map(|mut words| (words.next().unwrap().to_owned(), words.next().unwrap().to_owned())).collect()
}

/// The value of a key in JSON that is known to have it once.
fn text_of<'a>(json: &'a str, key: &str) -> &'a str {
    let (_, rest) = json.split_once(&format!("\"{key}\":")).unwrap_or_else(|| panic!("no {key} in {json}"));
    rest.split('"').nth(1).unwrap()
}

/// Unpacks the layer of an image, found from its index, into a folder.
fn unpacked(image: &str, folder: &Path) -> PathBuf {
    let oci = root().join("target/images").join(image).join("oci");
    let blob = |digest: &str| oci.join("blobs").join(digest.replace(':', "/"));
    let index = fs::read_to_string(oci.join("index.json")).unwrap();
    let manifest = fs::read_to_string(blob(text_of(&index, "digest"))).unwrap();
    let (_, layers) = manifest.split_once("\"layers\"").unwrap();
    let target = folder.join(image);
    fs::create_dir_all(&target).unwrap();
    let layer = blob(text_of(layers, "digest"));
    let status = Command::new("tar").arg("-xpf").arg(layer).arg("-C").arg(&target).status().unwrap();
    assert!(status.success());
    target
}

fn in_chroot(folder: &Path, user: &str, line: &[&str]) -> Command {
    let mut command = Command::new("chroot");
    command.arg(format!("--userspec={user}")).arg(folder).args(line).env_clear();
    command.env("PATH", "/usr/local/bin:/usr/sbin").stdin(Stdio::null());
    command
}

fn run(folder: &Path, user: &str, line: &[&str]) -> String {
    let Output { status, stdout, stderr } = in_chroot(folder, user, line).output().unwrap();
    let printed = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{line:?}: {printed}");
    printed
}

#[test]
fn images_are_reproducible_and_their_programs_start() {
    let first = assembled();
    assert_eq!(first.len(), 3, "{first:?}");
    assert_eq!(assembled(), first);
    assert_eq!(first[0].0, "example/mesh/pilot:test");
    println!("{first:?}");
    if !is_root() {
        println!("left out: starting the programs of an image in a chroot needs root");
        return;
    }
    let folder = std::env::temp_dir().join(format!("pilotage-image-{}", std::process::id()));
    let pilot = unpacked("pilot", &folder);
    serves(&pilot);
    let proxy = unpacked("proxyv2", &folder);
    runs_envoy(&proxy);
    assert!(run(&proxy, "1337:1337", &["/usr/sbin/iptables", "--version"]).contains("nf_tables"));
    let init = unpacked("proxy_init", &folder);
    assert!(run(&init, "0:0", &["/usr/sbin/iptables", "--version"]).contains("nf_tables"));
    let rules = run(&init, "0:0", &["/usr/local/bin/pilot-agent", "istio-iptables", "--dry-run"]);
    assert!(rules.contains("ISTIO_OUTPUT"), "{rules}");
    fs::remove_dir_all(&folder).unwrap();
}

/// The server of the image comes up as the image's user.
fn serves(folder: &Path) {
    let line = [
        "/usr/local/bin/pilot-discovery",
        "discovery",
        "--registries=",
        "--configDir=/etc/istio/config",
        "--grpcAddr=127.0.0.1:0",
        "--httpAddr=127.0.0.1:0",
        "--monitoringAddr=",
        "--secureGRPCAddr=",
        "--httpsAddr=",
        "--ctrlz_port=0",
    ];
    let mut command = in_chroot(folder, "1337:1337", &line);
    command.env("ENABLE_CA_SERVER", "false");
    until_logged(command, |line| line.contains("listening") && line.contains("grpc"));
}

/// The agent of the image starts its Envoy as the image's user, in new namespaces: with `/proc` and `/dev` as a container
/// has them, and with all ports free.
fn runs_envoy(folder: &Path) {
    for mount in ["proc", "dev"] {
        fs::create_dir_all(folder.join(mount)).unwrap();
    }
    let script = "mount -t proc proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && ip link set lo up && \
                  exec chroot --userspec=1337:1337 \"$0\" /usr/local/bin/pilot-agent proxy sidecar --ip 127.0.0.1 \
                  --id a.shop --domain shop.svc.cluster.local --discoveryAddress 127.0.0.1:15010 \
                  --controlPlaneAuthPolicy NONE --concurrency 1 --proxyLogLevel info";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "sh", "-c", script]).arg(folder).stdin(Stdio::null());
    // There is no control plane: Envoy has read its bootstrap, opened its ports, and waits for configuration.
    until_logged(command, |line| line.contains("starting main dispatch loop"));
}

/// Waits for a line of the log, and ends the program.
fn until_logged(mut command: Command, is_expected: impl Fn(&str) -> bool) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (sender, lines) = std::sync::mpsc::channel();
    let of_errors = sender.clone();
    std::thread::spawn(move || {
        BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    std::thread::spawn(move || {
        BufReader::new(err).lines().map_while(Result::ok).try_for_each(|line| of_errors.send(line))
    });
    let mut log = Vec::new();
    let is_up = loop {
        match lines.recv_timeout(std::time::Duration::from_secs(60)) {
            Ok(line) => log.push(line),
            Err(_) => break false,
        }
        if log.last().is_some_and(|line| is_expected(line)) {
            break true;
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_up, "{}", log.join("\n"));
}

fn is_root() -> bool {
    let printed = Command::new("id").arg("-u").output().unwrap().stdout;
    String::from_utf8_lossy(&printed).trim() == "0"
}
