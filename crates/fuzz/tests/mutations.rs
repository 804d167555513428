//! Random changes of the corpora, without an engine and without instrumentation: a quick search after a change, and for
//! systems without libFuzzer. `FUZZ_SECONDS=60 cargo test --workspace --test mutations -- --ignored --nocapture`

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;

/// For one input.
const TIME: Duration = Duration::from_secs(10);
const LONGEST: usize = 8192;
const WORDS: &[&[u8]] = &[
    b"null",
    b"true",
    b"-1",
    b"0",
    b"9223372036854775808",
    b"1e400",
    b"\"\"",
    b"[]",
    b"{}",
    b"*",
    b".",
    b"/",
    b"~",
    b":",
    b"\n---\n",
    b"\0",
    b"\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x10",
    b"[[[[[[[[",
    b"{\"a\":{\"a\":",
    b"&a ",
    b"*a",
    b"<<: ",
    "é".as_bytes(),
    b"{{",
    b"}}",
    b"%00",
    b"..",
];

static PANICS: AtomicUsize = AtomicUsize::new(0);

fn changed(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut data = corpus[rng.usize(..corpus.len())].clone();
    for _ in 0..rng.usize(1..6) {
        let at = rng.usize(..=data.len());
        let end = (at + rng.usize(..=32)).min(data.len());
        match rng.u8(..8) {
            0 if at < data.len() => data[at] ^= 1 << rng.u8(..8),
            1 if at < data.len() => data[at] = rng.u8(..),
            2 => drop(data.drain(at..end)),
            3 => drop(data.splice(at..at, WORDS[rng.usize(..WORDS.len())].iter().copied())),
            4 => {
                let copy = data[at..end].repeat(rng.usize(1..20));
                drop(data.splice(at..at, copy));
            }
            5 => {
                let other = &corpus[rng.usize(..corpus.len())];
                let from = rng.usize(..=other.len());
                let part = &other[from..(from + rng.usize(..=256)).min(other.len())];
                drop(data.splice(at..end, part.iter().copied()));
            }
            6 => drop(data.splice(at..end, WORDS[rng.usize(..WORDS.len())].iter().copied())),
            _ => data.truncate(at),
        }
    }
    data.truncate(LONGEST);
    data
}

#[test]
#[ignore = "takes FUZZ_SECONDS for each target"]
fn random_changes_of_the_corpora_do_no_harm() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (limit, seed) = (Duration::from_secs(number("FUZZ_SECONDS", 10)), number("FUZZ_SEED", fastrand::u64(..)));
    let only = std::env::var("FUZZ_TARGET").unwrap_or_default();
    println!("FUZZ_SEED={seed}");
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(panic);
    }));
    let mut findings = Vec::new();
    for target in fuzz::TARGETS.iter().filter(|target| only.is_empty() || target.name == only) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        let files = std::fs::read_dir(folder).unwrap();
        let mut corpus: Vec<Vec<u8>> = files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
        corpus.sort();
        let (mut rng, begun, mut runs, mut slowest) = (Rng::with_seed(seed), Instant::now(), 0_u64, Duration::ZERO);
        while begun.elapsed() < limit {
            let data = changed(&corpus, &mut rng);
            let (at, panics) = (Instant::now(), PANICS.load(Ordering::Relaxed));
            let _ = std::panic::catch_unwind(|| (target.run)(&data));
            let took = at.elapsed();
            (runs, slowest) = (runs + 1, slowest.max(took));
            if PANICS.load(Ordering::Relaxed) > panics || took > TIME {
                let file = std::env::temp_dir().join(format!("{}-{seed}-{runs}", target.name));
                std::fs::write(&file, &data).unwrap();
                findings.push(format!("{} ({took:?})", file.display()));
                if findings.len() > 20 {
                    break;
                }
            }
        }
        println!("{:26} {runs:>9} executions, slowest {slowest:?}", target.name);
    }
    assert!(findings.is_empty(), "{findings:#?}");
}
