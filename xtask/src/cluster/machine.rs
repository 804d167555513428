//! A running cluster: its process, its folder, and commands in it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::setup;

/// Everything that runs in a cluster and is not ours.
const PARTS: &[&str] = &[
    "envoy",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kubectl",
    "helm",
    "cluster",
    "mesh-app",
    "gateway-api.yaml",
    "echo-basic",
    "echo-server",
    "echo-client",
    "iptables",
    "nft",
];
/// Folder of clusters; each has a folder with its name.
const CLUSTERS: &str = "/run/pilotage";
/// Start-up time on a busy machine.
const START: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(100);

/// Flags of `cargo xtask cluster`.
#[derive(Clone, Debug)]
pub(crate) struct MachineOptions {
    pub(crate) name: String,
    /// Which address ranges; clusters that are connected need different ones.
    pub(crate) block: u8,
    pub(crate) nodes: u8,
    /// Name of a running cluster to connect to.
    pub(crate) peer: Option<String>,
    pub(crate) install: bool,
}

impl MachineOptions {
    pub(crate) fn named(name: &str) -> MachineOptions {
        MachineOptions { name: name.to_owned(), block: 0, nodes: 2, peer: None, install: true }
    }

    pub(crate) fn parse(flags: &[&str]) -> Result<MachineOptions> {
        let mut options = MachineOptions::named("default");
        let mut rest = flags.iter();
        while let Some(flag) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("{flag} needs a value"));
            match *flag {
                "--name" => options.name = value()?.to_string(),
                "--block" => options.block = value()?.parse().context("--block is 0 to 15")?,
                "--nodes" => options.nodes = value()?.parse().context("--nodes is a number")?,
                "--peer" => options.peer = Some(value()?.to_string()),
                "--empty" => options.install = false,
                _ => bail!("unknown flag {flag}: --name, --block, --nodes, --peer or --empty"),
            }
        }
        if options.name.is_empty() || !options.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            bail!("could not use the name {:?}: letters, digits and hyphens only", options.name);
        }
        Ok(options)
    }

    pub(crate) fn folder(&self) -> PathBuf {
        Path::new(CLUSTERS).join(&self.name)
    }
}

/// When a cluster ends.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Lifetime {
    /// With this process.
    Ours,
    /// With `cluster down`.
    UntilDown,
}

/// A cluster that runs.
pub(crate) struct Cluster {
    folder: PathBuf,
    /// The project.
    root: PathBuf,
    /// Ended on drop.
    child: Option<Child>,
}

impl Cluster {
    /// Obtains what is needed, builds our programs and starts the cluster.
    pub(crate) fn start(root: &Path, options: &MachineOptions, lifetime: Lifetime) -> Result<Cluster> {
        require_root()?;
        let folder = options.folder();
        if Cluster::running(&folder)?.is_some() {
            bail!("cluster {} is already running", options.name);
        }
        let missing = setup::run(root, PARTS)?;
        if !missing.is_empty() {
            bail!("could not obtain {}", missing.join(", "));
        }
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let images = folder.join("images.json");
        fs::write(&images, serde_json::to_string_pretty(&images_table(&programs(root)?)?)?)?;
        let log = File::create(folder.join("log"))?;
        let mut command = match lifetime {
            // Ended by the kernel when this process is killed.
            Lifetime::Ours => {
                let mut command = Command::new("setpriv");
                command.args(["--pdeathsig", "TERM", "--"]).arg(setup::path("cluster")?);
                command
            }
            Lifetime::UntilDown => Command::new(setup::path("cluster")?),
        };
        command.arg("--folder").arg(&folder).arg("--bin").arg(setup::cache()?.join("bin")).arg("--images").arg(&images);
        command.arg(format!("--block={}", options.block)).arg(format!("--nodes={}", options.nodes));
        if let Some(peer) = &options.peer {
            command.arg("--peer").arg(Path::new(CLUSTERS).join(peer));
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let mut child = command.spawn().context("could not start the cluster")?;
        let ready = wait_ready(&mut child, &folder.join("log"));
        let child = (lifetime == Lifetime::Ours || ready.is_err()).then_some(child);
        let cluster = Cluster { folder, root: root.to_owned(), child };
        ready.map(|()| cluster)
    }

    /// The cluster of this folder, if it runs.
    pub(crate) fn running(folder: &Path) -> Result<Option<Cluster>> {
        Ok(pid_of(folder)?.map(|_| Cluster { folder: folder.to_owned(), root: crate::workspace::root(), child: None }))
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Sends a signal, by its name without SIG, to a server of this cluster.
    pub(crate) fn signal_server(&self, program: &str, signal: &str) -> Result<()> {
        let inside = fs::read_link(format!("/proc/{}/ns/net", self.inside_pid()?))?;
        for entry in fs::read_dir("/proc")?.filter_map(Result::ok) {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let is_meant =
                String::from_utf8_lossy(&line).split('\0').next().is_some_and(|first| first.ends_with(program));
            if is_meant && fs::read_link(entry.path().join("ns/net")).is_ok_and(|own| own == inside) {
                let pid = entry.file_name().to_string_lossy().into_owned();
                return output(shell(&format!("kill -{signal} {pid}")), "").map(drop);
            }
        }
        bail!("{program} does not run")
    }

    /// The process whose network a command can enter.
    pub(crate) fn inside_pid(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.join("inside"))?)
    }

