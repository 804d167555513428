//! The state of the server: problems, sources, totals, figures of the last hour.

use model::problem::Severity;
use schemars::JsonSchema;
use serde::Serialize;
use sources::health::SourceState;

use super::{ApiQuery, ApiResult, Pages, json_of, time_text};

#[derive(Serialize, JsonSchema)]
pub(super) struct ProblemEntry {
    source: String,
    code: &'static str,
    severity: &'static str,
    about: String,
    file: Option<String>,
    line: Option<u32>,
    message: String,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SourceEntry {
    pub(super) source: String,
    /// syncing, live or stale
    pub(super) state: &'static str,
    since: Option<String>,
    pub(super) reason: Option<String>,
    services: usize,
    endpoints: usize,
    batches: u64,
    changes: u64,
    problems: usize,
    restarts: u64,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServerStatus {
    version: &'static str,
    snapshot: u64,
    snapshot_at: String,
    ready: bool,
    proxies: usize,
    /// Proxies that have everything of the newest snapshot.
    synced: usize,
    rejected: usize,
    services: usize,
    objects: usize,
    errors: usize,
    warnings: usize,
    sources: usize,
    stale_sources: usize,
}

pub(super) fn problems(pages: &Pages, _: &ApiQuery) -> ApiResult {
    let published = pages.pilot().world().now();
    let of_all = published.snapshot.problems.iter().flat_map(|(source, list)| list.iter().map(move |p| (source, p)));
    let found = of_all.map(|(source, problem)| ProblemEntry {
        source: source.0.to_string(),
        code: problem.code.as_str(),
        severity: problem.severity.as_str(),
        about: problem.about.to_string(),
        file: problem.location.as_ref().map(|location| location.file.to_string()),
        line: problem.location.as_ref().map(|location| location.line),
        message: problem.message.to_string(),
    });
    json_of(&found.collect::<Vec<_>>())
}

pub(super) fn sources(pages: &Pages, _: &ApiQuery) -> ApiResult {
    json_of(&source_entries(pages))
}

pub(super) fn source_entries(pages: &Pages) -> Vec<SourceEntry> {
    let entry = |health: &sources::health::SourceHealth| {
        let report = health.report();
        let (state, since, reason) = match report.state {
            SourceState::Syncing => ("syncing", None, None),
            SourceState::Live => ("live", None, None),
            SourceState::Stale { since, reason } => ("stale", Some(time_text(since)), Some(reason)),
        };
        SourceEntry {
            source: report.source.0.to_string(),
            state,
            since,
            reason,
            services: report.counts.services,
            endpoints: report.counts.endpoints,
            batches: report.counts.batches,
            changes: report.counts.changes,
            problems: report.counts.problems,
            restarts: report.counts.restarts,
        }
    };
    pages.sources().iter().map(entry).collect()
}

pub(super) fn server(pages: &Pages, _: &ApiQuery) -> ApiResult {
    json_of(&server_status(pages))
}

pub(super) fn server_status(pages: &Pages) -> ServerStatus {
    let published = pages.pilot().world().now();
    let snapshot = &published.snapshot;
    let clients = super::proxies::sorted(pages);
    let synced = clients.iter().map(|client| client.holding());
    let synced = synced.filter(|held| held.since.is_some() && held.number >= published.number).count();
    let rejected = clients.iter().filter(|client| client.watched().values().any(|watched| watched.refused.is_some()));
    let of_severity = |severity: Severity| {
        let all = snapshot.problems.values().flatten();
        all.filter(|problem| problem.severity == severity).count()
    };
    let sources = source_entries(pages);
    ServerStatus {
        version: env!("CARGO_PKG_VERSION"),
        snapshot: published.number,
        snapshot_at: time_text(published.at),
        ready: pages.pilot().missing_sources().is_empty(),
        proxies: clients.len(),
        synced,
        rejected: rejected.count(),
        services: snapshot.services.len(),
        objects: snapshot.objects.len(),
        errors: of_severity(Severity::Error),
        warnings: of_severity(Severity::Warning),
        sources: sources.len(),
        stale_sources: sources.iter().filter(|source| source.state == "stale").count(),
    }
}

pub(super) fn stats(pages: &Pages, _: &ApiQuery) -> ApiResult {
    json_of(&pages.0.stats.samples())
}
