//! Builds ProxyConfig: defaults, mesh file, environment, annotation and flags, each overriding the previous one, as
//! upstream merges them. Flags win because Pilot 0.8 had only flags.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use api::istio::mesh::v1alpha1::proxy_config::ClusterName;
use api::istio::mesh::v1alpha1::tracing::{Datadog, Lightstep, Tracer, Zipkin};
use api::istio::mesh::v1alpha1::{AuthenticationPolicy, ProxyConfig, Tracing};
use model::config::mesh::{default_proxy_config, parse_mesh, parse_proxy_config};
use model::problem::{Problem, Severity};
use tracing::warn;

use crate::args::ProxyConfigFlags;

const ANNOTATION: &str = "proxy.istio.io/config";

/// Sources of ProxyConfig as text; empty if not present.
#[derive(Debug, Default)]
pub struct ProxyConfigSources<'a> {
    /// Path and content of the mesh file.
    pub mesh: (&'a str, &'a str),
    /// `$PROXY_CONFIG`.
    pub environment: &'a str,
    /// `$ISTIO_CPU_LIMIT`, 0 for none.
    pub cpu_limit: i32,
}

/// The merged ProxyConfig. An invalid source is an error, as in upstream: it is safer not to start Envoy than to start
/// it with other settings.
pub fn proxy_config(
    sources: &ProxyConfigSources<'_>,
    annotations: &BTreeMap<String, String>,
    flags: &ProxyConfigFlags,
) -> Result<ProxyConfig> {
    let mut config = default_proxy_config();
    let (file, text) = sources.mesh;
    if !text.is_empty() {
        let (mesh, problems) = parse_mesh(text, file);
        log_or_fail(problems)?;
        config = mesh.default_config.clone().unwrap_or(config);
    }
    let annotation = annotations.get(ANNOTATION).map_or("", String::as_str);
    for (name, text) in [("$PROXY_CONFIG", sources.environment), (ANNOTATION, annotation)] {
        if !text.is_empty() {
            let (read, problems) = parse_proxy_config(&config, text, name);
            log_or_fail(problems)?;
            config = read;
        }
    }
    if config.concurrency.is_none() && sources.cpu_limit > 0 {
        config.concurrency = Some(sources.cpu_limit);
    }
    apply_annotations(&mut config, annotations);
    apply_flags(&mut config, flags)?;
    Ok(config)
}

/// Addresses of the control plane, at least one. `discoveryAddress` may have several, separated by commas.
pub fn discovery_addresses(config: &ProxyConfig) -> Vec<&str> {
    let all: Vec<&str> = config.discovery_address.split(',').map(str::trim).filter(|text| !text.is_empty()).collect();
    if all.is_empty() { vec![""] } else { all }
}

/// Logs warnings; returns all errors as one.
fn log_or_fail(problems: Vec<Problem>) -> Result<()> {
    let (errors, others): (Vec<_>, Vec<_>) = problems.into_iter().partition(|p| p.severity == Severity::Error);
    others.iter().for_each(|problem| warn!("{problem}"));
    if !errors.is_empty() {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        bail!("could not parse ProxyConfig: {}", lines.join("; "));
    }
    Ok(())
}

fn apply_annotations(config: &mut ProxyConfig, annotations: &BTreeMap<String, String>) {
    if let Some(address) = annotations.get("sidecar.istio.io/discoveryAddress") {
        config.discovery_address.clone_from(address);
    }
    if let Some(text) = annotations.get("status.sidecar.istio.io/port") {
        match text.parse::<u16>() {
            Ok(port) => config.status_port = port.into(),
            Err(error) => {
                warn!(value = text, %error, "ignoring annotation status.sidecar.istio.io/port: not a port number")
            }
        }
    }
}

