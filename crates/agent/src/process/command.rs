//! Envoy's command line. The arguments are upstream's; those for hot restart are Pilot 0.8's.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::hot_restart;

/// How Envoy is started, the same for all epochs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Launch {
    /// The agent's own binary; its `exec-child` command executes Envoy.
    pub agent: PathBuf,
    /// The Envoy binary.
    pub binary: PathBuf,
    /// Envoy's `--drain-time-s`.
    pub drain: Duration,
    /// Arguments that are the same for all epochs; they come last.
    pub fixed: Vec<String>,
    pub takeover: Takeover,
    /// Time until an Envoy must have opened its admin port.
    pub start_timeout: Duration,
}

/// How a new epoch replaces the running one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Takeover {
    /// Hot restart is disabled, which makes Envoy start faster.
    None,
    /// The new Envoy takes over sockets and stats.
    HotRestart {
        /// Time after which the old Envoy is shut down.
        parent_shutdown: Duration,
        /// File for the base id, by which epochs find each other.
        base_id: PathBuf,
    },
}

/// Arguments that depend on the settings.
#[derive(Clone, Debug, Default)]
pub struct EnvoyFlags {
    pub ipv6_only: bool,
    pub flush_interval_ms: Option<u64>,
    pub flush_min_size_kb: u32,
    /// Such as `info` or `info,upstream:debug`.
    pub log_level: String,
    pub component_log_level: String,
    pub skip_deprecated_logs: bool,
    pub core_dump: bool,
    /// JSON or YAML that Envoy merges into its bootstrap.
    pub override_yaml: Option<String>,
    /// Worker threads; 0 for one per core.
    pub concurrency: i32,
    /// Cluster and id of the node, for a bootstrap without `node`.
    pub node: Option<(String, String)>,
}

impl EnvoyFlags {
    /// The arguments, in upstream's order.
    pub fn arguments(&self) -> Vec<String> {
        let mut args =
            vec!["--local-address-ip-version".to_owned(), if self.ipv6_only { "v6" } else { "v4" }.to_owned()];
        let mut add = |words: &[&str]| args.extend(words.iter().map(|word| (*word).to_owned()));
        // Envoy's default of 10 s delays the first access log line too long.
        add(&["--file-flush-interval-msec", &self.flush_interval_ms.unwrap_or(1000).to_string()]);
        add(&["--allow-unknown-static-fields"]);
        if self.flush_min_size_kb > 0 {
            add(&["--file-flush-min-size-kb", &self.flush_min_size_kb.to_string()]);
        }
        let (level, components) = levels(&self.log_level);
        if let Some(level) = level {
            add(&["-l", level]);
        }
        match (&*components, &*self.component_log_level) {
            ([], "") => {}
            ([], old) => add(&["--component-log-level", old]),
            (components, _) => add(&["--component-log-level", &components.join(",")]),
        }
        if self.skip_deprecated_logs {
            add(&["--skip-deprecated-logs"]);
        }
        if self.core_dump {
            add(&["--enable-core-dump"]);
        }
        if let Some(text) = &self.override_yaml {
            add(&["--config-yaml", text]);
        }
        if let Some((cluster, id)) = &self.node {
            add(&["--service-cluster", cluster, "--service-node", id]);
        }
        if self.concurrency > 0 {
            add(&["--concurrency", &self.concurrency.to_string()]);
        }
        args
    }
}

/// Splits `info,upstream:debug` into the default level and component levels.
fn levels(text: &str) -> (Option<&str>, Vec<&str>) {
    let parts = || text.split(',').filter(|part| !part.is_empty());
    let level = parts().rfind(|part| !part.contains(':'));
    (level, parts().filter(|part| part.matches(':').count() == 1).collect())
}

impl Launch {
    /// The arguments of the agent's binary that start an epoch. Envoy writes its admin address to `admin_file`.
    pub(super) fn line(&self, epoch: u32, bootstrap: &Path, admin_file: Option<&Path>) -> Result<Vec<OsString>> {
        let mut line = self.executing_envoy(bootstrap);
        if let Some(file) = admin_file {
            line.extend(["--admin-address-path".into(), file.into()]);
        }
        let mut add = |words: &[&str]| line.extend(words.iter().map(OsString::from));
        add(&["--drain-time-s", &self.drain.as_secs().to_string(), "--drain-strategy", "immediate"]);
        match &self.takeover {
            Takeover::None => add(&["--disable-hot-restart"]),
            Takeover::HotRestart { parent_shutdown, base_id } => {
                add(&["--restart-epoch", &epoch.to_string()]);
                add(&["--parent-shutdown-time-s", &parent_shutdown.as_secs().to_string()]);
                // An Envoy that copies its parent's stats aborts when the parent is killed.
                add(&["--skip-hot-restart-parent-stats"]);
                // Base ids are machine-wide, so Envoy itself picks a free one.
                match epoch {
                    0 => {
                        add(&["--use-dynamic-base-id", "--base-id-path"]);
                        line.push(base_id.clone().into());
                    }
                    _ => add(&["--base-id", read_id(base_id)?.trim()]),
                }
            }
        }
        line.extend(self.fixed.iter().map(OsString::from));
        Ok(line)
    }

