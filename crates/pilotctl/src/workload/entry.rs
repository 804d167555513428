//! `pilotctl workload entry configure`: reads the WorkloadGroup, mesh config, roots and gateway of a cluster, requests a
//! token, and writes the files of a machine.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use model::config::read_yaml;
use serde_json::Value;

use super::files::{MachineFile, MachineInputs, files};
use crate::cluster::ClusterAccess;

/// Audience of the tokens of workloads.
const AUDIENCE: &str = "istio-ca";

#[derive(Args)]
pub(crate) struct EntryOptions {
    /// File with the WorkloadGroup; default: the cluster's
    #[arg(short, long)]
    file: Option<PathBuf>,

    /// Name of the WorkloadGroup
    #[arg(long, default_value = "")]
    name: String,

    /// Namespace of the WorkloadGroup
    #[arg(short, long, default_value = "")]
    namespace: String,

    /// Folder to write to
    #[arg(short, long)]
    output: PathBuf,

    /// Name of the cluster
    #[arg(long = "clusterID", default_value = "Kubernetes")]
    cluster_id: String,

    /// Address of the gateway that leads to the control plane
    #[arg(long = "ingressIP", default_value = "")]
    ingress_ip: String,

    /// Service of the gateway that leads to the control plane
    #[arg(long = "ingressService", default_value = "istio-eastwestgateway")]
    ingress_service: String,

    /// Register the workload when it connects
    #[arg(long)]
    autoregister: bool,

    /// Capture DNS queries of the workload
    #[arg(long = "capture-dns", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
        default_missing_value = "true")]
    capture_dns: bool,

    /// Address of the machine in its network
    #[arg(long = "internalIP", default_value = "", conflicts_with = "external_ip")]
    internal_ip: String,

    /// Public address of the machine
    #[arg(long = "externalIP", default_value = "")]
    external_ip: String,

    /// Lifetime of the token in seconds
    #[arg(long = "tokenDuration", default_value_t = 3600)]
    token_duration: i64,

    /// Revision of the control plane
    #[arg(short, long, default_value = "")]
    revision: String,

    /// Namespace of the control plane
    #[arg(short = 'i', long = "istioNamespace", default_value = "istio-system")]
    istio_namespace: String,

    #[command(flatten)]
    access: ClusterAccess,
}

pub(super) async fn run(options: &EntryOptions) -> Result<()> {
    let client = options.access.client().await?;
    let group = group(options, &client).await?;
    let text = |pointer: &str| group.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let namespace = text("/metadata/namespace");
    let account = Some(text("/spec/template/serviceAccount")).filter(|name| !name.is_empty()).unwrap_or("default");
    let mesh_name = match &*options.revision {
        "" | "default" => "istio".to_owned(),
        revision => format!("istio-{revision}"),
    };
    let mesh = config_map(&client, &options.istio_namespace, &mesh_name, "mesh").await?;
    let mesh = read_yaml(&mesh).with_context(|| format!("could not parse the mesh config in ConfigMap {mesh_name}"))?;
    let gateway = match &*options.ingress_ip {
        "" => gateway(options, &client).await?,
        given => Some(given.to_owned()),
    };
    if gateway.is_none() {
        eprintln!(
            "Service {}/{} has no address yet: hosts is empty; give --ingressIP or write it yourself",
            options.istio_namespace, options.ingress_service
        );
    }
    let inputs = MachineInputs {
        group: &group,
        mesh: &mesh,
        roots: &config_map(&client, namespace, "istio-ca-root-cert", "root-cert.pem").await?,
        token: &token(&client, namespace, account, options.token_duration).await?,
        cluster_id: &options.cluster_id,
        istio_namespace: &options.istio_namespace,
        revision: &options.revision,
        gateway: gateway.as_deref(),
        address: [&options.internal_ip, &options.external_ip].into_iter().find(|ip| !ip.is_empty()).map_or("", |ip| ip),
        registers: options.autoregister,
        captures_dns: options.capture_dns,
    };
    write(&options.output, &files(&inputs)?)?;
    println!("Configuration generation into directory {} was successful", options.output.display());
    Ok(())
}

/// The WorkloadGroup of the file, or of the cluster.
async fn group(options: &EntryOptions, client: &Client) -> Result<Value> {
    let group = match &options.file {
        Some(path) => {
            let text = fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
            read_yaml(&text).with_context(|| format!("could not parse {}", path.display()))?
        }
        None if options.name.is_empty() || options.namespace.is_empty() => {
            bail!("could not find the WorkloadGroup: give --file, or --name and --namespace")
        }
        None => {
            let kind = GroupVersionKind::gvk("networking.istio.io", "v1", "WorkloadGroup");
            let resource = ApiResource::from_gvk_with_plural(&kind, "workloadgroups");
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &options.namespace, &resource);
            let found = api.get(&options.name).await;
            let found =
                found.with_context(|| format!("could not get WorkloadGroup {}/{}", options.namespace, options.name))?;
            serde_json::to_value(found)?
        }
    };
    let has = |pointer: &str| group.pointer(pointer).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    if group["kind"] != "WorkloadGroup" || !has("/metadata/name") || !has("/metadata/namespace") {
        bail!("could not use the WorkloadGroup: it needs kind, name and namespace");
    }
    Ok(group)
}

async fn config_map(client: &Client, namespace: &str, name: &str, key: &str) -> Result<String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = maps.get(name).await.with_context(|| format!("could not get ConfigMap {namespace}/{name}"))?;
    let found = map.data.and_then(|mut data| data.remove(key));
    found.with_context(|| format!("ConfigMap {namespace}/{name} has no key {key}"))
}

/// The address of the gateway's Service; `None` if it has none.
async fn gateway(options: &EntryOptions, client: &Client) -> Result<Option<String>> {
    let services: Api<Service> = Api::namespaced(client.clone(), &options.istio_namespace);
    let found = services.get_opt(&options.ingress_service).await;
    let found = found.with_context(|| format!("could not get Service {}", options.ingress_service))?;
    let balancer = found.and_then(|service| service.status?.load_balancer?.ingress);
    Ok(balancer.into_iter().flatten().find_map(|ingress| ingress.ip.or(ingress.hostname)))
}

async fn token(client: &Client, namespace: &str, account: &str, seconds: i64) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let spec = TokenRequestSpec {
        audiences: Some(vec![AUDIENCE.to_owned()]),
        expiration_seconds: Some(seconds),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let made = accounts.create_token_request(account, &PostParams::default(), &request).await;
    let made = made.with_context(|| format!("could not get a token of ServiceAccount {namespace}/{account}"))?;
    made.status.and_then(|status| status.token).context("the API server returned no token")
}

/// Writes the files. The token is private from its first byte on.
fn write(folder: &Path, files: &[MachineFile]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))?;
    for (name, text, is_private) in files {
        let path = folder.join(name);
        let mode = if *is_private { 0o600 } else { 0o644 };
        let put = || {
            let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(mode).open(&path)?;
            file.set_permissions(Permissions::from_mode(mode))?;
            file.write_all(text.as_bytes())
        };
        put().with_context(|| format!("could not write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::write;

    #[test]
    fn the_token_is_private_also_over_an_old_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("istio-token"), "old and longer").unwrap();
        write(folder.path(), &[("istio-token", "new".to_owned(), true), ("hosts", String::new(), false)]).unwrap();
        let mode = |name: &str| folder.path().join(name).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("istio-token"), mode("hosts")), (0o600, 0o644));
        assert_eq!(std::fs::read_to_string(folder.path().join("istio-token")).unwrap(), "new");
    }
}
