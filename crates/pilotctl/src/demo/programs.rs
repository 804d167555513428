//! The programs that the demo runs, and whether they can run.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::DemoOptions;
use super::process::dying_with_us;

/// How to get an Envoy.
const GET_ENVOY: &str = "`cargo xtask setup envoy` downloads one, --envoy names another";
/// Time for `envoy --version`.
const ANSWER: Duration = Duration::from_secs(2);
/// CPU time that it needs at most. A real one needs a tenth.
const ANSWER_CPU: Duration = Duration::from_secs(1);
/// Time for it while it neither sleeps nor computes: a large program is slow to load on a busy machine.
const LOADING: Duration = Duration::from_secs(20);

/// The programs of the shop.
pub(super) struct Programs {
    pub(super) envoy: PathBuf,
    pub(super) discovery: PathBuf,
    pub(super) agent: PathBuf,
}

impl Programs {
    pub(super) fn find(options: &DemoOptions) -> Result<Programs> {
        let this = env::current_exe().context("could not find this program")?;
        let own = |given: &Option<PathBuf>, name: &str| {
            let path = given.clone().unwrap_or_else(|| this.with_file_name(name));
            // Each agent runs in a separate folder.
            path.canonicalize().with_context(|| {
                format!("could not find {}: `cargo build -p discovery -p agent` builds it", path.display())
            })
        };
        let envoy = find_envoy(options.envoy.as_deref())?;
        let envoy = envoy
            .canonicalize()
            .with_context(|| format!("could not find an Envoy at {}: {GET_ENVOY}", envoy.display()))?;
        Ok(Programs {
            envoy,
            discovery: own(&options.discovery, "pilot-discovery")?,
            agent: own(&options.agent, "pilot-agent")?,
        })
    }
}

/// The Envoy binary: as given, else `$PILOTAGE_ENVOY`, the cache folder, the PATH.
pub(crate) fn find_envoy(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    let found = set("PILOTAGE_ENVOY").or_else(|| cached("envoy")).or_else(|| on_path("envoy"));
    found.with_context(|| format!("could not find an Envoy: {GET_ENVOY}, or set PILOTAGE_ENVOY"))
}

/// A server that `cargo xtask setup` obtained, else one on the PATH.
pub(super) fn find_server(name: &str) -> Result<PathBuf> {
    let found = cached(name).or_else(|| on_path(name));
    found.with_context(|| format!("could not find {name}: `cargo xtask setup {name}` obtains it"))
}

fn set(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn cached(name: &str) -> Option<PathBuf> {
    let user = || set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let cache = set("PILOTAGE_CACHE").or_else(|| user().map(|folder| folder.join("pilotage")))?;
    Some(cache.join("bin").join(name)).filter(|path| path.is_file())
}

fn on_path(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Runs `envoy --version`; fails if it is no program, is no Envoy, fails or hangs.
pub(super) async fn check_envoy(programs: &Programs) -> Result<()> {
    let (envoy, path) = (&programs.envoy, programs.envoy.display());
    let child = dying_with_us(&programs.agent, envoy)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("could not run {}", programs.agent.display()))?;
    let Some(Output { status, stdout, stderr }) = finished(child).await? else {
        bail!("{path} does not answer --version; {GET_ENVOY}");
    };
    if !status.success() {
        let output = String::from_utf8_lossy(&stderr).into_owned();
        let reason = output.lines().last().unwrap_or("no message").trim_start_matches("pilot-agent: ");
        bail!("{path} --version {}: {reason}; {GET_ENVOY}", ended(status));
    }
    if !String::from_utf8_lossy(&stdout).contains("version:") {
        bail!("{path} is not an Envoy: its --version prints no version; {GET_ENVOY}");
    }
    Ok(())
}

fn ended(status: ExitStatus) -> String {
    status.code().map_or_else(|| format!("ended with {status}"), |code| format!("failed with code {code}"))
}

/// The output of a process; `None` if it hangs, after which it is killed.
async fn finished(mut child: Child) -> Result<Option<Output>> {
    let begun = Instant::now();
    loop {
        if child.try_wait().context("could not wait for Envoy")?.is_some() {
            return child.wait_with_output().map(Some).context("could not read the output of Envoy");
        }
        let waited = begun.elapsed();
        let is_late = waited > LOADING || (waited > ANSWER && hangs(child.id()));
        if is_late {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(None);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether a process waits for something other than the disk or a processor, or computes without end.
fn hangs(id: u32) -> bool {
    /// Ticks a second in `/proc`, on every Linux architecture.
    const TICKS: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(')') else { return true };
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    let computed = Duration::from_millis((ticks(11) + ticks(12)) * 1000 / TICKS);
    fields.first() == Some(&"S") || computed > ANSWER_CPU
}
