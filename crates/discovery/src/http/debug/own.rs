//! Pages that upstream does not have, or has in a shape of its own insides.

use model::problem::Severity;
use serde_json::json;
use sources::health::State;

use super::{Answer, Asked, Pages, time};

/// Everything that is wrong with what sources read.
pub(super) fn problems(pages: &Pages, _: &Asked) -> Answer {
    let epoch = pages.pilot().world().now();
    let of_all = epoch.snapshot.problems.iter().flat_map(|(source, list)| list.iter().map(move |p| (source, p)));
    let found = of_all.map(|(source, problem)| {
        json!({
            "source": &*source.0,
            "severity": match problem.severity {
                Severity::Info => "info",
                Severity::Warning => "warning",
                Severity::Error => "error",
            },
            "about": &*problem.about,
            "file": problem.place.as_ref().map(|place| &*place.file),
            "line": problem.place.as_ref().map(|place| place.line),
            "message": &*problem.message,
        })
    });
    Answer::json(found.collect())
}

/// The health of every source.
pub(super) fn sources(pages: &Pages, _: &Asked) -> Answer {
    let reports = pages.sources().iter().map(|health| {
        let report = health.report();
        let (state, since, reason) = match report.state {
            State::Syncing => ("syncing", None, None),
            State::Live => ("live", None, None),
            State::Stale { since, reason } => ("stale", Some(time(since)), Some(reason)),
        };
        json!({
            "source": &*report.source.0,
            "state": state,
            "since": since,
            "reason": reason,
            "lastFailure": report.last_failure.map(|f| json!({"at": time(f.at), "message": f.message})),
            "batches": report.counts.batches,
            "changes": report.counts.changes,
            "problems": report.counts.problems,
            "restarts": report.counts.restarts,
        })
    });
    Answer::json(reports.collect())
}

/// How much is shared between clients.
pub(super) fn cachez(pages: &Pages, _: &Asked) -> Answer {
    let views = pages.pilot().views();
    Answer::json(json!({"renderings": views.renderings().len(), "views": views.len()}))
}
