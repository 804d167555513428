//! A child process that cannot outlive its test: killed on drop, and by the kernel when the test binary dies. Its output
//! is printed when a test fails.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, LazyLock, mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::wait;

/// Environment variables that a child inherits.
const INHERITED: &[&str] = &["PATH", "HOME", "TMPDIR", "RUST_LOG", "RUST_BACKTRACE"];

pub struct Process {
    name: String,
    child: Child,
    output: Arc<Mutex<String>>,
}

impl Process {
    /// Starts a program with these arguments, these environment variables and `INHERITED`.
    pub fn start<A: AsRef<OsStr>>(name: &str, program: &Path, args: &[A], env: &[(String, String)]) -> Process {
        let mut process = Self::start_unread(name, program, args, env);
        if let (Some(out), Some(err)) = (process.child.stdout.take(), process.child.stderr.take()) {
            collect(out, &process.output);
            collect(err, &process.output);
        }
        process
    }

    /// Like `start`, but its output goes to pipes that are never read.
    pub fn start_unread<A: AsRef<OsStr>>(name: &str, program: &Path, args: &[A], env: &[(String, String)]) -> Process {
        let mut command = dying_with_us(program);
        command.args(args).env_clear();
        command.envs(INHERITED.iter().filter_map(|k| Some((k, env::var_os(k)?))));
        command.envs(env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = spawn(command).unwrap_or_else(|e| panic!("could not start {name}: {e}"));
        Process { name: name.to_owned(), child, output: Arc::default() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far: lines of both streams in order.
    pub fn output(&self) -> String {
        self.output.lock().clone()
    }

    /// Panics with the last lines of output if the process has exited.
    pub fn check_alive(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            panic!("{} ended with {status}:\n{}", self.name, tail(&self.output()));
        }
    }

    /// Sends SIGTERM, as a container runtime does, and returns the exit status.
    pub async fn terminate(&mut self) -> ExitStatus {
        // The shell's built-in `kill`: the program is not installed everywhere.
        let pid = self.id().to_string();
        let sent = Command::new("sh").args(["-c", "kill -TERM \"$0\"", &pid]).status();
        assert!(sent.is_ok_and(|s| s.success()), "could not signal {}", self.name);
        let what = format!("the end of {}", self.name);
        let child = &mut self.child;
        wait::until(&what, async || child.try_wait().ok().flatten().ok_or("it still runs".to_owned())).await
    }

    /// Kills it, like a crash.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Resident memory in KiB, pages of files included, if the kernel reports it.
    pub fn memory_kib(&self) -> Option<u64> {
        self.status_kib("VmRSS:")
    }

    /// Memory in KiB that the process owns (`RssAnon`): without pages of files, which processes share.
    pub fn owned_kib(&self) -> Option<u64> {
        self.status_kib("RssAnon:")
    }

    /// Peak resident memory in KiB.
    pub fn peak_memory_kib(&self) -> Option<u64> {
        self.status_kib("VmHWM:")
    }

    fn status_kib(&self, field: &str) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix(field))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// CPU time of all threads so far, user and system.
    pub fn cpu(&self) -> Option<Duration> {
        cpu_of(self.id())
    }
}

/// CPU time of all threads of a process so far, user and system; `None` if it has ended.
pub fn cpu_of(id: u32) -> Option<Duration> {
    /// Ticks a second in `/proc`, on every Linux architecture.
    const TICKS: u64 = 100;
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The program name, in parentheses, may contain spaces.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Duration::from_millis((ticks(11)? + ticks(12)?) * 1000 / TICKS))
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("--- end of {}'s output\n{}", self.name, tail(&self.output()));
        }
    }
}

/// Running processes with this text in their arguments, except the agent and what starts programs for us.
pub fn alive_with(text: &str) -> Vec<u32> {
    let folders = fs::read_dir("/proc").unwrap_or_else(|e| panic!("could not list processes: {e}"));
    let ids = folders.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_ours = |id: &u32| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains(text)
            && !line.contains("pilot-agent")
            && !line.contains("/proc/self/exe")
            && !line.contains("setpriv")
    };
    ids.filter(|id| is_ours(id) && is_alive(*id)).collect()
}

/// False for zombies.
pub fn is_alive(id: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Sends a signal, given by its name without SIG.
pub fn signal(id: u32, name: &str) {
    // The shell's built-in `kill`: the program is not installed everywhere.
    let sent = Command::new("sh").args(["-c", "kill -$1 $0", &id.to_string(), name]).status();
    assert!(sent.is_ok_and(|status| status.success()), "could not send {name} to {id}");
}

/// The last 30 lines.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

fn collect(stream: impl Read + Send + 'static, output: &Arc<Mutex<String>>) {
    let output = Arc::clone(output);
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let mut text = output.lock();
            text.push_str(&String::from_utf8_lossy(&line));
            text.push('\n');
        }
    });
}

/// A command whose process the kernel kills when the spawning thread ends.
fn dying_with_us(program: &Path) -> Command {
    let setpriv = Path::new("/usr/bin/setpriv");
    if !setpriv.exists() {
        return Command::new(program);
    }
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

type SpawnRequest = (Command, mpsc::SyncSender<io::Result<Child>>);

/// Spawns all processes on one thread that lives as long as the test binary: the kernel kills a child when its spawning
/// thread ends, and the thread of a test may end before the `Process` is dropped.
static SPAWNER: LazyLock<mpsc::Sender<SpawnRequest>> = LazyLock::new(|| {
    let (orders, inbox) = mpsc::channel::<SpawnRequest>();
    thread::spawn(move || {
        for (mut command, reply) in inbox {
            let _ = reply.send(command.spawn());
        }
    });
    orders
});

fn spawn(command: Command) -> io::Result<Child> {
    let (reply, answer) = mpsc::sync_channel(1);
    SPAWNER.send((command, reply)).map_err(io::Error::other)?;
    answer.recv_timeout(Duration::from_secs(30)).map_err(io::Error::other)?
}
