//! Starts the agent's services: status port, DNS proxy, SDS and xDS relay, in order of dependency.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use trust::bundle::RootBundle;

use crate::bootstrap::Xds;
use crate::certificates::CertificateStore;
use crate::file_secrets::FileSecretNames;
use crate::late_certificates::LateCertificates;
use crate::metrics::Metrics;
use crate::plan::Plan;
use crate::process::lifecycle::LifecycleSender;
use crate::relay::{self, Relay};
use crate::requests::{AccessLogServer, RequestSeries};
use crate::{dns, proxyless, sds, status};

use super::WorkloadCertificates;

/// The tasks of all services.
#[derive(Default)]
pub(super) struct ServiceTasks {
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl ServiceTasks {
    pub(super) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        self.tasks.shutdown().await;
    }
}

/// Opens all ports and sockets before Envoy starts, so that Envoy can connect at once.
pub(super) async fn open(
    plan: &Plan,
    certificates: &WorkloadCertificates,
    file_secrets: &FileSecretNames,
    requests: &LifecycleSender,
    metrics: Arc<Metrics>,
    services: &mut ServiceTasks,
) -> Result<()> {
    let names = watch::Sender::new(None);
    let series = start_requests(plan, services)?;
    if let Some(options) = status_options(plan, &certificates.store, certificates.late.as_ref(), &names, series) {
        let server = status::StatusServer::bind(options, Arc::clone(&metrics), requests.clone()).await?;
        services.spawn(server.serve(services.stop.clone()));
    }
    if let Some(address) = plan.dns.address {
        let server = dns::DnsServer::bind(dns_options(plan, address), names.subscribe(), Arc::clone(&metrics)).await;
        let server = server.with_context(|| format!("could not listen for DNS on {address}"))?;
        services.spawn(server.serve(services.stop.clone()));
    }
    // With another SDS server, such as SPIRE, this one has no certificates of the workload.
    let socket = match plan.other_sds {
        true => plan.bootstrap_input.sds_files_socket.as_ref(),
        false => Some(&plan.bootstrap_input.sds_socket),
    };
    if let Some(socket) = socket {
        // Without the relay the agent does not see the configuration, so it cannot restrict names.
        let names = matches!(plan.bootstrap_input.xds, Xds::Relay(_)).then(|| file_secrets.clone());
        let options = sds::SdsOptions { peers: plan.peers.sds.clone(), access: plan.access.clone(), names };
        let server = sds::SdsServer::bind(Path::new(socket), certificates.store.clone(), options)?;
        services.spawn(server.serve(services.stop.clone()));
    }
    if let (Some(upstream), Xds::Relay(socket)) = (&plan.upstream, &plan.bootstrap_input.xds) {
        let (peers, file_secrets) = (plan.peers.xds.clone(), file_secrets.clone());
        let health = start_health(plan, services);
        let options = relay::RelayOptions {
            peers,
            file_secrets,
            health,
            bundle: plan.trust_bundle.then(|| follow_bundle(&certificates.store, services)),
            late_certificates: certificates.late.clone(),
            ..relay::RelayOptions::new(socket.into(), upstream.clone())
        };
        let names = plan.dns.address.map(|_| names);
        services.spawn(Relay::bind(options, names, metrics)?.serve(services.stop.clone()));
    }
    plan.grpc_bootstrap.as_ref().map_or(Ok(()), |path| grpc_bootstrap(plan).write(path))
}

/// Adds the roots of trust bundles to those of the workload's certificates.
fn follow_bundle(store: &CertificateStore, services: &mut ServiceTasks) -> relay::TrustBundleSender {
    let (sender, mut bundles) = watch::channel(RootBundle::default());
    let store = store.clone();
    services.spawn(async move {
        while bundles.changed().await.is_ok() {
            let bundle = bundles.borrow_and_update().clone();
            store.publish_bundle(bundle);
        }
    });
    sender
}