fn apply_flags(config: &mut ProxyConfig, flags: &ProxyConfigFlags) -> Result<()> {
    let addresses = (!flags.discovery_address.is_empty()).then(|| flags.discovery_address.join(","));
    let texts = [
        (&mut config.discovery_address, &addresses),
        (&mut config.config_path, &flags.config_path),
        (&mut config.binary_path, &flags.binary_path),
        (&mut config.custom_config_file, &flags.custom_config_file),
        (&mut config.statsd_udp_address, &flags.statsd_udp_address),
    ];
    for (field, flag) in texts {
        if let Some(text) = flag {
            field.clone_from(text);
        }
    }
    if let Some(name) = &flags.service_cluster {
        config.cluster_name = Some(ClusterName::ServiceCluster(name.clone()));
    }
    if let Some(policy) = &flags.control_plane_auth_policy {
        config.control_plane_auth_policy = match policy.as_str() {
            "NONE" => AuthenticationPolicy::None.into(),
            "MUTUAL_TLS" => AuthenticationPolicy::MutualTls.into(),
            other => bail!("could not parse --controlPlaneAuthPolicy {other:?}: expected NONE or MUTUAL_TLS"),
        };
    }
    if let Some(port) = flags.proxy_admin_port {
        config.proxy_admin_port = port.into();
    }
    if let Some(port) = flags.status_port {
        config.status_port = port.into();
    }
    config.concurrency = flags.concurrency.filter(|n| *n != 0).or(config.concurrency);
    if let Some(time) = flags.drain_duration {
        config.drain_duration = Some(duration(time));
    }
    if let Some(tracer) = tracer(flags) {
        config.tracing = Some(Tracing { tracer: Some(tracer), ..config.tracing.take().unwrap_or_default() });
    }
    Ok(())
}

fn tracer(flags: &ProxyConfigFlags) -> Option<Tracer> {
    let given = |flag: &Option<String>| flag.clone().filter(|address| !address.is_empty());
    if let Some(address) = given(&flags.zipkin_address) {
        return Some(Tracer::Zipkin(Zipkin { address }));
    }
    if let Some(address) = given(&flags.lightstep_address) {
        let access_token = flags.lightstep_access_token.clone().unwrap_or_default();
        return Some(Tracer::Lightstep(Lightstep { address, access_token }));
    }
    given(&flags.datadog_agent_address).map(|address| Tracer::Datadog(Datadog { address }))
}

fn duration(time: Duration) -> api::Duration {
    api::Duration { seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), nanos: 0 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use api::istio::mesh::v1alpha1::proxy_config::ClusterName;

    use super::{ProxyConfigFlags, ProxyConfigSources, proxy_config};

    #[test]
    fn each_source_overrides_the_previous_one() {
        let sources = ProxyConfigSources {
            mesh: (
                "mesh",
                "defaultConfig: {discoveryAddress: 'file:1', statusPort: 1, concurrency: 1, drainDuration: 7s}",
            ),
            environment: "discoveryAddress: env:1\nstatusPort: 2\n",
            cpu_limit: 8,
        };
        let annotations = BTreeMap::from([("proxy.istio.io/config".to_owned(), "statusPort: 3".to_owned())]);
        let read = proxy_config(&sources, &annotations, &ProxyConfigFlags::default()).unwrap();
        assert_eq!((&*read.discovery_address, read.status_port, read.concurrency), ("env:1", 3, Some(1)));
        let flags = ProxyConfigFlags {
            status_port: Some(4),
            service_cluster: Some("a".to_owned()),
            control_plane_auth_policy: Some("NONE".to_owned()),
            ..ProxyConfigFlags::default()
        };
        let read = proxy_config(&sources, &annotations, &flags).unwrap();
        assert_eq!((read.status_port, read.control_plane_auth_policy), (4, 0));
        assert_eq!(read.cluster_name, Some(ClusterName::ServiceCluster("a".to_owned())));
        assert_eq!(read.drain_duration.map(|d| d.seconds), Some(7));
    }

    #[test]
    fn errors_name_the_source_and_line() {
        let check = |environment, expected: &str| {
            let sources = ProxyConfigSources { environment, ..ProxyConfigSources::default() };
            let error = proxy_config(&sources, &BTreeMap::new(), &ProxyConfigFlags::default()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("concurrency: many", "$PROXY_CONFIG:1: ProxyConfig: could not read concurrency");
        check("{", "$PROXY_CONFIG:");
        let flags =
            ProxyConfigFlags { control_plane_auth_policy: Some("SOME".to_owned()), ..ProxyConfigFlags::default() };
        assert!(proxy_config(&ProxyConfigSources::default(), &BTreeMap::new(), &flags).is_err());
    }

    #[test]
    fn cpu_limit_is_the_default_concurrency() {
        let sources = ProxyConfigSources { cpu_limit: 2, ..ProxyConfigSources::default() };
        let read = proxy_config(&sources, &BTreeMap::new(), &ProxyConfigFlags::default()).unwrap();
        assert_eq!(read.concurrency, Some(2));
    }
}
