//! Flags of `proxy` that clap must not see: those nobody knows, and those that have nothing to act on here.
//! Upstream ignores unknown flags, and charts of all ages pass some, so they are told and not fatal.

use clap::{Arg, Command};

/// Flags of upstream's agent that are accepted, with their value, and change nothing.
const WITHOUT_EFFECT: &[&str] = &[
    "applicationPorts",
    "bootstrapv2",
    "connectTimeout",
    "controlPlaneBootstrap",
    "ctrlz_address",
    "ctrlz_port",
    "disableInternalTelemetry",
    "discoveryRefreshDelay",
    "dnsRefreshRate",
    "lightstepCacertPath",
    "lightstepSecure",
    "log_caller",
    "log_rotate",
    "log_rotate_max_age",
    "log_rotate_max_backups",
    "log_rotate_max_size",
    "log_stacktrace_level",
    "log_target",
    "mixerIdentity",
    "profiling",
    "statusPortTLS",
    "stsPort",
    "tokenManagerPlugin",
    "trust-domain",
    "vklog",
];

/// Flags that were not given to clap, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAside {
    pub unknown: Vec<String>,
    pub without_effect: Vec<String>,
}

/// Takes out of the command line of one subcommand what clap would not understand; others are left alone.
/// `-flag` counts as `--flag`, as Go's own flag package reads it.
pub(crate) fn sort(
    command: &Command,
    subcommand: &str,
    args: impl IntoIterator<Item = String>,
) -> (Vec<String>, SetAside) {
    let args: Vec<String> = args.into_iter().collect();
    let mut set_aside = SetAside::default();
    let known = command.find_subcommand(subcommand).filter(|_| args.get(1).is_some_and(|word| word == subcommand));
    let Some(known) = known else { return (args, set_aside) };
    let mut rest = args.into_iter().peekable();
    let mut kept: Vec<String> = rest.by_ref().take(2).collect();
    while let Some(arg) = rest.next() {
        let flag = arg.trim_start_matches('-');
        if flag.is_empty() || flag == arg {
            kept.push(arg);
            continue;
        }
        let (name, has_value) = flag.split_once('=').map_or((flag, false), |(name, _)| (name, true));
        match argument(known, name) {
            _ if ["help", "h"].contains(&name) => kept.push(arg),
            Some(argument) => {
                kept.push(format!("--{flag}"));
                // The value of a known flag may begin with a dash or look like anything.
                if !has_value && takes_next(argument) {
                    kept.extend(rest.next());
                }
            }
            None => {
                let SetAside { unknown, without_effect } = &mut set_aside;
                let list = if WITHOUT_EFFECT.contains(&name) { without_effect } else { unknown };
                list.push(name.to_owned());
                if !has_value {
                    rest.next_if(|value| !value.starts_with('-'));
                }
            }
        }
    }
    (kept, set_aside)
}

fn argument<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(name))
}

fn takes_next(argument: &Arg) -> bool {
    !argument.is_require_equals_set() && argument.get_action().takes_values()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{SetAside, sort};
    use crate::args::Cli;

    fn check(args: &[&str], kept: &[&str], unknown: &[&str], without_effect: &[&str]) {
        let strings = |list: &[&str]| list.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        let line = |args: &[&str]| [strings(&["pilot-agent", "proxy"]), strings(args)].concat();
        let set_aside = SetAside { unknown: strings(unknown), without_effect: strings(without_effect) };
        assert_eq!(sort(&Cli::command(), "proxy", line(args)), (line(kept), set_aside), "{args:?}");
    }

    #[test]
    fn unknown_flags_are_set_aside_with_their_values() {
        check(&["--new=1", "--domain", "x"], &["--domain", "x"], &["new"], &[]);
        check(&["--new", "1", "router"], &["router"], &["new"], &[]);
        check(&["--new", "--domain=x"], &["--domain=x"], &["new"], &[]);
        check(&["-z", "--stsPort=0", "--trust-domain", "x"], &[], &["z"], &["stsPort", "trust-domain"]);
    }

    #[test]
    fn values_of_known_flags_are_left_alone() {
        check(&["-domain", "--new", "--hotRestart", "--new"], &["--domain", "--new", "--hotRestart"], &["new"], &[]);
    }

    #[test]
    fn other_commands_are_not_touched() {
        let line = ["pilot-agent", "request", "GET", "stats", "--new"].map(String::from);
        assert_eq!(sort(&Cli::command(), "proxy", line.clone()).0, line);
    }
}