/// Starts the workload's probe, if it has one.
fn start_health(
    plan: &Plan,
    services: &mut ServiceTasks,
) -> Option<watch::Receiver<Option<status::health::WorkloadHealth>>> {
    let (health, address) = (plan.health.clone()?, *plan.identity.ips.first()?);
    let admin = (!plan.without_envoy).then_some(plan.drain.admin);
    let (sender, receiver) = watch::channel(None);
    services.spawn(health.run(admin, address, sender));
    Some(receiver)
}

/// Receives Envoy's access log, if metrics are made from it.
fn start_requests(plan: &Plan, services: &mut ServiceTasks) -> Result<Option<Arc<RequestSeries>>> {
    let Some(requests) = &plan.requests else { return Ok(None) };
    let series = Arc::new(RequestSeries::new(requests.own.clone(), requests.most_series));
    let server = AccessLogServer::bind(&requests.socket, plan.peers.sds.clone(), Arc::clone(&series))?;
    services.spawn(server.serve(services.stop.clone()));
    Ok(Some(series))
}

fn status_options(
    plan: &Plan,
    store: &CertificateStore,
    late: Option<&LateCertificates>,
    names: &relay::NameTableSender,
    requests: Option<Arc<RequestSeries>>,
) -> Option<status::StatusOptions> {
    let admin = (!plan.without_envoy).then_some(plan.drain.admin);
    let metrics = match plan.bootstrap_input.ports.prometheus {
        0 => admin,
        port => admin.map(|admin| SocketAddr::new(admin.ip(), port)),
    };
    let metadata = &plan.bootstrap_input.config.proxy_metadata;
    Some(status::StatusOptions {
        address: plan.status.address?,
        admin,
        control_plane_names: plan.bootstrap_input.control_plane_names.clone(),
        envoy_metrics: metrics,
        application: *plan.identity.ips.first()?,
        probers: plan.status.probers.clone(),
        annotations: plan.status.prometheus_annotations.clone(),
        local_metrics: metadata.get("METRICS_LOCALHOST_ACCESS_ONLY").is_some_and(|value| value == "true"),
        names: plan.dns.address.map(|_| names.subscribe()),
        late_certificates: late.cloned(),
        requests,
        certificate_failure: store.failures(),
        started: Instant::now(),
    })
}

fn dns_options(plan: &Plan, address: SocketAddr) -> dns::DnsOptions {
    let resolv = dns::resolv_conf::ResolvConf::parse(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default());
    let search = resolv.search.first().map(String::as_str);
    dns::DnsOptions {
        address,
        client_domain: dns::ClientDomain::new(&plan.identity.namespace, &plan.identity.domain, search),
        servers: resolv.servers.iter().map(|ip| SocketAddr::new(*ip, 53)).collect(),
        server_timeout: plan.dns.server_timeout,
        parallel: plan.dns.parallel,
    }
}

fn grpc_bootstrap(plan: &Plan) -> proxyless::GrpcBootstrap {
    let node = &plan.bootstrap_input.node;
    let parts = ["region", "zone", "subZone"].into_iter().zip(&node.locality).filter(|(_, text)| !text.is_empty());
    let locality: Map<String, Value> = parts.map(|(key, text)| (key.to_owned(), text.as_str().into())).collect();
    let mut metadata = node.metadata.clone();
    // Selects the control plane's resources for proxyless gRPC.
    metadata.insert("GENERATOR".to_owned(), "grpc".into());
    let files = plan.certificates.as_ref().and_then(|files| files.chain.parent()).map(Path::to_owned);
    let certificates = files.or_else(|| plan.ca.as_ref()?.output.clone());
    proxyless::GrpcBootstrap {
        node_id: node.id.clone(),
        locality: if locality.is_empty() { Value::Null } else { Value::Object(locality) },
        metadata: Value::Object(metadata),
        socket: Path::new(&plan.bootstrap_input.config.config_path).join("XDS"),
        certificates,
    }
}
