//! `pilotctl kube-inject`: writes workloads with their proxies, with the flags of `istioctl kube-inject`. Settings come
//! from files, or from the ConfigMaps of a cluster (`cluster.rs`). The injection is in the crate `inject`.

mod cluster;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use inject::{ChartValues, InjectorConfig, MeshInputs, inject_file};
use model::config::mesh::parse_mesh;
use model::problem::Severity;
use model::settings::Mesh;

#[derive(Args)]
pub(crate) struct KubeInjectOptions {
    /// File with Kubernetes objects; `-` reads standard input
    #[arg(short, long)]
    filename: PathBuf,

    /// File to write to; default: standard output
    #[arg(short, long)]
    output: Option<PathBuf>,

    /// File with the mesh configuration; default: the cluster's ConfigMap
    #[arg(long = "meshConfigFile")]
    mesh_config_file: Option<PathBuf>,

    /// File with the injector's configuration, or with one template; default: the cluster's ConfigMap
    #[arg(long = "injectConfigFile")]
    inject_config_file: Option<PathBuf>,

    /// File with the injector's values; default: the cluster's ConfigMap
    #[arg(long = "valuesFile")]
    values_file: Option<PathBuf>,

    #[command(flatten)]
    cluster: cluster::ClusterOptions,
}

/// Texts of the three settings.
struct SettingTexts {
    mesh: String,
    inject: String,
    values: String,
}

/// Writes the injected file; returns the exit status, 1 if a workload could not be injected.
pub(crate) async fn run(options: &KubeInjectOptions) -> Result<u8> {
    let texts = texts(options).await?;
    let mesh = mesh(&texts.mesh)?;
    let config = injector_config(&texts.inject)?;
    let values = ChartValues::parse(&texts.values)?;
    let environment: BTreeMap<String, String> = std::env::vars().collect();
    let variable = |name: &str| environment.get(name).map_or("", String::as_str);
    let shared = MeshInputs {
        config: &config,
        values: &values,
        mesh: &mesh,
        revision: options.cluster.revision(),
        compliance_policy: variable("COMPLIANCE_POLICY"),
        environment: &environment,
    };
    let native = variable("ENABLE_NATIVE_SIDECARS") == "true";
    let file = inject_file(&read(&options.filename)?, &shared, native);
    for line in file.warnings.iter().chain(&file.failures) {
        eprintln!("{line}");
    }
    match &options.output {
        Some(path) => std::fs::write(path, file.text).with_context(|| format!("could not write {}", path.display()))?,
        None => std::io::stdout().write_all(file.text.as_bytes()).context("could not write to standard output")?,
    }
    Ok(u8::from(!file.failures.is_empty()))
}

async fn texts(options: &KubeInjectOptions) -> Result<SettingTexts> {
    let file = |path: &Option<PathBuf>| path.as_ref().map(read).transpose();
    let mesh = file(&options.mesh_config_file)?;
    let inject = file(&options.inject_config_file)?;
    let values = file(&options.values_file)?;
    let needs_cluster = mesh.is_none() || inject.is_none() || values.is_none();
    let of_cluster = if needs_cluster { options.cluster.texts().await? } else { cluster::ClusterTexts::default() };
    Ok(SettingTexts {
        mesh: mesh.unwrap_or(of_cluster.mesh),
        inject: inject.unwrap_or(of_cluster.inject),
        values: values.unwrap_or(of_cluster.values),
    })
}

fn read(path: &PathBuf) -> Result<String> {
    let mut text = String::new();
    if path.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text).context("could not read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))
}

fn mesh(text: &str) -> Result<Mesh> {
    let (mesh, problems) = parse_mesh(text, "mesh config");
    let errors: Vec<String> =
        problems.iter().filter(|p| p.severity == Severity::Error).map(ToString::to_string).collect();
    if !errors.is_empty() {
        bail!("{}", errors.join("; "));
    }
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    Ok(mesh)
}

fn injector_config(text: &str) -> Result<InjectorConfig> {
    // A template is not YAML, or has none of the configuration's keys.
    if !InjectorConfig::is_config(text) {
        return Ok(InjectorConfig::of_template(text)?);
    }
    let (config, problems) = InjectorConfig::parse(text)?;
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    Ok(config)
}
