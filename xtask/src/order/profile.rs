//! Runs a program under callgrind and tells which of its functions ran.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const PATIENCE: Duration = Duration::from_secs(300);

pub(super) struct Profiler {
    /// The program to watch.
    pub(super) binary: PathBuf,
    /// Where the other programs lie.
    pub(super) beside: PathBuf,
    pub(super) samples: PathBuf,
    /// For files that nobody needs afterwards.
    pub(super) scratch: PathBuf,
}

/// A program at work. Ended when dropped.
pub(super) struct Running {
    child: Child,
    log: PathBuf,
}

impl Profiler {
    /// The program under callgrind, in all images that it becomes. Programs of others are left alone.
    pub(super) fn watched(&self) -> Command {
        let mut command = Command::new("valgrind");
        command
            .args(["--quiet", "--tool=callgrind", "--demangle=no", "--trace-children=yes"])
            .arg("--trace-children-skip=*/envoy")
            .arg(format!("--callgrind-out-file={}/profile.%p", self.scratch.display()))
            .arg(&self.binary);
        command
    }

    pub(super) fn start(&self, command: &mut Command, name: &str) -> Result<Running> {
        let log = self.scratch.join(name);
        command.stdin(Stdio::null()).stdout(File::create(&log)?).stderr(File::options().append(true).open(&log)?);
        let child = command.spawn().with_context(|| format!("could not run {name}; is valgrind there?"))?;
        Ok(Running { child, log })
    }

    /// The program's own functions among those that ran since the last time.
    pub(super) fn functions(&self) -> Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        for entry in fs::read_dir(&self.scratch)? {
            let path = entry?.path();
            if path.extension().is_some() && path.file_stem().is_some_and(|stem| stem == "profile") {
                found.extend(fs::read_to_string(&path)?.lines().filter_map(function));
                fs::remove_file(path)?;
            }
        }
        let own = self.symbols()?;
        let ran: BTreeSet<&String> = own.iter().filter(|(name, _)| found.contains(name)).map(|(_, at)| at).collect();
        if ran.is_empty() {
            bail!("valgrind saw no function");
        }
        Ok(own.iter().filter(|(_, at)| ran.contains(at)).map(|(name, _)| name.clone()).collect())
    }

    /// The symbols that the binary defines, with their addresses. Functions of equal code share one, and valgrind
    /// tells any of their names.
    fn symbols(&self) -> Result<Vec<(String, String)>> {
        let output = Command::new("nm").arg("--defined-only").arg(&self.binary).output().context("could not run nm")?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(symbol).collect())
    }
}

impl Running {
    /// Waits until the program's log gives what is looked for.
    pub(super) fn wait_for<T>(&mut self, what: &str, find: impl Fn(&str) -> Option<T>) -> Result<T> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let text = fs::read_to_string(&self.log)?;
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended: {status}: {text}");
            }
            if let Some(found) = find(&text) {
                return Ok(found);
            }
            thread::sleep(Duration::from_millis(100));
        }
        bail!("no {what} in time: {}", fs::read_to_string(&self.log)?)
    }

    /// Asks it to stop and waits until it did.
    pub(super) fn stop(mut self) -> Result<()> {
        Command::new("kill").arg(self.child.id().to_string()).status().context("could not run kill")?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a page is there.
pub(super) fn answers(address: &str, path: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let mut answer = String::new();
    let question = format!("GET {path} HTTP/1.1\r\nhost: pilot\r\nconnection: close\r\n\r\n");
    let asked = stream.write_all(question.as_bytes());
    asked.and_then(|()| stream.read_to_string(&mut answer)).is_ok() && answer.starts_with("HTTP/1.1 200")
}

/// The name and address that a line such as `00001f00 T NAME` tells.
fn symbol(line: &str) -> Option<(String, String)> {
    let mut words = line.split_whitespace();
    let (address, _, name) = (words.next()?, words.next()?, words.next()?);
    Some((name.to_owned(), address.to_owned()))
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

#[cfg(test)]
mod tests {
    use super::{function, symbol};

    #[test]
    fn functions_are_found_in_a_profile() {
        assert_eq!(function("fn=(12) _RNvCs1_4main4main"), Some("_RNvCs1_4main4main".to_owned()));
        assert_eq!(function("cfn=(3) _RNv3run'2"), Some("_RNv3run".to_owned()));
        assert_eq!(function("fn=(12)"), None);
        assert_eq!(function("calls=1 0"), None);
    }

    #[test]
    fn symbols_have_names_and_addresses() {
        assert_eq!(symbol("00001f00 T main"), Some(("main".to_owned(), "00001f00".to_owned())));
        assert_eq!(symbol("         U free"), None);
    }
}
