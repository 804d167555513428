//! HTTP pages: readiness, version, metrics, debug pages and the REST list of services of Pilot 0.8. Pages are made on
//! blocking threads, so they never delay xDS. `guard` decides which requests are allowed, `unread` bounds the memory of
//! pages that are not read yet.

mod api;
mod console;
mod controlz;
mod debug;
mod guard;
mod histogram;
mod metrics;
mod process;
mod ready;
mod registration;
mod response;
mod samples;
mod shared;
mod slashes;
mod stats;
mod unread;

use std::sync::{Arc, Weak};

use axum::extract::State;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use cli::levels::LogLevels;
use cli::version;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use prometheus_client::registry::Registry;
use serde_json::json;
use sources::health::SourceHealth;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::effective_settings::EffectiveSetting;
use crate::serve::session::ControlPlane;
use api::{ChangeLimits, EventHub};
pub(crate) use guard::AllowedHosts;
use response::{Layout, PageResponse, RenderedPage};
use shared::SharedPage;
use stats::Stats;
use unread::{NoRoom, UnreadPages};

/// Pages made at the same time. A dump of a large mesh needs memory.
const AT_ONCE: usize = 4;
/// Memory limit for debug pages that are not read yet, over HTTP and xDS together. One of a large mesh has some megabytes.
const DEBUG_BYTES: usize = 64 << 20;
/// Memory limit for metrics pages that are not read yet. One has some hundred kilobytes.
const METRICS_BYTES: usize = 32 << 20;
/// Memory limit for lists of services that are not read yet: one for each requested snapshot.
const REGISTRATION_BYTES: usize = 64 << 20;

/// Everything that pages are made from.
#[derive(Clone)]
pub(crate) struct Pages(Arc<PagesInner>);

struct PagesInner {
    pilot: Arc<ControlPlane>,
    stop: CancellationToken,
    turns: Semaphore,
    outgoing: UnreadPages,
    registration: SharedPage,
    metrics: SharedPage,
    hosts: AllowedHosts,
    settings: Vec<EffectiveSetting>,
    /// Metrics that are computed on request.
    current: Registry,
    stats: Stats,
    events: EventHub,
    changes: ChangeLimits,
}

impl Pages {
    pub(crate) fn new(
        pilot: Arc<ControlPlane>,
        hosts: AllowedHosts,
        settings: Vec<EffectiveSetting>,
        stop: CancellationToken,
    ) -> Pages {
        let current = metrics::current(pilot.clone());
        Pages(Arc::new(PagesInner {
            pilot,
            stop,
            turns: Semaphore::new(AT_ONCE),
            outgoing: UnreadPages::new(DEBUG_BYTES),
            registration: SharedPage::new("application/json", REGISTRATION_BYTES),
            metrics: SharedPage::new(metrics::FORMAT, METRICS_BYTES),
            hosts,
            settings,
            current,
            stats: Stats::default(),
            events: EventHub::default(),
            changes: ChangeLimits::default(),
        }))
    }

    /// Serves debug pages over xDS as well.
    pub(crate) fn serve_over_xds(&self) {
        let pages = self.downgrade();
        self.0.pilot.answer_debug(move |kind| {
            let pages = pages.upgrade()?;
            debug::resources(&pages, kind).map(Arc::new)
        });
    }

    /// Takes figures for the console until the server stops.
    pub(crate) fn sample(&self) {
        tokio::spawn(stats::follow(self.downgrade(), self.0.stop.clone()));
    }

    fn downgrade(&self) -> WeakPages {
        WeakPages(Arc::downgrade(&self.0))
    }

    fn pilot(&self) -> &ControlPlane {
        &self.0.pilot
    }

    /// The health of every source.
    fn sources(&self) -> Vec<SourceHealth> {
        self.0.pilot.sources().healths()
    }

    fn settings(&self) -> &[EffectiveSetting] {
        &self.0.settings
    }

