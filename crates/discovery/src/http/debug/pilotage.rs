//! Pages that upstream does not have or has in a format of its internals.

use model::analysis;
use serde_json::{Value, json};
use sources::health::{SourceReport, SourceState};

use super::{PageQuery, PageResponse, Pages, time};
use crate::serve::findings;
use crate::serve::quarantine::Affected;

/// All problems in configuration that sources read.
pub(super) fn problems(pages: &Pages, _: &PageQuery) -> PageResponse {
    let published = pages.pilot().world().now();
    let of_all = published.snapshot.problems.iter().flat_map(|(source, list)| list.iter().map(move |p| (source, p)));
    let found = of_all.map(|(source, problem)| {
        json!({
            "source": &*source.0,
            "code": problem.code.as_str(),
            "severity": problem.severity.as_str(),
            "about": problem.about.to_string(),
            "file": problem.location.as_ref().map(|location| &*location.file),
            "line": problem.location.as_ref().map(|location| location.line),
            "message": &*problem.message,
            "text": problem.to_string(),
        })
    });
    PageResponse::json(found.collect())
}

/// Findings of the analysis: mistakes between objects that are valid on their own.
pub(super) fn analyze(pages: &Pages, _: &PageQuery) -> PageResponse {
    let published = pages.pilot().world().now();
    let mut found = analysis::analyze(&published.snapshot);
    findings::locate(&mut found);
    PageResponse::json(found.iter().map(analysis::Finding::to_json).collect())
}

/// Flags and environment variables of this server.
pub(super) fn settings(pages: &Pages, _: &PageQuery) -> PageResponse {
    PageResponse::json(json!(pages.settings()))
}

/// The health of every source.
pub(super) fn sources(pages: &Pages, _: &PageQuery) -> PageResponse {
    PageResponse::json(pages.sources().iter().map(|health| shown(health.report())).collect())
}

fn shown(report: SourceReport) -> Value {
    let (state, since, reason) = match report.state {
        SourceState::Syncing => ("syncing", None, None),
        SourceState::Live => ("live", None, None),
        SourceState::Stale { since, reason } => ("stale", Some(time(since)), Some(reason)),
    };
    let age = report.last_seen.and_then(|seen| seen.elapsed().ok());
    json!({
        "source": &*report.source.0,
        "state": state,
        "since": since,
        "reason": reason,
        "lastFailure": report.last_failure.map(|f| json!({"at": time(f.at), "message": f.message})),
        "ageSeconds": age.map(|age| age.as_secs()),
        "services": report.counts.services,
        "endpoints": report.counts.endpoints,
        "watches": report.counts.watches,
        "requests": report.counts.requests,
        "batches": report.counts.batches,
        "changes": report.counts.changes,
        "problems": report.counts.problems,
        "restarts": report.counts.restarts,
    })
}

/// Number of cached resources and views.
pub(super) fn cachez(pages: &Pages, _: &PageQuery) -> PageResponse {
    let views = pages.pilot().views();
    PageResponse::json(json!({"renderings": views.renderings().len(), "views": views.len()}))
}

/// Objects and resources whose current version a client rejected.
pub(super) fn quarantinez(pages: &Pages, _: &PageQuery) -> PageResponse {
    let (register, published) = (pages.pilot().register(), pages.pilot().world().now());
    let objects = register.objects(&published.snapshot).into_iter().map(|(key, pin, affected)| {
        let location = pin.bad.as_ref().and_then(|bad| bad.meta.location.as_ref());
        let mut shown = refusal(&affected);
        shown["object"] = json!(key.to_string());
        shown["file"] = json!(location.map(|location| &*location.file));
        shown["line"] = json!(location.map(|location| location.line));
        shown
    });
    let resources = register.resources().into_iter().map(|(name, affected)| {
        let mut shown = refusal(&affected);
        shown["resource"] = json!(&*name);
        shown
    });
    PageResponse::json(json!({"objects": objects.collect::<Value>(), "resources": resources.collect::<Value>()}))
}

fn refusal(affected: &Affected) -> Value {
    json!({
        "type": affected.kind.short(),
        "since": time(affected.since),
        "message": affected.message,
        "authenticated": affected.is_proven,
        "proxies": affected.clients.iter().map(|client| &**client).collect::<Vec<_>>(),
        "served": if affected.replaced { "the version before" } else { "nothing" },
    })
}
