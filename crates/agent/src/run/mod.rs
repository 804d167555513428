//! Start-up, top to bottom: plan, certificates, services, Envoy; then waits for a reason to exit.

mod services;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cli::systemd::ServiceManager;
use cli::version;
use net::watch::{FilePolling, PolledFiles};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::args::ProxyArgs;
use crate::bootstrap;
use crate::certificates::files::{CertificateFiles, fingerprint};
use crate::certificates::{CertificateStore, late};
use crate::environment::Environment;
use crate::file_secrets::FileSecretNames;
use crate::late_certificates::LateCertificates;
use crate::metrics::Metrics;
use crate::plan::{self, Plan};
use crate::process::back_off::BackOff;
use crate::process::exit::ExitCause;
use crate::process::lifecycle::{LifecycleRequest, LifecycleSender};
use crate::process::supervisor::{EpochBootstrap, Supervisor};
use crate::regular_file;
use crate::socket::make_folder;

use services::ServiceTasks;

/// Revocation lists of the CA, mounted from a ConfigMap, and how often they are read.
const REVOKED: &str = "./var/run/secrets/istio/crl/ca-crl.pem";
const REVOKED_PERIOD: Duration = Duration::from_secs(2);

/// A second signal within this time is a duplicate: some supervisors signal both the process and its group.
const DUPLICATE_SIGNAL: Duration = Duration::from_secs(1);

/// Computes the plan and logs which proxy this is.
pub fn plan(args: &ProxyArgs, environment: &Environment) -> Result<Plan> {
    info!("pilot-agent {}", version::line());
    args.ignored_flags.log();
    let plan = plan::plan(args, environment)?;
    info!(node = plan.bootstrap_input.node.id, cluster = plan.bootstrap_input.node.cluster, "proxy identity");
    if !plan.without_envoy {
        check_binary(&plan.launch.binary, environment.get("PATH").unwrap_or_default())?;
    }
    Ok(plan)
}

/// A missing Envoy does not appear by restarting it.
fn check_binary(binary: &Path, path: &str) -> Result<()> {
    let is_name = binary.components().count() == 1 && !binary.is_absolute();
    let is_found = match is_name {
        true => std::env::split_paths(path).any(|folder| folder.join(binary).is_file()),
        false => binary.is_file(),
    };
    if !is_found {
        let place = if is_name { " on the PATH" } else { "" };
        bail!(
            "could not find Envoy at {}{place}; give its path with --binaryPath, or set DISABLE_ENVOY=true for an \
             application without Envoy",
            binary.display()
        );
    }
    Ok(())
}

/// Runs Envoy and the services until there is a reason to exit. Reports to systemd when all ports and sockets are open.
pub async fn run(plan: &Plan, manager: ServiceManager) -> Result<ExitCause> {
    make_folder(Path::new(&plan.bootstrap_input.config.config_path), &plan.peers.xds)?;
    let requests = LifecycleSender::default();
    let signals = TerminationSignals::new().context("could not wait for signals")?;

    let mut services = ServiceTasks::default();
    services.spawn(signals.forward(requests.clone()));
    let metrics = Arc::<Metrics>::default();
    let certificates = certificates(plan, &metrics, &mut services);
    let names = FileSecretNames::default();
    services::open(plan, &certificates, &names, &requests, metrics, &mut services).await?;
    manager.ready();
    let manager = Arc::new(manager);
    services.spawn(report_alive(Arc::clone(&manager)));

    let cause = match plan.without_envoy {
        true => until_stopped(&requests).await,
        false => run_envoy(plan, &names, &requests, &mut services).await,
    };
    manager.stopping();
    services.stop().await;
    info!(code = cause.code(), "{cause}");
    Ok(cause)
}

/// Sends signs of life to systemd's watchdog, if it waits for them.
async fn report_alive(manager: Arc<ServiceManager>) {
    let Some(interval) = manager.heartbeat() else { return };
    loop {
        manager.alive();
        sleep(interval).await;
    }
}

