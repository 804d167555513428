//! Flags that are removed before clap parses the command line: unknown flags, and flags without effect.
//! Upstream ignores unknown flags and old Helm charts pass some, so they are logged and are not an error.

use clap::{Arg, Command};
use tracing::{info, warn};

/// Flags of upstream's libraries, which all its programs accept. They have no effect here.
const OF_LIBRARIES: &[&str] = &[
    "ctrlz_address",
    "ctrlz_port",
    "log_caller",
    "log_rotate",
    "log_rotate_max_age",
    "log_rotate_max_backups",
    "log_rotate_max_size",
    "log_stacktrace_level",
    "log_target",
    "vklog",
];

/// Names of the flags that were removed from the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoredFlags {
    pub unknown: Vec<String>,
    pub without_effect: Vec<String>,
}

impl IgnoredFlags {
    /// Logs the flags. Called once the log is started.
    pub fn log(&self) {
        for flag in &self.unknown {
            warn!(flag, "ignoring unknown flag");
        }
        for flag in &self.without_effect {
            info!(flag, "ignoring flag without effect");
        }
    }
}

/// Removes ignored flags from the command line of one subcommand; returns the rest and what was removed. Other
/// subcommands are not changed. `-flag` counts as `--flag`, as in Go's flag package.
pub fn split_ignored(
    command: &Command,
    subcommand: &str,
    without_effect: &[&str],
    args: impl IntoIterator<Item = String>,
) -> (Vec<String>, IgnoredFlags) {
    let args: Vec<String> = args.into_iter().collect();
    let mut ignored_flags = IgnoredFlags::default();
    let known = command.find_subcommand(subcommand).filter(|_| args.get(1).is_some_and(|word| word == subcommand));
    let Some(known) = known else { return (args, ignored_flags) };
    let mut rest = args.into_iter().peekable();
    let mut kept: Vec<String> = rest.by_ref().take(2).collect();
    while let Some(arg) = rest.next() {
        let dashes = arg.len() - arg.trim_start_matches('-').len();
        let flag = arg[dashes..].to_owned();
        if dashes == 0 || flag.is_empty() {
            kept.push(arg);
            continue;
        }
        let (name, has_value) = flag.split_once('=').map_or((&*flag, false), |(name, _)| (name, true));
        if let Some(argument) = by_long_name(known, name) {
            kept.push(format!("--{flag}"));
            // The value of a known flag may begin with a dash.
            if !has_value && takes_next(argument) {
                kept.extend(rest.next());
            }
        } else if name == "help" || dashes == 1 && has_short_name(known, name) {
            kept.push(arg);
        } else {
            let IgnoredFlags { unknown, without_effect: accepted } = &mut ignored_flags;
            let is_accepted = without_effect.iter().chain(OF_LIBRARIES).any(|flag| *flag == name);
            let list = if is_accepted { accepted } else { unknown };
            list.push(name.to_owned());
            if !has_value {
                rest.next_if(|value| !value.starts_with('-'));
            }
        }
    }
    (kept, ignored_flags)
}

fn by_long_name<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let is_named = |arg: &&Arg| {
        arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    };
    command.get_arguments().find(is_named)
}

/// Also true for a flag with its value attached: `-nmesh`.
fn has_short_name(command: &Command, name: &str) -> bool {
    let first = name.chars().next();
    first == Some('h') || command.get_arguments().any(|arg| arg.get_short() == first)
}

fn takes_next(argument: &Arg) -> bool {
    !argument.is_require_equals_set() && argument.get_action().takes_values()
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction, Command};

    use super::{IgnoredFlags, split_ignored};

    fn program() -> Command {
        let switch = Arg::new("json").long("json").num_args(0..=1).require_equals(true).action(ArgAction::Set);
        let serve = Command::new("serve")
            .arg(Arg::new("domain").long("domain").alias("zone"))
            .arg(Arg::new("namespace").long("namespace").short('n'))
            .arg(Arg::new("role"))
            .arg(switch);
        Command::new("program").subcommand(serve).subcommand(Command::new("request"))
    }

    fn check(args: &[&str], kept: &[&str], unknown: &[&str], without_effect: &[&str]) {
        let strings = |list: &[&str]| list.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        let line = |args: &[&str]| [strings(&["program", "serve"]), strings(args)].concat();
        let ignored_flags = IgnoredFlags { unknown: strings(unknown), without_effect: strings(without_effect) };
        assert_eq!(split_ignored(&program(), "serve", &["old"], line(args)), (line(kept), ignored_flags), "{args:?}");
    }

    #[test]
    fn unknown_flags_are_removed_with_their_values() {
        check(&["--new=1", "--domain", "x"], &["--domain", "x"], &["new"], &[]);
        check(&["--new", "1", "--domain=x"], &["--domain=x"], &["new"], &[]);
        check(&["--new", "--domain=x", "role"], &["--domain=x", "role"], &["new"], &[]);
        check(&["-z", "--old=0", "--old", "60s", "--log_rotate"], &[], &["z"], &["old", "old", "log_rotate"]);
    }

    #[test]
    fn one_dash_counts_as_two() {
        check(&["-domain=x", "-n", "mesh", "-nmesh"], &["--domain=x", "-n", "mesh", "-nmesh"], &[], &[]);
    }

    #[test]
    fn values_of_known_flags_are_left_alone() {
        check(&["-zone", "--new", "--json", "--new"], &["--zone", "--new", "--json"], &["new"], &[]);
    }

    #[test]
    fn help_is_left_to_clap() {
        check(&["--help", "-h"], &["--help", "-h"], &[], &[]);
    }

    #[test]
    fn other_commands_are_not_touched() {
        let line = ["program", "request", "GET", "/debug/syncz", "--new"].map(String::from);
        assert_eq!(split_ignored(&program(), "serve", &[], line.clone()).0, line);
    }
}
