//! The metrics of both servers, from the calls that register them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::metric_facts::{MetricFacts, facts};
use super::source::{Literal, literals, read};
use super::{head, row};

/// The files that register metrics of a program.
struct MetricFiles {
    program: &'static str,
    files: &'static [&'static str],
    /// What names begin with, as they are written there.
    starts: &'static [&'static str],
    /// What names begin with in addition.
    prefix: &'static str,
}

const GAPS: &str = "crates/discovery/src/http/debug/status.rs";
const OF_REQUESTS: &str = "pilot-agent --requestMetrics";

/// A metric as it is described.
struct DescribedMetric {
    /// `None` where the code does not show them.
    facts: Option<MetricFacts>,
    help: String,
}

const METRIC_FILES: &[MetricFiles] = &[
    MetricFiles {
        program: "pilot-discovery",
        files: &[
            "crates/discovery/src/metrics.rs",
            "crates/discovery/src/http/metrics.rs",
            "crates/discovery/src/http/process.rs",
            GAPS,
            "crates/discovery/src/trust/metrics.rs",
            "crates/discovery/src/registration/metrics.rs",
            "crates/discovery/src/webhook/metrics.rs",
        ],
        starts: &[
            "pilot_",
            "pilotage_",
            "istiod_",
            "istio_build",
            "process_",
            "citadel_server_",
            "endpoint_no_pod",
            "galley_",
            "sidecar_injection_",
            "webhook_patch_",
            "auto_registration_",
        ],
        prefix: "",
    },
    MetricFiles {
        program: "pilot-agent",
        files: &["crates/agent/src/metrics.rs"],
        starts: &[""],
        prefix: "istio_agent_",
    },
    MetricFiles {
        program: OF_REQUESTS,
        files: &["crates/agent/src/requests/series.rs"],
        starts: &["istio_"],
        prefix: "",
    },
];

pub(super) fn body(root: &Path) -> Result<String> {
    let mut text = "Both servers write Prometheus' text format: `pilot-discovery` at `/metrics` on the port of \
                    `--monitoringAddr` (15014), `pilot-agent` at\n`/stats/prometheus` on 15020, together with Envoy's and \
                    the application's. Names are upstream's where upstream has the metric. Histograms have\nthe label `le` too. \
                    Labels of requests are described in [monitoring.md](../monitoring.md#requests-of-the-mesh).\n"
        .to_owned();
    for MetricFiles { program, files, starts, prefix } in METRIC_FILES {
        let mut metrics = BTreeMap::new();
        for file in *files {
            let source = read(root, file)?;
            let code = &source[..source.find("#[cfg(test)]\nmod tests").unwrap_or(source.len())];
            metrics.extend(of_file(code, starts));
        }
        // A table of functions that count; `http/metrics.rs` prints gauges of them.
        let gaps = read(root, GAPS)?;
        if metrics.is_empty() {
            bail!("no metric of {program}");
        }
        text += &format!("\n## {program}\n\n{}", head(&["metric", "type", "labels", "meaning"]));
        for (name, DescribedMetric { facts, help }) in &metrics {
            let gauge = || gaps.contains(&format!("\"{name}\"")).then_some(("gauge", Vec::new()));
            let facts = facts.as_ref().map(|facts| (facts.kind, facts.labels.clone())).or_else(gauge);
            let (kind, labels) = facts.with_context(|| format!("could not find the type of metric {name}"))?;
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let labels = if *program == OF_REQUESTS { "upstream's".to_owned() } else { labels.join(", ") };
            text += &row(&[&format!("`{prefix}{name}`"), kind, &labels, help]);
        }
    }
    Ok(text)
}

/// Name and help. The help follows the name, or is bound to a variable before.
fn of_file(text: &str, prefixes: &[&str]) -> BTreeMap<String, DescribedMetric> {
    let literals = literals(text);
    let mut metrics = BTreeMap::new();
    for (at, literal) in literals.iter().enumerate().filter(|(_, literal)| is_name(text, literal, prefixes)) {
        let direct = literals
            .get(at + 1)
            .filter(|next| is_help(next) && text[literal.end..next.start].trim_matches([',', ' ', '\n']).is_empty());
        let after = text[literal.end..].trim_start_matches([',', ' ', '\n']);
        let variable: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let is_variable = !variable.is_empty() && after[variable.len()..].starts_with([',', ')']);
        let is_bound = |help: &&Literal| is_help(help) && text[..help.start].trim_end().ends_with('=');
        // `let help = "…"; let name = "…";`
        let is_named = text[..literal.start].trim_end().ends_with("name =");
        let before = at.checked_sub(1).and_then(|at| literals.get(at)).filter(|help| is_named && is_bound(help));
        let help = match is_variable {
            true => literals[..at].iter().rev().find(is_bound),
            false => before.or(direct).or_else(|| literals[at + 1..].iter().find(|help| is_help(help))),
        };
        if let Some(help) = help {
            // Upstream has one metric of rejections for each type.
            let name = literal.text.replace("{}", "<type>");
            let described = DescribedMetric { facts: facts(text, literal), help: help.text.replace("{}", "<type>") };
            metrics.entry(name).or_insert(described);
        }
    }
    metrics
}

fn is_help(literal: &Literal) -> bool {
    literal.text.contains(' ')
}

fn is_name(text: &str, literal: &Literal, prefixes: &[&str]) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_{}".contains(c);
    let is_plain = literal.text.len() > 3 && literal.text.contains('_') && literal.text.chars().all(fits);
    let before = text[..literal.start].trim_end();
    let is_argument = before.ends_with('(') || before.ends_with(',') || before.ends_with("name =");
    let starts = prefixes.iter().any(|prefix| literal.text.starts_with(prefix));
    is_plain && is_argument && starts
}

#[cfg(test)]
mod tests {
    use super::of_file;

    #[test]
    fn help_is_the_next_argument_or_a_variable() {
        let text = "f(\"pilot_a_b\", \"A b\", x);\nlet help = \"C d\";\nlet no = (\"held\", \"no\");\n\
                    f(\"pilot_c\", help, no);\nlet (n, h) = (format!(\"pilot_{}_e\", short(kind)), format!(\"E {}\", kind));";
        let expected = [("pilot_<type>_e", "E <type>"), ("pilot_a_b", "A b"), ("pilot_c", "C d")];
        let found: Vec<(String, String)> =
            of_file(text, &["pilot_"]).into_iter().map(|(name, metric)| (name, metric.help)).collect();
        assert_eq!(found, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }
}