    /// A command in the network of the nodes.
    pub(crate) fn inside(&self, program: &Path) -> Result<Command> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.inside_pid()?, "--net"]).arg(program).env("KUBECONFIG", self.kubeconfig());
        Ok(command)
    }

    /// Runs kubectl and returns its output.
    pub(crate) fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_with(args, "")
    }

    /// Applies documents.
    pub(crate) fn apply(&self, documents: &str) -> Result<()> {
        self.kubectl_with(&["apply", "--server-side", "--force-conflicts", "-f", "-"], documents).map(drop)
    }

    pub(crate) fn kubectl_with(&self, args: &[&str], input: &str) -> Result<String> {
        let mut command = Command::new(setup::path("kubectl")?);
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(args);
        output(command, input).with_context(|| format!("kubectl {}", args.join(" ")))
    }

    /// One object or a list as JSON.
    pub(crate) fn get(&self, args: &[&str]) -> Result<Value> {
        let all: Vec<&str> = ["get", "-o", "json"].iter().chain(args).copied().collect();
        Ok(serde_json::from_str(&self.kubectl(&all)?)?)
    }

    /// What a container has written.
    pub(crate) fn container_log(&self, namespace: &str, pod: &str, container: &str) -> String {
        let file = self.folder.join("logs").join(format!("{namespace}_{pod}_{container}.log"));
        fs::read_to_string(file).unwrap_or_default()
    }

    /// Repeats a check until it succeeds.
    pub(crate) fn until<T>(&self, what: &str, limit: Duration, mut check: impl FnMut() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        loop {
            match check() {
                Ok(value) => return Ok(value),
                Err(last) if start.elapsed() > limit => {
                    return Err(last.context(format!("timed out after {limit:?} waiting for {what}")));
                }
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let keep = std::env::var_os("PILOTAGE_KEEP_CLUSTER").is_some();
            let _ = down_process(child.id());
            let _ = child.wait();
            if !keep {
                let _ = fs::remove_dir_all(&self.folder);
            }
        }
    }
}

/// Ends the cluster of a folder and removes the folder; false if there was none.
pub(crate) fn down(folder: &Path) -> Result<bool> {
    require_root()?;
    let pid = pid_of(folder)?;
    if let Some(pid) = pid {
        down_process(pid)?;
    }
    let had = folder.exists();
    if had {
        fs::remove_dir_all(folder)?;
    }
    Ok(pid.is_some() || had)
}

fn down_process(pid: u32) -> Result<()> {
    output(shell(&format!("kill -TERM {pid}")), "")?;
    let start = Instant::now();
    while is_alive(pid) {
        if start.elapsed() > START {
            bail!("process {pid} does not end");
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn require_root() -> Result<()> {
    if output(shell("id -u"), "")?.trim() != "0" {
        bail!("a cluster needs root: it makes network namespaces");
    }
    Ok(())
}

/// The process of the cluster, if it runs.
fn pid_of(folder: &Path) -> Result<Option<u32>> {
    let Ok(text) = fs::read_to_string(folder.join("pid")) else { return Ok(None) };
    let pid: u32 = text.trim().parse().context("could not read the process id")?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_ours = String::from_utf8_lossy(&line).contains(&*folder.to_string_lossy());
    Ok(Some(pid).filter(|pid| is_ours && is_alive(*pid)))
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn wait_ready(child: &mut Child, log: &Path) -> Result<()> {
    let start = Instant::now();
    loop {
        let text = fs::read_to_string(log).unwrap_or_default();
        if text.contains(" ready after ") {
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            bail!("the cluster ended with {status}: {text}");
        }
        if start.elapsed() > START {
            bail!("the cluster is not ready after {START:?}: {text}");
        }
        thread::sleep(PAUSE);
    }
}

/// The folder with our programs, built unless `$PILOTAGE_PROGRAMS` names one.
fn programs(root: &Path) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("PILOTAGE_PROGRAMS") {
        return Ok(folder.into());
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root).args(["build", "--quiet", "--locked", "--package", "discovery", "--package", "agent"]);
    if !cargo.status().context("could not run cargo")?.success() {
        bail!("could not build pilot-discovery and pilot-agent");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    Ok(target.join("debug"))
}

/// Images as programs: name to command, files, and whether the machine's libraries are needed.
fn images_table(programs: &Path) -> Result<Value> {
    let part = |name: &str| setup::path(name);
    let (discovery, agent) = (programs.join("pilot-discovery"), programs.join("pilot-agent"));
    for program in [&discovery, &agent] {
        if !program.is_file() {
            bail!("no {}", program.display());
        }
    }
    let istiod = part("istiod")?;
    Ok(json!({
        "pilot": {"system": true, "command": ["/usr/local/bin/pilot-discovery"],
            "files": {"/usr/local/bin/pilot-discovery": discovery}},
        "istiod": {"system": true, "command": ["/usr/local/bin/pilot-discovery"],
            "files": {"/usr/local/bin/pilot-discovery": istiod}},
        "proxyv2": {"system": true, "command": ["/usr/local/bin/pilot-agent"],
            "files": {"/usr/local/bin/pilot-agent": agent, "/usr/local/bin/envoy": part("envoy")?}},
        "app": {"command": ["/app/app"], "files": {"/app/app": part("mesh-app")?}},
        "echo-basic": {"command": ["/app/echo-basic"], "files": {"/app/echo-basic": part("echo-basic")?}},
        "echo-advanced": {"command": ["/app/server"], "files": {
            "/app/server": part("echo-server")?, "/app/client": part("echo-client")?,
            "/cert.crt": "server.crt", "/cert.key": "server.key"}},
        // Only tests of UDPRoute send anything to it, which is not supported.
        "coredns": {"system": true, "command": ["/bin/sh", "-c", "exec sleep infinity", "coredns"]},
    }))
}

fn shell(line: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", line]);
    command
}

/// Runs a command with this input and returns its output; its error output is the error.
pub(crate) fn output(mut command: Command, input: &str) -> Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("could not run {:?}", command.get_program()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read its input may have ended.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
