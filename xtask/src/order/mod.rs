//! `cargo xtask order`: finds the functions that a start of pilot-discovery runs and writes them down for the
//! linker (`crates/discovery/start.order`). Needs valgrind. Run it before a release, or when
//! `cargo bench -p discovery --bench memory` tells that an empty server has grown.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const LIST: &str = "crates/discovery/start.order";
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn run(root: &Path) -> Result<()> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = ["build", "--release", "-p", "discovery", "--bin", "pilot-discovery"];
    succeed(Command::new(cargo).current_dir(root).args(build))?;
    let binary = root.join("target/release/pilot-discovery");
    let scratch = env::temp_dir().join(format!("pilotage-order-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let run = functions_run(&binary, &root.join("samples"), &scratch);
    let removed = fs::remove_dir_all(&scratch);
    let names: Vec<String> = run?.intersection(&symbols(&binary)?).cloned().collect();
    removed?;
    fs::write(root.join(LIST), names.join("\n") + "\n")?;
    println!("order: {} functions run at a start, in {LIST}", names.len());
    Ok(())
}

/// Starts the server on the samples, asks whether it is ready, stops it, and gives what ran.
fn functions_run(binary: &Path, samples: &Path, scratch: &Path) -> Result<BTreeSet<String>> {
    let (profile, log) = (scratch.join("profile"), scratch.join("log"));
    let mut server = Command::new("valgrind")
        .args(["--quiet", "--tool=callgrind", "--demangle=no"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(binary)
        .args(["discovery", "--registries=", "--grpcAddr=127.0.0.1:0", "--httpAddr=127.0.0.1:0"])
        .args(["--monitoringAddr=127.0.0.1:0", "--secureGRPCAddr=", "--httpsAddr="])
        .arg(format!("--configDir={}", samples.display()))
        .stdin(Stdio::null())
        .stdout(File::create(&log)?)
        .stderr(File::options().append(true).open(&log)?)
        .spawn()
        .context("could not run valgrind")?;
    let ready = wait_until_ready(&mut server, &log);
    let stopped = succeed(Command::new("kill").arg(server.id().to_string()));
    server.wait()?;
    ready?;
    stopped?;
    let profile = fs::read_to_string(&profile).context("valgrind wrote no profile")?;
    Ok(profile.lines().filter_map(function).collect())
}

fn wait_until_ready(server: &mut Child, log: &Path) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = server.try_wait()? {
            bail!("the server ended: {status}: {}", fs::read_to_string(log)?);
        }
        let text = fs::read_to_string(log)?;
        if address(&text).is_some_and(is_ready) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
    }
    bail!("the server was not ready in time: {}", fs::read_to_string(log)?)
}

/// The address of the HTTP port, from the line that tells it.
fn address(log: &str) -> Option<&str> {
    log.lines().find(|line| line.contains("port=\"http\""))?.split_once("address=").map(|(_, address)| address.trim())
}

fn is_ready(address: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let mut answer = String::new();
    let asked = stream.write_all(b"GET /ready HTTP/1.1\r\nhost: pilot\r\nconnection: close\r\n\r\n");
    asked.and_then(|()| stream.read_to_string(&mut answer)).is_ok() && answer.starts_with("HTTP/1.1 200")
}

/// The function that a line such as `fn=(12) NAME` or `cfn=(12) NAME'2` names.
fn function(line: &str) -> Option<String> {
    let (_, name) = line.strip_prefix('c').unwrap_or(line).strip_prefix("fn=(")?.split_once(") ")?;
    let name = match name.rsplit_once('\'') {
        Some((name, digits)) if digits.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => name,
    };
    Some(name.to_owned())
}

/// The symbols that the binary defines.
fn symbols(binary: &Path) -> Result<BTreeSet<String>> {
    let output = Command::new("nm").arg("--defined-only").arg(binary).output().context("could not run nm")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect())
}

fn succeed(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("could not run {name}"))?;
    if !status.success() {
        bail!("{name} failed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{address, function};

    #[test]
    fn functions_are_found_in_a_profile() {
        assert_eq!(function("fn=(12) _RNvCs1_4main4main"), Some("_RNvCs1_4main4main".to_owned()));
        assert_eq!(function("cfn=(3) _RNv3run'2"), Some("_RNv3run".to_owned()));
        assert_eq!(function("fn=(12)"), None);
        assert_eq!(function("calls=1 0"), None);
    }

    #[test]
    fn address_is_that_of_the_http_port() {
        let log = "x\tlistening port=\"grpc\" address=127.0.0.1:1\nx\tlistening port=\"http\" address=127.0.0.1:2\n";
        assert_eq!(address(log), Some("127.0.0.1:2"));
    }
}
