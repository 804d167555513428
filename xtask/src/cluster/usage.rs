//! What a program of a cluster has used: processor time and memory, as the kernel counts them.

use std::fs;

use anyhow::{Context, Result, bail};

use super::machine::Cluster;

/// Unit of processor time in `/proc`; the same on all of Linux' usual machines.
const TICKS: f64 = 100.0;

/// Sums over all processes of one program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProgramUsage {
    pub(crate) cpu_seconds: f64,
    /// Largest resident memory so far.
    pub(crate) peak_mib: f64,
    pub(crate) resident_mib: f64,
}

impl Cluster {
    /// What the processes that run this program in the cluster's pods have used so far.
    pub(crate) fn usage(&self, program: &str) -> Result<ProgramUsage> {
        let inside = self.inside_pid()?;
        let mut all = ProgramUsage::default();
        let mut found = false;
        for entry in fs::read_dir("/proc")?.filter_map(Result::ok) {
            let pid = entry.file_name().to_string_lossy().into_owned();
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let is_meant =
                String::from_utf8_lossy(&line).split('\0').next().is_some_and(|first| first.ends_with(program));
            if !is_meant || !is_descendant(&pid, &inside) {
                continue;
            }
            let Ok(one) = usage_of(&pid) else { continue };
            found = true;
            all.cpu_seconds += one.cpu_seconds;
            all.peak_mib += one.peak_mib;
            all.resident_mib += one.resident_mib;
        }
        if found { Ok(all) } else { bail!("{program} does not run in the cluster") }
    }
}

/// Fields of `/proc/PID/stat` from the state on.
fn stat(pid: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = text.rsplit_once(')').context("no name in the process' state")?;
    Ok(rest.split_whitespace().map(str::to_owned).collect())
}

/// Whether a process is another one or was started by it.
pub(super) fn is_descendant(pid: &str, ancestor: &str) -> bool {
    let mut current = pid.to_owned();
    while current != "0" && current != ancestor {
        let Ok(fields) = stat(&current) else { return false };
        let Some(parent) = fields.get(1) else { return false };
        current = parent.clone();
    }
    current == ancestor
}

fn usage_of(pid: &str) -> Result<ProgramUsage> {
    let fields = stat(pid)?;
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        kib.unwrap_or_default() / 1024.0
    };
    Ok(ProgramUsage {
        cpu_seconds: (ticks(11) + ticks(12)) / TICKS,
        peak_mib: mib("VmHWM:"),
        resident_mib: mib("VmRSS:"),
    })
}
