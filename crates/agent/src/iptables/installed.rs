//! Parses the installed rules from iptables-save. The kernel rewords rules, so only chains and rule counts are compared
//! here; `iptables -C` then checks each rule.

use std::collections::BTreeMap;

use super::rule::{IptablesArgs, PREFIX};

const TABLES: [&str; 4] = ["filter", "nat", "mangle", "raw"];

/// The number of rules in each of the agent's chains, and the rules in other chains that jump to them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InstalledRules {
    chains: BTreeMap<(String, String), usize>,
    /// Table, then chain and rule.
    jumps: Vec<(String, Vec<String>)>,
}

impl InstalledRules {
    /// Parses output of iptables-save or input of iptables-restore.
    pub(super) fn read(text: &str) -> InstalledRules {
        let mut state = InstalledRules::default();
        let mut table = "";
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name.trim();
            } else if TABLES.contains(&table) {
                state.line(table, line);
            }
        }
        state
    }

    fn line(&mut self, table: &str, line: &str) {
        let mut words = line.split_whitespace();
        let (operation, chain) = match words.next() {
            Some("-A" | "-I") => ("rule", words.next()),
            Some("-N") => ("chain", words.next()),
            Some(word) => ("chain", word.strip_prefix(':')),
            None => return,
        };
        let Some(chain) = chain else { return };
        if chain.starts_with(PREFIX) {
            let rules = self.chains.entry((table.to_owned(), chain.to_owned())).or_default();
            *rules += usize::from(operation == "rule");
        } else if operation == "rule" && line.split_whitespace().any(|word| word.starts_with(PREFIX)) {
            let rule = std::iter::once(chain).chain(words).map(str::to_owned);
            self.jumps.push((table.to_owned(), rule.collect()));
        }
    }

    /// True if no rule of the agent is installed.
    pub(super) fn is_clean(&self) -> bool {
        self.chains.is_empty() && self.jumps.is_empty()
    }

    /// Commands that remove all of the agent's rules and chains, whatever flags created them.
    pub(super) fn removals(&self) -> Vec<IptablesArgs> {
        let jump = |(table, rule): &(String, Vec<String>)| {
            let head = ["-t", table, "-D"].map(str::to_owned);
            head.into_iter().chain(rule.iter().cloned()).collect()
        };
        let mut commands: Vec<IptablesArgs> = self.jumps.iter().map(jump).collect();
        // Chains refer to each other, so all are flushed before the first is deleted.
        for operation in ["-F", "-X"] {
            let of = |(table, chain): &(String, String)| ["-t", table, operation, chain].map(str::to_owned).into();
            commands.extend(self.chains.keys().map(of));
        }
        commands
    }

    /// True if both have the same chains with the same number of rules.
    pub(super) fn has_chains_of(&self, other: &InstalledRules) -> bool {
        self.chains == other.chains
    }
}

#[cfg(test)]
mod tests {
    use super::InstalledRules;

    const EXPECTED: &str = "* nat\n-N ISTIO_OUTPUT\n-A OUTPUT -j ISTIO_OUTPUT\n-A ISTIO_OUTPUT -j RETURN\nCOMMIT\n";

    #[test]
    fn kernel_wording_compares_equal() {
        let saved = "# Generated\n*nat\n:OUTPUT ACCEPT [0:0]\n:ISTIO_OUTPUT - [0:0]\n-A OUTPUT -j ISTIO_OUTPUT\n\
                     -A ISTIO_OUTPUT -j RETURN\nCOMMIT\n";
        assert_eq!(InstalledRules::read(saved), InstalledRules::read(EXPECTED));
    }

    #[test]
    fn rules_of_other_programs_are_ignored() {
        let saved = "*nat\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -j KUBE_SERVICES\n-A OUTPUT -j RETURN\nCOMMIT\n";
        assert!(InstalledRules::read(saved).is_clean());
    }

    #[test]
    fn all_installed_rules_can_be_removed() {
        let saved = "*nat\n:ISTIO_A - [0:0]\n:ISTIO_B - [0:0]\n-A OUTPUT -p tcp -j ISTIO_A\n-A ISTIO_A -j ISTIO_B\n\
                     -A OUTPUT -j RETURN\nCOMMIT\n";
        let commands: Vec<String> =
            InstalledRules::read(saved).removals().iter().map(|command| command.join(" ")).collect();
        let expected = ["-D OUTPUT -p tcp -j ISTIO_A", "-F ISTIO_A", "-F ISTIO_B", "-X ISTIO_A", "-X ISTIO_B"];
        assert_eq!(commands, expected.map(|rest| format!("-t nat {rest}")));
        assert!(InstalledRules::read("*nat\n-A OUTPUT -j RETURN\n").removals().is_empty());
    }

    #[test]
    fn missing_rule_or_extra_chain_is_a_difference() {
        let expected = InstalledRules::read(EXPECTED);
        assert!(!expected.is_clean());
        assert!(!InstalledRules::read("*nat\n:ISTIO_OUTPUT - [0:0]\n").has_chains_of(&expected));
        assert!(!InstalledRules::read(&format!("{EXPECTED}*nat\n-N ISTIO_MORE\n")).has_chains_of(&expected));
    }
}
