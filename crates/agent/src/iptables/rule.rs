//! An iptables rule as a value, and its conversion to iptables-restore input and to iptables commands that check or
//! remove it. `rules` builds the rules.

use std::collections::{BTreeMap, BTreeSet};

/// Built-in chains and targets; all others are created and removed by the agent.
const BUILT_IN: [&str; 8] = ["INPUT", "OUTPUT", "FORWARD", "PREROUTING", "POSTROUTING", "ACCEPT", "RETURN", "DROP"];

/// Prefix of the chains that the agent creates.
pub(super) const PREFIX: &str = "ISTIO_";

/// A rule of a chain. The spec is everything after the chain name, unquoted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IptablesRule {
    pub(super) table: &'static str,
    pub(super) chain: &'static str,
    /// Insert position; `None` appends.
    pub(super) position: Option<u8>,
    pub(super) spec: String,
}

impl IptablesRule {
    fn line(&self) -> String {
        match self.position {
            Some(position) => format!("-I {} {position} {}", self.chain, self.spec),
            None => format!("-A {} {}", self.chain, self.spec),
        }
    }

    /// The target chain of a plain jump; `None` for targets with arguments.
    fn jump(&self) -> Option<&str> {
        let (before, target) = self.spec.rsplit_once(' ')?;
        (before == "-j" || before.ends_with(" -j")).then_some(target)
    }

    fn command(&self, operation: &str) -> IptablesArgs {
        let head = ["-t", self.table, operation, self.chain];
        head.into_iter().chain(self.spec.split(' ')).map(str::to_owned).collect()
    }
}

/// Arguments of one iptables command.
pub(super) type IptablesArgs = Vec<String>;

/// The input of `iptables-restore --noflush`: tables by name, chains before their rules.
pub(super) fn restore(rules: &[IptablesRule]) -> String {
    let mut tables: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (table, chain) in chains(rules) {
        tables.entry(table).or_default().push(format!("-N {chain}"));
    }
    for rule in rules {
        tables.entry(rule.table).or_default().push(rule.line());
    }
    tables.iter().map(|(table, lines)| format!("* {table}\n{}\nCOMMIT\n", lines.join("\n"))).collect()
}

/// The agent's chains in the order of their first rule, then chains that are only jump targets.
fn chains(rules: &[IptablesRule]) -> Vec<(&'static str, String)> {
    let own = rules.iter().map(|r| (r.table, r.chain.to_owned()));
    let targets = rules.iter().filter_map(|r| Some((r.table, r.jump()?.to_owned())));
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for (table, chain) in own.chain(targets) {
        if !BUILT_IN.contains(&chain.as_str()) && seen.insert((table, chain.clone())) {
            all.push((table, chain));
        }
    }
    all
}

/// Commands that succeed if the rules are installed.
pub(super) fn checks(rules: &[IptablesRule]) -> Vec<IptablesArgs> {
    rules.iter().map(|rule| rule.command("-C")).collect()
}

/// Commands that remove the rules, last one first, then flush and delete the agent's chains.
pub(super) fn removals(rules: &[IptablesRule]) -> Vec<IptablesArgs> {
    let leads_to_us =
        |r: &&IptablesRule| !r.chain.starts_with(PREFIX) || r.jump().is_some_and(|t| t.starts_with(PREFIX));
    let mut commands: Vec<IptablesArgs> = rules.iter().rev().filter(leads_to_us).map(|r| r.command("-D")).collect();
    for (table, chain) in chains(rules).into_iter().rev() {
        for operation in ["-F", "-X"] {
            commands.push(["-t", table, operation, &chain].map(str::to_owned).into());
        }
    }
    commands
}

/// Rules that block all traffic while old rules are replaced, so that no traffic bypasses Envoy.
pub(super) fn guardrails() -> Vec<IptablesRule> {
    let drop = |chain, protocol| IptablesRule {
        table: "filter",
        chain,
        position: Some(1),
        spec: format!("-p {protocol} -j DROP"),
    };
    ["INPUT", "FORWARD", "OUTPUT"].into_iter().flat_map(|chain| [drop(chain, "tcp"), drop(chain, "udp")]).collect()
}

/// Commands that install the rules one by one.
pub(super) fn insertions(rules: &[IptablesRule]) -> Vec<IptablesArgs> {
    let insertion = |rule: &IptablesRule| {
        let mut command: IptablesArgs = ["-t", rule.table].map(str::to_owned).into();
        command.extend(rule.line().split(' ').map(str::to_owned));
        command
    };
    rules.iter().map(insertion).collect()
}

#[cfg(test)]
mod tests {
    use super::{IptablesRule, checks, guardrails, insertions, removals, restore};

    fn rule(table: &'static str, chain: &'static str, position: Option<u8>, spec: &str) -> IptablesRule {
        IptablesRule { table, chain, position, spec: spec.to_owned() }
    }

    fn small() -> Vec<IptablesRule> {
        vec![
            rule("nat", "OUTPUT", None, "-j ISTIO_OUTPUT"),
            rule("nat", "ISTIO_OUTPUT", None, "-d 10.0.0.1/32 -j RETURN"),
            rule("nat", "ISTIO_OUTPUT", None, "-j ISTIO_EMPTY"),
            rule("mangle", "PREROUTING", Some(1), "-p tcp -j MARK --set-mark 7"),
        ]
    }

    #[test]
    fn tables_are_sorted_and_chains_precede_rules() {
        assert_eq!(
            restore(&small()),
            "* mangle\n-I PREROUTING 1 -p tcp -j MARK --set-mark 7\nCOMMIT\n\
             * nat\n-N ISTIO_OUTPUT\n-N ISTIO_EMPTY\n-A OUTPUT -j ISTIO_OUTPUT\n\
             -A ISTIO_OUTPUT -d 10.0.0.1/32 -j RETURN\n-A ISTIO_OUTPUT -j ISTIO_EMPTY\nCOMMIT\n"
        );
    }

    #[test]
    fn removal_deletes_jumps_before_chains() {
        let commands: Vec<String> = removals(&small()).iter().map(|c| c.join(" ")).collect();
        assert_eq!(
            commands,
            [
                "-t mangle -D PREROUTING -p tcp -j MARK --set-mark 7",
                "-t nat -D ISTIO_OUTPUT -j ISTIO_EMPTY",
                "-t nat -D OUTPUT -j ISTIO_OUTPUT",
                "-t nat -F ISTIO_EMPTY",
                "-t nat -X ISTIO_EMPTY",
                "-t nat -F ISTIO_OUTPUT",
                "-t nat -X ISTIO_OUTPUT",
            ]
        );
    }

    #[test]
    fn checks_have_no_position() {
        assert_eq!(checks(&small())[3].join(" "), "-t mangle -C PREROUTING -p tcp -j MARK --set-mark 7");
    }

    #[test]
    fn guardrails_block_all_traffic() {
        let commands = insertions(&guardrails());
        assert_eq!(commands.len(), 6);
        assert_eq!(commands[5].join(" "), "-t filter -I OUTPUT 1 -p udp -j DROP");
    }
}
