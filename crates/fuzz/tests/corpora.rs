//! Replays the corpora of all fuzz targets: no input may panic, take long, or need much memory.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use model::config::Kind;

/// For one input, on a busy machine and without optimization.
const TIME: Duration = Duration::from_secs(120);
/// The largest resident memory of this process.
const MEMORY_KIB: u64 = 1 << 20;

static PANICS: AtomicUsize = AtomicUsize::new(0);

fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found: Vec<PathBuf> = read.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

/// A new kind needs a separate input: the search finds no names of kinds.
#[test]
fn each_kind_of_configuration_has_an_input() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/config_kinds");
    let first_line = |path: PathBuf| {
        let text = String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
        text.lines().next().unwrap_or_default().to_owned()
    };
    let with_input: BTreeSet<String> = entries(&corpus).into_iter().map(first_line).collect();
    let name = |kind: &Kind| format!("{}.{}", kind.plural(), kind.group());
    let missing: Vec<String> = Kind::ALL.iter().map(name).filter(|name| !with_input.contains(name)).collect();
    assert_eq!(missing, [""; 0], "kinds without a file in {}", corpus.display());
}

#[test]
fn no_input_of_the_corpora_does_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let folders: BTreeSet<String> = entries(&corpus).iter().map(name).collect();
    let targets: BTreeSet<String> = fuzz::TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(folders, targets, "each target has a corpus");
    // Tasks of a server panic without failing the test.
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(panic);
    }));
    let mut inputs = 0;
    for target in fuzz::TARGETS {
        for file in entries(&corpus.join(target.name)) {
            let (data, begun) = (std::fs::read(&file).unwrap(), Instant::now());
            (target.run)(&data);
            let took = begun.elapsed();
            assert!(took < TIME, "{} took {took:?}", file.display());
            assert_eq!(PANICS.load(Ordering::Relaxed), 0, "{}", file.display());
            inputs += 1;
        }
    }
    assert!(inputs >= 5 * fuzz::TARGETS.len(), "{inputs} inputs");
    assert!(peak_kib() < MEMORY_KIB, "{} KiB", peak_kib());
}