    /// The arguments of a run that checks the bootstrap of an epoch and exits. Only an epoch that takes over from
    /// another one is checked: a bad bootstrap must not cost the running Envoy its admin port.
    pub(super) fn check_line(&self, epoch: u32, bootstrap: &Path) -> Option<Vec<OsString>> {
        if epoch == 0 || matches!(self.takeover, Takeover::None) {
            return None;
        }
        let mut line = self.executing_envoy(bootstrap);
        line.extend(["--mode", "validate"].map(OsString::from));
        line.extend(self.fixed.iter().map(OsString::from));
        Some(line)
    }

    fn executing_envoy(&self, bootstrap: &Path) -> Vec<OsString> {
        vec![
            "exec-child".into(),
            "--parent".into(),
            std::process::id().to_string().into(),
            "--".into(),
            self.binary.clone().into(),
            "-c".into(),
            bootstrap.into(),
        ]
    }

    /// Base id of the running Envoy; `None` without hot restart or before Envoy has chosen one.
    pub(super) fn base_id(&self) -> Option<u32> {
        let Takeover::HotRestart { base_id, .. } = &self.takeover else { return None };
        read_id(base_id).ok()?.trim().parse().ok()
    }

    /// Removes the shared memory and the base id file, which Envoy leaves behind. Called when no epoch is running.
    pub(super) fn remove_shared_state(&self) {
        if let Some(id) = self.base_id() {
            hot_restart::remove_shared_memory(id);
        }
        if let Takeover::HotRestart { base_id, .. } = &self.takeover {
            let _ = fs::remove_file(base_id);
        }
    }
}

fn read_id(path: &Path) -> Result<String> {
    fs::read_to_string(path)
        .with_context(|| format!("could not read the base id of the running Envoy from {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::{EnvoyFlags, Launch, Takeover};

    fn launch(takeover: Takeover) -> Launch {
        let fixed = vec!["--concurrency".to_owned(), "1".to_owned()];
        let drain = Duration::from_secs(45);
        Launch { agent: "agent".into(), binary: "/bin/envoy".into(), drain, fixed, takeover, start_timeout: drain }
    }

    fn line(launch: &Launch, epoch: u32) -> String {
        let words = launch.line(epoch, Path::new("b.json"), None).unwrap();
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        words[3..].join(" ")
    }

    #[test]
    fn hot_restart_is_disabled_without_takeover() {
        assert_eq!(
            line(&launch(Takeover::None), 0),
            "-- /bin/envoy -c b.json --drain-time-s 45 --drain-strategy immediate --disable-hot-restart --concurrency 1"
        );
    }

    #[test]
    fn later_epochs_use_the_base_id_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let base_id = folder.path().join("id");
        let takeover = Takeover::HotRestart { parent_shutdown: Duration::from_secs(60), base_id: base_id.clone() };
        let launch = launch(takeover);
        assert!(line(&launch, 0).contains(
            "--restart-epoch 0 --parent-shutdown-time-s 60 --skip-hot-restart-parent-stats --use-dynamic-base-id"
        ));
        assert!(launch.line(1, Path::new("b.json"), None).is_err());
        std::fs::write(&base_id, "17\n").unwrap();
        assert!(line(&launch, 1).contains(
            "--restart-epoch 1 --parent-shutdown-time-s 60 --skip-hot-restart-parent-stats --base-id 17 --concurrency"
        ));
    }

    #[test]
    fn arguments_are_in_upstreams_order() {
        let flags = EnvoyFlags {
            log_level: "info,upstream:debug,http:trace".to_owned(),
            component_log_level: "ignored:debug".to_owned(),
            skip_deprecated_logs: true,
            flush_min_size_kb: 8,
            concurrency: 2,
            node: Some(("c".to_owned(), "n".to_owned())),
            ..EnvoyFlags::default()
        };
        assert_eq!(
            flags.arguments().join(" "),
            "--local-address-ip-version v4 --file-flush-interval-msec 1000 --allow-unknown-static-fields \
             --file-flush-min-size-kb 8 -l info --component-log-level upstream:debug,http:trace \
             --skip-deprecated-logs --service-cluster c --service-node n --concurrency 2"
        );
    }
}
