//! `pilotctl workload group create`: prints a WorkloadGroup from flags.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result, bail};
use clap::Args;
use model::config::parse::documents;
use model::config::validate::validate;
use model::problem::Severity;
use serde_json::{Map, Value, json};

#[derive(Args)]
pub(crate) struct GroupOptions {
    /// Name of the group
    #[arg(long)]
    name: String,

    /// Namespace of the group
    #[arg(short, long)]
    namespace: String,

    /// Labels of its workloads: key=value, several with commas
    #[arg(short, long, value_delimiter = ',')]
    labels: Vec<String>,

    /// Annotations of its workloads: key=value, several with commas
    #[arg(short, long, value_delimiter = ',')]
    annotations: Vec<String>,

    /// Ports of its workloads: name=number, several with commas
    #[arg(short, long, value_delimiter = ',')]
    ports: Vec<String>,

    /// Service account of its workloads
    #[arg(short, long = "serviceAccount", default_value = "default")]
    service_account: String,

    /// Network of its workloads
    #[arg(long, default_value = "")]
    network: String,

    /// Locality of its workloads: region/zone/subzone
    #[arg(long, default_value = "")]
    locality: String,

    /// Share of traffic that each workload gets
    #[arg(short, long, default_value_t = 0)]
    weight: u32,
}

pub(super) fn run(options: &GroupOptions) -> Result<()> {
    let group = group(options)?;
    let text = serde_saphyr::to_string(&group).context("could not print the WorkloadGroup")?;
    std::io::stdout().write_all(text.as_bytes()).context("could not write to standard output")
}

fn group(options: &GroupOptions) -> Result<Value> {
    let texts = |flag: &str, given: &[String]| -> Result<Map<String, Value>> {
        Ok(pairs(flag, given)?.into_iter().map(|(key, value)| (key, json!(value))).collect())
    };
    let mut template = Map::new();
    let mut ports = Map::new();
    for (name, port) in pairs("--ports", &options.ports)? {
        let number: u16 = port.parse().with_context(|| format!("could not use --ports {name}={port}: not a port"))?;
        ports.insert(name, json!(number));
    }
    if !ports.is_empty() {
        template.insert("ports".to_owned(), ports.into());
    }
    for (key, value) in
        [("network", &options.network), ("locality", &options.locality), ("serviceAccount", &options.service_account)]
    {
        if !value.is_empty() {
            template.insert(key.to_owned(), json!(value));
        }
    }
    if options.weight > 0 {
        template.insert("weight".to_owned(), json!(options.weight));
    }
    let mut metadata = Map::new();
    for (key, values) in [
        ("annotations", texts("--annotations", &options.annotations)?),
        ("labels", texts("--labels", &options.labels)?),
    ] {
        if !values.is_empty() {
            metadata.insert(key.to_owned(), values.into());
        }
    }
    let group = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "WorkloadGroup",
        "metadata": {"name": options.name, "namespace": options.namespace},
        "spec": {"metadata": metadata, "template": template},
    });
    check(&group)?;
    Ok(group)
}

/// Fails with everything that is wrong with the group.
fn check(group: &Value) -> Result<()> {
    let parsed = documents(&group.to_string(), "");
    let found = parsed.objects.iter().flat_map(validate);
    let errors = parsed.problems.iter().cloned().chain(found).filter(|problem| problem.severity == Severity::Error);
    let errors: Vec<String> = errors.map(|problem| problem.message.to_string()).collect();
    if errors.is_empty() { Ok(()) } else { bail!("could not make the WorkloadGroup: {}", errors.join("; ")) }
}

fn pairs(flag: &str, given: &[String]) -> Result<BTreeMap<String, String>> {
    let pair = |text: &String| {
        let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty())?;
        Some((key.trim().to_owned(), value.trim().to_owned()))
    };
    given
        .iter()
        .map(|text| pair(text).with_context(|| format!("could not use {flag} {text}: expected key=value")))
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::{GroupOptions, group};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: GroupOptions,
    }

    fn made(line: &str) -> Result<serde_json::Value, String> {
        let line = Line::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        group(&line.options).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn flags_become_fields() {
        let found = made(
            "x --name cart --namespace shop --labels app=cart,tier=gold -p http=8080,grpc=9000 -s keeper \
             --network n1 --locality a/b --weight 5",
        );
        let spec = json!({
            "metadata": {"labels": {"app": "cart", "tier": "gold"}},
            "template": {"ports": {"grpc": 9000, "http": 8080}, "network": "n1", "locality": "a/b",
                "serviceAccount": "keeper", "weight": 5},
        });
        assert_eq!(found.unwrap()["spec"], spec);
        assert_eq!(made("x --name a -n b").unwrap()["spec"]["template"], json!({"serviceAccount": "default"}));
    }

    #[test]
    fn mistakes_name_the_flag() {
        for (line, reason) in [
            ("x --name a", "--namespace"),
            ("x --name a -n b -l nothing", "--labels nothing"),
            ("x --name a -n b -p http=many", "--ports http=many"),
            ("x --name a -n b -l bad/key/twice=1", "could not make the WorkloadGroup"),
        ] {
            assert!(made(line).is_err_and(|error| error.contains(reason)), "{line}: {:?}", made(line));
        }
    }
}
