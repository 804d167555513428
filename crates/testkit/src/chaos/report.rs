//! The result of a run: faults against promises.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::faults::Fault;
use crate::promises::{Checked, Promise, Violation};

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

    /// Whether every promise was examined and kept, and every proxy had everything after each round; else what was not.
    pub fn kept(&self) -> Result<(), String> {
        let mut faults: Vec<String> =
            self.rounds.iter().filter(|round| round.settled.is_err()).map(Round::to_string).collect();
        faults.extend(self.checked.violations.iter().map(Violation::to_string));
        let is_examined = |promise: &Promise| self.checked.examined.get(promise).is_some_and(|count| *count > 0);
        let unexamined = Promise::ALL.into_iter().filter(|promise| !is_examined(promise));
        faults.extend(unexamined.map(|promise| format!("{promise} was never examined")));
        if faults.is_empty() { Ok(()) } else { Err(format!("seed {}:\n{}", self.seed, faults.join("\n"))) }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn report(settled: Result<Duration, String>, examined: &[Promise], broken: Option<Promise>) -> ChaosReport {
        let (begun, ended) = (Duration::ZERO, Duration::from_secs(3));
        let round = Round { faults: vec![Fault::Noise], begun, ended, settled };
        let violation = |promise| Violation { promise, at: begun, proxy: "one".into(), what: "planted".to_owned() };
        let checked = Checked {
            violations: broken.map(violation).into_iter().collect(),
            examined: examined.iter().map(|promise| (*promise, 1)).collect(),
        };
        ChaosReport::new(7, vec![round], checked, (1, 0))
    }

    #[test]
    fn a_run_passes_only_with_all_promises_examined_and_all_rounds_settled() {
        let settled = || Ok(Duration::from_secs(1));
        assert_eq!(report(settled(), &Promise::ALL, None).kept(), Ok(()));
        let late = report(Err("sidecar0-delta".to_owned()), &Promise::ALL, None).kept();
        assert!(late.as_ref().is_err_and(|what| what.contains("NOT settled (sidecar0-delta)")), "{late:?}");
        let broken = report(settled(), &Promise::ALL, Some(Promise::Order)).kept();
        assert!(broken.as_ref().is_err_and(|what| what.contains("order broken: planted")), "{broken:?}");
        let unexamined = report(settled(), &Promise::ALL[1..], None).kept();
        assert_eq!(unexamined, Err("seed 7:\nconvergence was never examined".to_owned()));
    }
}
