//! `pilot-agent istio-iptables`: iptables rules that redirect a pod's traffic to Envoy. `flags` parses the options, `rules`
//! builds the rules, `apply` installs them.

mod apply;
mod flags;
mod installed;
mod machine;
mod options;
mod rule;
mod rules;

use anyhow::Result;

use self::options::IptablesOptions;
use self::rules::IpFamily;

/// Runs the command with the arguments after its name.
pub fn run(arguments: &[String]) -> Result<()> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print!("{}", flags::help());
        return Ok(());
    }
    let options = flags::options(arguments, &|name| std::env::var(name).ok(), &machine::LocalMachine)?;
    if options.action.skip_apply {
        return Ok(());
    }
    if options.action.dry_run {
        print!("{}", text(&options));
        return Ok(());
    }
    apply::apply(&options)
}

/// The input of iptables-restore and, with IPv6, of ip6tables-restore.
fn text(options: &IptablesOptions) -> String {
    let of = |tool, family| format!("# {tool} --noflush\n{}", rule::restore(&rules::rules(options, family)));
    let v4 = of("iptables-restore", IpFamily::V4);
    if options.ipv6 { v4 + &of("ip6tables-restore", IpFamily::V6) } else { v4 }
}
