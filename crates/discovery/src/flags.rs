//! Flags that clap must not see: those nobody knows, and those of upstream that have nothing to act on here.
//! Upstream ignores unknown flags, and charts of all ages pass some, so they are told and not fatal.

use std::collections::BTreeSet;

use clap::Command;

/// Flags of upstream that are accepted, with their value, and change nothing.
/// Those of registries move to `args` when their registry is served.
const WITHOUT_EFFECT: &[&str] = &[
    "a",
    "appNamespace",
    "cfConfig",
    "clusterAliases",
    "clusterRegistriesConfigMap",
    "clusterRegistriesDir",
    "clusterRegistriesNamespace",
    "cniNamespace",
    "ctrlz_address",
    "ctrlz_port",
    "disable-install-crds",
    "discovery_cache",
    "discoveryCache",
    "enableCRDs",
    "kubernetesApiBurst",
    "kubernetesApiQPS",
    "log_caller",
    "log_rotate",
    "log_rotate_max_age",
    "log_rotate_max_backups",
    "log_rotate_max_size",
    "log_stacktrace_level",
    "log_target",
    "mcpInitialConnWindowSize",
    "mcpInitialWindowSize",
    "mcpMaxMsgSize",
    "plugins",
    "port",
    "profile",
    "resync",
    "tls-cipher-suites",
    "tls-min-version",
    "trust-domain",
    "vklog",
    "webhookEndpoint",
];

/// Flags that were not given to clap, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAside {
    pub unknown: Vec<String>,
    pub without_effect: Vec<String>,
}

/// Takes out of a `discovery` command line what clap would not understand.
/// `-flag` counts as `--flag`, as Go's own flag package reads it.
pub(crate) fn sort(command: &Command, args: impl IntoIterator<Item = String>) -> (Vec<String>, SetAside) {
    let args: Vec<String> = args.into_iter().collect();
    let mut set_aside = SetAside::default();
    let Some(start) = args.iter().position(|arg| arg == "discovery").filter(|at| *at == 1) else {
        return (args, set_aside);
    };
    let Known { long, short } = known(command);
    let (mut kept, mut rest) = (args[..=start].to_vec(), args[start + 1..].iter().peekable());
    while let Some(arg) = rest.next() {
        let Some(flag) = arg.strip_prefix('-').filter(|flag| !flag.is_empty() && *flag != "-") else {
            kept.push(arg.clone());
            continue;
        };
        let flag = flag.strip_prefix('-').unwrap_or(flag);
        let name = flag.split_once('=').map_or(flag, |(name, _)| name);
        let is_short = !arg.starts_with("--") && name.chars().next().is_some_and(|c| short.contains(&c));
        if long.contains(name) {
            kept.push(format!("--{flag}"));
        } else if is_short {
            kept.push(arg.clone());
        } else {
            let list =
                if WITHOUT_EFFECT.contains(&name) { &mut set_aside.without_effect } else { &mut set_aside.unknown };
            list.push(name.to_owned());
            if !flag.contains('=') {
                rest.next_if(|value| !value.starts_with('-'));
            }
            continue;
        }
        // The value of a known flag may begin with a dash or look like anything.
        if !flag.contains('=') && takes_value(command, name) {
            kept.extend(rest.next().cloned());
        }
    }
    (kept, set_aside)
}

struct Known {
    long: BTreeSet<String>,
    short: BTreeSet<char>,
}

fn arguments(command: &Command) -> impl Iterator<Item = &clap::Arg> {
    command.find_subcommand("discovery").into_iter().flat_map(|discovery| discovery.get_arguments())
}

fn known(command: &Command) -> Known {
    let names = |arg: &clap::Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long().into_iter().chain(aliases).map(str::to_owned).collect::<Vec<_>>()
    };
    let long = arguments(command).flat_map(names).chain(["help".to_owned()]).collect();
    let short = arguments(command).filter_map(clap::Arg::get_short).chain(['h']).collect();
    Known { long, short }
}

fn takes_value(command: &Command, name: &str) -> bool {
    let is_named = |arg: &&clap::Arg| {
        arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    };
    let is_switch = |arg: &clap::Arg| arg.is_require_equals_set() || !arg.get_action().takes_values();
    arguments(command).find(is_named).is_some_and(|arg| !is_switch(arg))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{SetAside, sort};
    use crate::args::Cli;

    fn check(args: &[&str], kept: &[&str], unknown: &[&str], without_effect: &[&str]) {
        let line = ["pilot-discovery", "discovery"].iter().chain(args).map(|a| a.to_string());
        let expected: Vec<String> =
            ["pilot-discovery", "discovery"].iter().chain(kept).map(|a| a.to_string()).collect();
        let names = |list: &[&str]| list.iter().map(|n| n.to_string()).collect();
        let set_aside = SetAside { unknown: names(unknown), without_effect: names(without_effect) };
        assert_eq!(sort(&Cli::command(), line), (expected, set_aside), "{args:?}");
    }

    #[test]
    fn unknown_flags_are_set_aside_with_their_values() {
        check(&["--new=1", "--domain", "x"], &["--domain", "x"], &["new"], &[]);
        check(&["--new", "1", "--domain=x"], &["--domain=x"], &["new"], &[]);
        check(&["--new", "--domain=x"], &["--domain=x"], &["new"], &[]);
        check(&["-z", "--ctrlz_port=0", "--resync", "60s"], &[], &["z"], &["ctrlz_port", "resync"]);
    }

    #[test]
    fn a_single_dash_is_as_good_as_two() {
        check(&["-domain=x", "-n", "mesh", "-nmesh"], &["--domain=x", "-n", "mesh", "-nmesh"], &[], &[]);
    }

    #[test]
    fn values_of_known_flags_are_left_alone() {
        check(&["--domain", "--new", "--log_as_json", "--new"], &["--domain", "--new", "--log_as_json"], &["new"], &[]);
    }

    #[test]
    fn other_commands_are_not_touched() {
        let line = ["pilot-discovery", "request", "GET", "/debug/syncz", "--new"].map(String::from);
        assert_eq!(sort(&Cli::command(), line.clone()).0, line);
    }
}
