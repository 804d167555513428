//! `pilot-agent istio-iptables`: iptables rules that lead a pod's traffic through Envoy.
//! `flags` reads what shall be captured, `rules` says it as rules, `apply` puts them into the kernel.

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

/// Runs the command with what follows its name; what it prints goes to standard output.
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

/// The input of iptables-restore, and of ip6tables-restore where it is used.
fn text(options: &IptablesOptions) -> String {
    let of = |tool, family| format!("# {tool} --noflush\n{}", rule::restore(&rules::rules(options, family)));
    let v4 = of("iptables-restore", IpFamily::V4);
    if options.ipv6 { v4 + &of("ip6tables-restore", IpFamily::V6) } else { v4 }
}
