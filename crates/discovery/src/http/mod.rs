//! What is served as pages: readiness, the version, metrics, debug pages and the old REST list of services.
//! Reading never waits for serving and never holds it up: pages are made off the async threads.

mod answer;
mod debug;
mod metrics;
mod ready;
mod registration;

use std::sync::{Arc, Weak};

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use command::version;
use http::StatusCode;
use prometheus_client::registry::Registry;
use serde_json::json;
use sources::health::Health;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::serve::session::Pilot;
use answer::Answer;

/// Pages made at the same time. A dump of a large mesh takes memory while it is made.
const AT_ONCE: usize = 4;

/// What pages are made from.
#[derive(Clone)]
pub(crate) struct Pages(Arc<Inside>);

struct Inside {
    pilot: Arc<Pilot>,
    stop: CancellationToken,
    turns: Semaphore,
    /// Metrics that are read when they are asked for.
    current: Registry,
}

impl Pages {
    pub(crate) fn new(pilot: Arc<Pilot>, stop: CancellationToken) -> Pages {
        let current = metrics::current(pilot.clone());
        Pages(Arc::new(Inside { pilot, stop, turns: Semaphore::new(AT_ONCE), current }))
    }

    /// Lets the pilot answer debug pages over xDS, too.
    pub(crate) fn answer_over_xds(&self) {
        let pages = self.downgrade();
        self.0.pilot.answer_debug(move |kind| {
            let pages = pages.upgrade()?;
            debug::resources(&pages, kind).map(Arc::new)
        });
    }

    fn downgrade(&self) -> WeakPages {
        WeakPages(Arc::downgrade(&self.0))
    }

    fn pilot(&self) -> &Pilot {
        &self.0.pilot
    }

    /// The health of every source that is watched now.
    fn sources(&self) -> Vec<Health> {
        self.0.pilot.sources().healths()
    }

    fn current(&self) -> &Registry {
        &self.0.current
    }

    fn is_stopping(&self) -> bool {
        self.0.stop.is_cancelled()
    }

    /// Makes a page off the async threads. A mistake in making it costs that page alone.
    async fn make(&self, page: impl FnOnce(&Pages) -> Answer + Send + 'static) -> Answer {
        let Ok(_turn) = self.0.turns.acquire().await else { return Answer::failed("the server is stopping") };
        let pages = self.clone();
        let made = tokio::task::spawn_blocking(move || page(&pages)).await;
        made.unwrap_or_else(|_| Answer::failed("could not make this page"))
    }
}

/// Pages that do not keep the pilot alive.
#[derive(Clone)]
struct WeakPages(Weak<Inside>);

impl WeakPages {
    fn upgrade(&self) -> Option<Pages> {
        self.0.upgrade().map(Pages)
    }
}

/// Port 8080: readiness, debug pages, the old REST interface.
pub(crate) fn discovery_router(pages: &Pages) -> Router {
    Router::new()
        .route("/ready", get(ready::page))
        .route("/v1/registration", get(registration::page))
        .merge(debug::router())
        .fallback(nothing_here)
        .with_state(pages.clone())
}

/// Port 15014: metrics, the version, debug pages.
pub(crate) fn monitoring_router(pages: &Pages) -> Router {
    Router::new()
        .route("/metrics", get(metrics::page))
        .route("/version", get(async || version::line()))
        .route("/ready", get(ready::page))
        .merge(debug::router())
        .fallback(nothing_here)
        .with_state(pages.clone())
}

async fn nothing_here(State(_): State<Pages>) -> (StatusCode, Json<serde_json::Value>) {
    (StatusCode::NOT_FOUND, Json(json!({"error": "there is no such page; /debug lists those there are"})))
}