/// SIGTERM and SIGINT.
struct TerminationSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl TerminationSignals {
    fn new() -> std::io::Result<TerminationSignals> {
        Ok(TerminationSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The first signal requests a drain and exit, a later one an immediate exit.
    async fn forward(mut self, requests: LifecycleSender) {
        self.next().await;
        requests.send(LifecycleRequest::Stop);
        sleep(DUPLICATE_SIGNAL).await;
        while timeout(Duration::ZERO, self.next()).await.is_ok() {}
        self.next().await;
        requests.send(LifecycleRequest::Quit);
    }
}

/// The workload's certificates.
struct WorkloadCertificates {
    store: CertificateStore,
    /// Set if there is neither a file nor a certificate authority yet.
    late: Option<LateCertificates>,
}

/// Reads the certificates before Envoy starts, then polls them; or obtains them from the certificate authority.
fn certificates(plan: &Plan, metrics: &Arc<Metrics>, services: &mut ServiceTasks) -> WorkloadCertificates {
    let store = CertificateStore::new();
    services.spawn(follow_revoked(store.clone()));
    if let Some(ca) = &plan.ca {
        services.spawn(ca.clone().run(store.clone(), Arc::clone(metrics)));
    }
    if let Some(files) = &plan.certificates {
        match files.read() {
            Ok(material) => {
                store.publish(material);
            }
            Err(error) => {
                warn!("{error:#}; Envoy waits for its certificates until the file can be read");
                store.fail(format!("{error:#}"));
            }
        }
        services.spawn(files.clone().publish(store.clone(), plan.polling));
    }
    let missing = plan.no_certificates.then(LateCertificates::default);
    if let Some(missing) = missing.clone().filter(|_| plan.reports_late_certificates()) {
        services.spawn(late::follow(missing, CertificateFiles::find_in_folders, store.clone(), plan.polling));
    }
    WorkloadCertificates { store, late: missing }
}

/// Publishes the revocation lists that are mounted, and again when they change. Never returns.
async fn follow_revoked(store: CertificateStore) {
    let read = || regular_file::read(Path::new(REVOKED)).unwrap_or_default();
    let mut polled = PolledFiles::new(FilePolling::every(REVOKED_PERIOD), read);
    while let Some(lists) = polled.changed().await {
        store.publish_revoked(lists.clone().into());
    }
}

/// Runs Envoy. Each epoch gets a new bootstrap.
async fn run_envoy(
    plan: &Plan,
    names: &FileSecretNames,
    requests: &LifecycleSender,
    services: &mut ServiceTasks,
) -> ExitCause {
    // The arguments may contain `--config-yaml`, which is part of the bootstrap.
    plan.launch.fixed.iter().for_each(|argument| names.add_from_text(argument));
    let configure = |epoch| {
        let file = bootstrap::write(&plan.bootstrap_source, &plan.current_bootstrap_input(), epoch)?;
        // If the file cannot be read, Envoy reports the error.
        let text = fs::read_to_string(&file.path).unwrap_or_default();
        names.add_from_text(&text);
        let admin_file = Path::new(&plan.bootstrap_input.config.config_path).join(format!("envoy-rev{epoch}.admin"));
        let admin_file = text.contains("admin").then_some(admin_file);
        Ok(EpochBootstrap { path: file.path, remove: file.is_ours, admin_file })
    };
    let certificate_hash = watch::Sender::new(fingerprint(&plan.restart_on));
    let changes = certificate_hash.subscribe();
    if !plan.restart_on.is_empty() {
        services.spawn(watch_certificates(plan.restart_on.clone(), plan.polling, certificate_hash));
    }
    let supervisor =
        Supervisor::new(plan.launch.clone(), plan.drain.clone(), BackOff::upstream(plan.restarts), configure);
    supervisor.run(requests.subscribe(), changes).await
}

/// Triggers a hot restart when certificates change.
async fn watch_certificates(paths: Vec<PathBuf>, polling: FilePolling, hash: watch::Sender<u128>) {
    let mut files = PolledFiles::new(polling, move || fingerprint(&paths)).after(*hash.borrow());
    while let Some(now) = files.changed().await {
        hash.send_replace(*now);
    }
}

async fn until_stopped(requests: &LifecycleSender) -> ExitCause {
    let mut requests = requests.subscribe();
    let _ = requests.wait_for(|request| *request >= LifecycleRequest::Stop).await;
    ExitCause::Signalled
}
