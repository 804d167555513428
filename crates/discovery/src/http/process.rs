//! Standard metrics of the process, from `/proc`; none if it cannot be read.

use std::fmt;
use std::fs;
use std::time::SystemTime;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::samples::gauge;

/// CPU time and memory so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProcessUsage {
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: u64,
}

/// CPU time and memory of this process; zero if unknown.
pub(super) fn usage() -> ProcessUsage {
    let (ticks, page) = (setting(SysconfVar::CLK_TCK, 100.0), setting(SysconfVar::PAGE_SIZE, 4096.0));
    match fields().get(10..=20).unwrap_or_default() {
        [user, system, .., resident] => {
            ProcessUsage { cpu_seconds: (user + system) / ticks, resident_bytes: (resident * page) as u64 }
        }
        _ => ProcessUsage::default(),
    }
}

/// The fields of `/proc/self/stat` after the state.
fn fields() -> Vec<f64> {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The process name is in parentheses and may contain spaces.
    stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(1).map(number).collect()
}

pub(super) fn metrics(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let fields = fields();
    let (ticks, page) = (setting(SysconfVar::CLK_TCK, 100.0), setting(SysconfVar::PAGE_SIZE, 4096.0));
    // Indexes count from the field after the state: user and system time, start time, virtual and resident size.
    if let [user, system, .., start, virtual_size, resident] = fields.get(10..=20).unwrap_or_default() {
        let (name, help) = ("process_cpu_seconds_total", "CPU time in seconds");
        let mut cpu = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        cpu.encode_gauge(&((user + system) / ticks))?;
        gauge(encoder, "process_resident_memory_bytes", "Resident memory", resident * page)?;
        gauge(encoder, "process_virtual_memory_bytes", "Virtual memory", *virtual_size)?;
        gauge(encoder, "process_start_time_seconds", "When the process started", started(start / ticks))?;
    }
    if let Ok((most, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        gauge(encoder, "process_max_fds", "Limit of open file descriptors", most as f64)?;
    }
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    gauge(encoder, "process_open_fds", "Open file descriptors", open as f64)
}

/// A value of the system, or its usual value if the system does not say.
fn setting(name: SysconfVar, usual: f64) -> f64 {
    sysconf(name).ok().flatten().map_or(usual, |value| value as f64)
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_default()
}

/// Start time since the epoch; `/proc` has it in seconds since boot.
fn started(after_boot: f64) -> f64 {
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let since_boot = uptime.split_whitespace().next().map_or(0.0, number);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
    now - since_boot + after_boot
}