    fn current(&self) -> &Registry {
        &self.0.current
    }

    fn is_stopping(&self) -> bool {
        self.0.stop.is_cancelled()
    }

    /// Makes a page on a blocking thread. A panic fails this page only.
    async fn make(&self, layout: Layout, page: impl FnOnce(&Pages) -> PageResponse + Send + 'static) -> Response {
        // Held until the page has room, so that only few finished pages wait.
        let Ok(_turn) = self.0.turns.acquire().await else {
            return PageResponse::failed("the server is stopping").into_response();
        };
        let pages = self.clone();
        let made = tokio::task::spawn_blocking(move || page(&pages).with_layout(layout).render()).await;
        let Ok(RenderedPage { status, content, text }) = made else {
            return PageResponse::failed("could not make this page").into_response();
        };
        match self.0.outgoing.hold(text.into()).await {
            Ok(body) => page_response(status, content, body),
            Err(NoRoom) => too_many_readers(),
        }
    }
}

fn page_response(status: StatusCode, content: &'static str, body: Bytes) -> Response {
    (status, [(CONTENT_TYPE, content)], body).into_response()
}

fn too_many_readers() -> Response {
    let reason = "could not serve this page: too many pages are not read yet; try again later";
    PageResponse::refused(StatusCode::SERVICE_UNAVAILABLE, reason).into_response()
}

/// A weak reference, so that the control plane, which serves these pages, does not keep itself alive.
#[derive(Clone)]
struct WeakPages(Weak<PagesInner>);

impl WeakPages {
    fn upgrade(&self) -> Option<Pages> {
        self.0.upgrade().map(Pages)
    }
}

/// Port 8080: readiness, debug pages, the REST interface of Pilot 0.8.
pub(crate) fn discovery_router(pages: &Pages) -> Router {
    let router = Router::new()
        .route("/ready", get(ready::page))
        .merge(guarded(Router::new().route("/v1/registration", get(registration::page)), pages))
        .merge(guarded(debug::router(), pages))
        .fallback(nothing_here)
        .layer(middleware::map_response(guard::security_headers))
        .with_state(pages.clone());
    slashes::joined(router)
}

/// Rejects requests that a browser makes for another site.
fn guarded(router: Router<Pages>, pages: &Pages) -> Router<Pages> {
    router.layer(middleware::from_fn_with_state(pages.0.hosts.clone(), guard::own_site_only))
}

/// Port 15017: readiness and webhooks.
pub(crate) fn webhook_router(pages: &Pages, webhooks: Router) -> Router {
    Router::new()
        .route("/ready", get(ready::page))
        .fallback(nothing_here)
        .layer(middleware::map_response(guard::security_headers))
        .with_state(pages.clone())
        .merge(webhooks)
}

/// Port 15014: metrics, the version, debug pages, what pilotctl asks, the console.
pub(crate) fn monitoring_router(pages: &Pages) -> Router {
    let router = Router::new()
        .route("/metrics", get(metrics::page))
        .route("/version", get(async || version::line()))
        .route("/ready", get(ready::page))
        .merge(guarded(debug::router(), pages))
        .merge(guarded(api::router(), pages))
        .fallback(nothing_here)
        .layer(middleware::map_response(guard::security_headers))
        .merge(guarded(console::router(), pages))
        .with_state(pages.clone());
    slashes::joined(router)
}

/// Port 9876: log levels.
pub(crate) fn controlz_router(pages: &Pages, levels: LogLevels) -> Router {
    let router = controlz::router(levels)
        .layer(middleware::from_fn_with_state(pages.0.hosts.clone(), guard::own_site_only))
        .layer(middleware::map_response(guard::security_headers));
    slashes::joined(router)
}

async fn nothing_here(State(_): State<Pages>) -> (StatusCode, Json<serde_json::Value>) {
    (StatusCode::NOT_FOUND, Json(json!({"error": "no such page; /debug lists all pages"})))
}
