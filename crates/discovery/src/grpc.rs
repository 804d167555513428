//! What is served over gRPC on the plain and on the TLS port: xDS, health and reflection.

use std::sync::Arc;

use anyhow::{Context, Result};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use xds::{Limits, Options};

use crate::serve::session::Pilot;

const ADS_FILE: &str = "envoy/service/discovery/v3/ads.proto";
const ADS: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";

/// All gRPC services. Cancelling ends every stream, so that clients go elsewhere.
pub(crate) fn routes(pilot: Arc<Pilot>, identifier: String, stop: CancellationToken) -> Result<Routes> {
    let (reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(report(reporter, pilot.clone(), stop.clone()));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_file_descriptor_set(api::reflect::envoy_files(ADS_FILE))
        .build_v1()
        .context("could not make the reflection service")?;
    let options = Options { limits: Limits::default(), identifier, stop };
    Ok(xds::routes(pilot, options).add_service(health).add_service(reflection))
}

/// Keeps the health service at what readiness says.
async fn report(reporter: HealthReporter, pilot: Arc<Pilot>, stop: CancellationToken) {
    let mut epochs = pilot.world().epochs();
    loop {
        let is_ready = pilot.missing_sources().is_empty() && !stop.is_cancelled();
        let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in ["", ADS] {
            reporter.set_service_status(service, status).await;
        }
        tokio::select! {
            () = stop.cancelled(), if !stop.is_cancelled() => {}
            changed = epochs.changed() => if changed.is_err() { return },
        }
    }
}
