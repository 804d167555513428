//! What is served over gRPC on the plain and on the TLS port: xDS, health and reflection.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use xds::reflection::{Reflection, V1, V1Alpha};
use xds::{Health, Limits, Options, SERVICES};

use crate::serve::session::Pilot;

/// All gRPC services. Cancelling ends every stream, so that clients go elsewhere.
pub(crate) fn routes(pilot: Arc<Pilot>, identifier: String, stop: CancellationToken) -> Routes {
    let (serving, health) = watch::channel(false);
    tokio::spawn(follow(pilot.clone(), serving, stop.clone()));
    let options = Options { limits: Limits::default(), identifier, stop };
    xds::routes(pilot, options)
        .add_service(Health::new(health, SERVICES))
        .add_service(Reflection::<V1>::new(SERVICES))
        .add_service(Reflection::<V1Alpha>::new(SERVICES))
}

/// Keeps health at what readiness says.
async fn follow(pilot: Arc<Pilot>, serving: watch::Sender<bool>, stop: CancellationToken) {
    let mut epochs = pilot.world().epochs();
    while !stop.is_cancelled() {
        serving.send_replace(pilot.missing_sources().is_empty());
        tokio::select! {
            () = stop.cancelled() => {}
            changed = epochs.changed() => if changed.is_err() { break },
        }
    }
    serving.send_replace(false);
    // Whoever watches gets the news before the channel goes.
    serving.closed().await;
}
