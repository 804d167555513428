//! What to measure, from the command line.

use std::path::PathBuf;

use crate::parts::{PARTS, Part};

/// One kind of change, or the return of the fleet. Start and first configuration are always measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MeasuredPhase {
    Endpoint,
    Route,
    Churn,
    Reconnect,
}

const PHASES: [(&str, MeasuredPhase); 4] = [
    ("endpoint", MeasuredPhase::Endpoint),
    ("route", MeasuredPhase::Route),
    ("churn", MeasuredPhase::Churn),
    ("reconnect", MeasuredPhase::Reconnect),
];

/// What to measure.
pub(crate) struct Options {
    pub(crate) services: usize,
    pub(crate) sidecars: usize,
    pub(crate) rounds: usize,
    pub(crate) minutes: f64,
    /// Sizes of a sweep instead of the defaults.
    pub(crate) sizes: Option<Vec<usize>>,
    phases: Vec<MeasuredPhase>,
    /// The parts whose pages are written; none to print one comparison.
    pub(crate) parts: Vec<&'static Part>,
    /// The folder of the pages.
    pub(crate) out: PathBuf,
    pub(crate) quick: bool,
    /// Fail if istiod's binary is missing.
    pub(crate) istiod: bool,
    pub(crate) binary: PathBuf,
}

impl Options {
    pub(crate) fn parse() -> Options {
        let arguments = Arguments(std::env::args().skip(1).collect());
        arguments.check();
        let quick = arguments.has("--quick");
        let (services, sidecars, rounds) = if quick { (300, 50, 5) } else { (1000, 200, 20) };
        let parts = match arguments.list("--part") {
            Some(names) => names.iter().map(|name| part(name)).collect(),
            None if arguments.has("--all") => PARTS.iter().collect(),
            None => Vec::new(),
        };
        let phases = arguments.list("--phases").map(|names| names.iter().map(|name| phase(name)).collect());
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/performance");
        let binary = std::env::var_os("PILOTAGE_DISCOVERY").map(PathBuf::from);
        Options {
            services: arguments.number("--services", services),
            sidecars: arguments.number("--sidecars", sidecars),
            rounds: arguments.number("--rounds", rounds),
            minutes: arguments.number("--minutes", 10.0),
            sizes: arguments.list("--sizes").map(|sizes| sizes.iter().map(|size| parsed("--sizes", size)).collect()),
            phases: phases.unwrap_or_else(|| PHASES.iter().map(|(_, phase)| *phase).collect()),
            parts,
            out: arguments.value("--out").unwrap_or(docs).into(),
            quick,
            istiod: arguments.has("--istiod"),
            binary: binary.unwrap_or_else(|| env!("CARGO_BIN_EXE_pilot-discovery").into()),
        }
    }

    pub(crate) fn measures(&self, phase: MeasuredPhase) -> bool {
        self.phases.contains(&phase)
    }
}

struct Arguments(Vec<String>);

impl Arguments {
    /// Fails on an unknown flag: a long measurement of the wrong thing is worse. Cargo adds `--bench`.
    fn check(&self) {
        const FLAGS: [&str; 12] = [
            "--services",
            "--sidecars",
            "--rounds",
            "--minutes",
            "--sizes",
            "--phases",
            "--part",
            "--all",
            "--out",
            "--quick",
            "--istiod",
            "--bench",
        ];
        let unknown = self.0.iter().find(|text| text.starts_with("--") && !FLAGS.contains(&text.as_str()));
        assert!(unknown.is_none(), "unknown flag {unknown:?}; known are {FLAGS:?}");
    }

    fn has(&self, flag: &str) -> bool {
        self.0.iter().any(|argument| argument == flag)
    }

    fn value(&self, flag: &str) -> Option<&str> {
        let at = self.0.iter().position(|argument| argument == flag)?;
        Some(self.0.get(at + 1).unwrap_or_else(|| panic!("{flag} needs a value")))
    }

    fn list(&self, flag: &str) -> Option<Vec<&str>> {
        Some(self.value(flag)?.split(',').collect())
    }

    fn number<T: std::str::FromStr>(&self, flag: &str, default: T) -> T {
        self.value(flag).map_or(default, |text| parsed(flag, text))
    }
}

fn parsed<T: std::str::FromStr>(flag: &str, text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{flag}: {text} is no number"))
}

fn part(name: &str) -> &'static Part {
    let known = || PARTS.iter().map(|part| part.name).collect::<Vec<_>>();
    PARTS.iter().find(|part| part.name == name).unwrap_or_else(|| panic!("no part {name}; known are {:?}", known()))
}

fn phase(name: &str) -> MeasuredPhase {
    let found = PHASES.iter().find(|(known, _)| *known == name).map(|(_, phase)| *phase);
    found.unwrap_or_else(|| panic!("no phase {name}; known are {:?}", PHASES.map(|(name, _)| name)))
}
