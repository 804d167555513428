//! `cargo xtask fuzz`: searches for inputs that make a target of the crate `fuzz` panic, hang or take much memory.
//!
//! The engine is libFuzzer with the coverage instrumentation of LLVM, which stable Rust can switch on for crates of the
//! workspace (`crates/fuzz/rustc-with-coverage`). Dependencies are those of a debug build, without instrumentation.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Seconds for one input, and MiB of memory, beyond which it is a finding.
const TIMEOUT: u32 = 10;
const MEMORY: u32 = 1024;
/// Inputs in the corpus of a target that `--keep` fills up to, and bytes of the longest one.
const MOST_KEPT: usize = 60;
const LONGEST_KEPT: u64 = 2048;

struct FuzzOptions<'a> {
    seconds: u32,
    keeps: bool,
    /// All if empty.
    targets: Vec<&'a str>,
}

impl<'a> FuzzOptions<'a> {
    fn parse(words: &[&'a str]) -> Result<FuzzOptions<'a>> {
        let mut options = FuzzOptions { seconds: 60, keeps: false, targets: Vec::new() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--keep" => options.keeps = true,
                "--seconds" => {
                    let value = words.next().context("--seconds needs a number")?;
                    options.seconds = value.parse().with_context(|| format!("could not read --seconds {value}"))?;
                }
                name if name.starts_with('-') => bail!("unknown option {name}"),
                name => options.targets.push(name),
            }
        }
        Ok(options)
    }
}

/// Where a target's inputs are.
struct Folders {
    /// In the repository.
    corpus: PathBuf,
    /// Inputs found by earlier runs.
    found: PathBuf,
    findings: PathBuf,
}

pub(crate) fn run(root: &Path, words: &[&str]) -> Result<()> {
    let options = FuzzOptions::parse(words)?;
    let corpus = root.join("crates/fuzz/corpus");
    let mut all = Vec::new();
    for entry in fs::read_dir(&corpus).with_context(|| format!("could not read {}", corpus.display()))? {
        all.push(entry?.file_name().to_string_lossy().into_owned());
    }
    all.sort();
    if let Some(unknown) = options.targets.iter().find(|name| !all.iter().any(|known| known == *name)) {
        bail!("unknown target {unknown}; there are {}", all.join(", "));
    }
    let program = build(root)?;
    println!("{:26} {:>12} {:>8} {:>9} {:>9}  result", "target", "executions", "seconds", "edges", "peak MiB");
    let mut has_finding = false;
    for name in all.iter().filter(|name| options.targets.is_empty() || options.targets.contains(&name.as_str())) {
        let folders = Folders {
            corpus: corpus.join(name),
            found: root.join("target/fuzz/found").join(name),
            findings: root.join("target/fuzz/findings"),
        };
        fs::create_dir_all(&folders.found)?;
        fs::create_dir_all(&folders.findings)?;
        has_finding |= !search(&program, name, &folders, options.seconds)?;
        if options.keeps {
            keep(&program, name, &folders)?;
        }
    }
    if has_finding {
        bail!("inputs that did harm are in target/fuzz/findings");
    }
    Ok(())
}

/// Builds the targets with instrumentation. Features are those of all crates, so that dependencies are not built again.
fn build(root: &Path) -> Result<PathBuf> {
    let built = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["test", "--workspace", "--locked", "--no-run", "--features=fuzz/engine", "--test=engine"])
        .args(["--message-format=json-render-diagnostics"])
        .env("RUSTC_WORKSPACE_WRAPPER", root.join("crates/fuzz/rustc-with-coverage"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("could not run cargo")?;
    if !built.status.success() {
        bail!("could not build the fuzz targets");
    }
    let messages = String::from_utf8_lossy(&built.stdout).into_owned();
    let found = messages.lines().find_map(executable);
    found.map(PathBuf::from).context("cargo built no fuzz target")
}

/// The value of `"executable"` in a message of cargo about the engine.
fn executable(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("\"executable\":\"").filter(|_| message.contains("\"name\":\"engine\""))?;
    rest.split_once('"').map(|(path, _)| path)
}

/// Runs the engine for a target and prints a row. Returns false if there is a finding.
fn search(program: &Path, name: &str, folders: &Folders, seconds: u32) -> Result<bool> {
    let log_file = folders.findings.join(format!("{name}.log"));
    let log = fs::File::create(&log_file)?;
    let status = engine(program, name)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/{name}-", folders.findings.display()))
        .args(["-print_final_stats=1", "-reload=0"])
        .args([&folders.found, &folders.corpus])
        .stdout(Stdio::null())
        .stderr(log)
        .status()
        .context("could not run the fuzz target")?;
    let log = String::from_utf8_lossy(&fs::read(&log_file)?).into_owned();
    let stats = final_stats(&log);
    let stat = |key: &str| stats.get(key).copied().unwrap_or(0);
    let (runs, rate) = (stat("number_of_executed_units"), stat("average_exec_per_sec"));
    let result = match status.success() {
        true => "ok".to_owned(),
        false => format!("FINDING, see {}", log_file.display()),
    };
    let took = runs.checked_div(rate).unwrap_or(u64::from(seconds));
    println!("{name:26} {runs:>12} {took:>8} {:>9} {:>9}  {result}", edges(&log), stat("peak_rss_mb"));
    Ok(status.success())
}

/// Adds found inputs that reach code which the corpus does not, the shortest first.
fn keep(program: &Path, name: &str, folders: &Folders) -> Result<()> {
    let merged = folders.found.with_extension("merged");
    let _ = fs::remove_dir_all(&merged);
    fs::create_dir_all(&merged)?;
    let status = engine(program, name)
        .arg("-merge=1")
        .args([&merged, &folders.corpus, &folders.found])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("could not run the fuzz target")?;
    if !status.success() {
        bail!("could not merge the corpus of {name}");
    }
    let known = contents(&folders.corpus)?;
    let mut new: Vec<(u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(&merged)? {
        let path = entry?.path();
        let size = fs::metadata(&path)?.len();
        if size <= LONGEST_KEPT && !known.contains(&fs::read(&path)?) {
            new.push((size, path));
        }
    }
    new.sort();
    for (_, path) in new.iter().take(MOST_KEPT.saturating_sub(known.len())) {
        let file = path.file_name().context("a file has a name")?;
        fs::copy(path, folders.corpus.join(file))?;
    }
    Ok(fs::remove_dir_all(&merged)?)
}

fn contents(folder: &Path) -> Result<Vec<Vec<u8>>> {
    fs::read_dir(folder)?.map(|entry| Ok(fs::read(entry?.path())?)).collect()
}

fn engine(program: &Path, name: &str) -> Command {
    let mut command = Command::new(program);
    command.env("FUZZ_TARGET", name).env("RUST_BACKTRACE", "1").stdin(Stdio::null());
    command.args([format!("-timeout={TIMEOUT}"), format!("-rss_limit_mb={MEMORY}"), "-max_len=8192".to_owned()]);
    command
}

/// Lines such as `stat::number_of_executed_units: 1234`.
fn final_stats(log: &str) -> BTreeMap<&str, u64> {
    let lines = log.lines().filter_map(|line| line.strip_prefix("stat::")?.split_once(':'));
    lines.filter_map(|(name, value)| Some((name, value.trim().parse().ok()?))).collect()
}

/// The last number after `cov:`.
fn edges(log: &str) -> u64 {
    let last = log.lines().rev().find_map(|line| line.split_once("cov: "));
    last.and_then(|(_, rest)| rest.split(' ').next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{FuzzOptions, edges, executable, final_stats};

    #[test]
    fn options_are_read() {
        let options = FuzzOptions::parse(&["--seconds", "5", "token", "--keep"]).unwrap();
        assert_eq!((options.seconds, options.keeps, options.targets), (5, true, vec!["token"]));
        assert!(FuzzOptions::parse(&["--seconds", "many"]).is_err());
        assert!(FuzzOptions::parse(&["--odd"]).is_err());
    }

    #[test]
    fn the_program_is_found_in_cargos_messages() {
        let of = |name: &str| format!(r#"{{"target":{{"kind":["test"],"name":"{name}"}},"executable":"/t/{name}-1"}}"#);
        assert_eq!(executable(&of("engine")), Some("/t/engine-1"));
        assert_eq!(executable(&of("corpora")), None);
        assert_eq!(executable(r#"{"target":{"name":"engine"},"executable":null}"#), None);
    }

    #[test]
    fn the_log_of_the_engine_is_read() {
        let log = "#2\tINITED cov: 10 ft: 11\n#8\tDONE   cov: 24 ft: 30 corp: 4/9b\nstat::peak_rss_mb:   37\n";
        assert_eq!(edges(log), 24);
        assert_eq!(final_stats(log)["peak_rss_mb"], 37);
    }
}
