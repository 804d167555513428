//! The result of a run: faults against promises.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::faults::Fault;
use crate::promises::{Checked, Promise};

/// One round.
#[derive(Clone, Debug)]
pub struct Round {
    pub faults: Vec<Fault>,
    pub(super) begun: Duration,
    pub(super) ended: Duration,
    /// Time until all proxies had everything after the repair, or which did not.
    pub settled: Result<Duration, String>,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what: Vec<String> = self.faults.iter().map(|fault| format!("{:?}", fault)).collect();
        let length = (self.ended - self.begun).as_secs_f64();
        match &self.settled {
            Ok(after) => write!(f, "{length:5.1} s, settled after {:4.1} s: {}", after.as_secs_f64(), what.join(", ")),
            Err(late) => write!(f, "{length:5.1} s, NOT settled ({late}): {}", what.join(", ")),
        }
    }
}

#[derive(Debug)]
pub struct ChaosReport {
    pub seed: u64,
    pub rounds: Vec<Round>,
    pub checked: Checked,
    /// Responses that proxies received, and that they rejected.
    figures: (usize, usize),
}

impl ChaosReport {
    pub(super) fn new(seed: u64, rounds: Vec<Round>, checked: Checked, figures: (usize, usize)) -> ChaosReport {
        ChaosReport { seed, rounds, checked, figures }
    }

    /// Violations by fault and promise. Those after the last round have no fault.
    fn by_fault(&self) -> BTreeMap<Option<Fault>, BTreeMap<Promise, usize>> {
        let mut table: BTreeMap<Option<Fault>, BTreeMap<Promise, usize>> = BTreeMap::new();
        for fault in self.rounds.iter().flat_map(|round| &round.faults) {
            table.entry(Some(*fault)).or_default();
        }
        for violation in &self.checked.violations {
            let round = self.rounds.iter().find(|round| (round.begun..=round.ended).contains(&violation.at));
            let faults: Vec<Option<Fault>> = match round {
                Some(round) => round.faults.iter().copied().map(Some).collect(),
                None => vec![None],
            };
            for fault in faults {
                *table.entry(fault).or_default().entry(violation.promise).or_default() += 1;
            }
        }
        table
    }

    /// Panics with all violations, or with the rounds after which a proxy did not get everything.
    pub fn assert_kept(&self) {
        let late: Vec<String> = self.rounds.iter().filter(|r| r.settled.is_err()).map(Round::to_string).collect();
        assert!(late.is_empty(), "seed {}:\n{}", self.seed, late.join("\n"));
        let count = self.checked.violations.len();
        assert!(count == 0, "seed {}: {count} violations\n{}", self.seed, self.checked.report());
        for promise in Promise::ALL {
            let examined = self.checked.examined.get(&promise).copied().unwrap_or_default();
            assert!(examined > 0, "{promise} was never examined");
        }
    }
}

impl fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:62} rounds", "fault")?;
        Promise::ALL.iter().try_for_each(|promise| write!(f, " {promise}"))?;
        writeln!(f)?;
        for (fault, violations) in self.by_fault() {
            let name = fault.map_or("after the last round".to_owned(), |fault| {
                let (id, what) = fault.describe();
                format!("{id:7} {what}")
            });
            let rounds = self.rounds.iter().filter(|round| fault.is_some_and(|fault| round.faults.contains(&fault)));
            write!(f, "{name:62} {:6}", rounds.count())?;
            for promise in Promise::ALL {
                let width = promise.to_string().len();
                write!(f, " {:width$}", violations.get(&promise).copied().unwrap_or_default())?;
            }
            writeln!(f)?;
        }
        write!(f, "{:62} {:6}", "examined", self.rounds.len())?;
        for promise in Promise::ALL {
            let width = promise.to_string().len();
            write!(f, " {:width$}", self.checked.examined.get(&promise).copied().unwrap_or_default())?;
        }
        let (received, rejected) = self.figures;
        let slowest = self.rounds.iter().filter_map(|round| round.settled.as_ref().ok()).max();
        write!(
            f,
            "\nseed {}: {} rounds, {received} responses, {rejected} rejected, settled at most {:.1} s after repair, \
             {} violations",
            self.seed,
            self.rounds.len(),
            slowest.copied().unwrap_or_default().as_secs_f64(),
            self.checked.violations.len()
        )
    }
}
