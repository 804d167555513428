//! `UPDATE=1`: rewrites the expected resources of cases with those of the server under test, for review as a diff.

use std::collections::BTreeSet;

use super::error::CaseError;
use super::expected::{self, ExpectedResource, SharedResources};
use super::fetch::{CanonicalForms, fetch};
use super::parallel::on_all_cores;
use super::selection::Selection;
use super::statuses::{self, CaseServer};
use super::store::STATUSES;
use super::{Case, CaseStore, KINDS, index};

/// Rewrites the files of the selected cases. If all are selected, also the shared resources and the index.
pub(super) fn update(
    store: &CaseStore,
    load: &(impl Fn(&Case) -> CaseServer + Sync),
    selection: &Selection,
) -> Result<(), CaseError> {
    let forms = CanonicalForms::default();
    let rewritten = on_all_cores(&store.cases, |case| rewrite(case, load, &forms, &store.shared));
    let referred: BTreeSet<String> =
        rewritten.into_iter().collect::<Result<Vec<_>, CaseError>>()?.into_iter().flatten().collect();
    println!("{} cases rewritten", store.cases.len());
    if !selection.has_cases() {
        store.shared.write(&store.folder, &referred)?;
        expected::write(&store.folder.join(index::FILE), &index::page(&store.cases))?;
    }
    Ok(())
}

/// Rewrites one case; returns the shared resources that it refers to.
fn rewrite(
    case: &Case,
    load: &impl Fn(&Case) -> CaseServer,
    forms: &CanonicalForms,
    shared: &SharedResources,
) -> Result<BTreeSet<String>, CaseError> {
    let server = load(case);
    let mut answers = Vec::new();
    for proxy in &case.proxies {
        let got = fetch(&server.answers, proxy, forms);
        for (kind, _) in KINDS {
            let resources = got.get(kind).map_or(&[][..], Vec::as_slice);
            answers.extend(resources.iter().map(|resource| ExpectedResource {
                proxy: proxy.name.clone(),
                kind: kind.to_owned(),
                resource: resource.clone(),
            }));
        }
    }
    expected::write(&case.folder.join(expected::FILE), &expected::text(&answers, shared)?)?;
    if let Some(statuses) = server.statuses {
        let statuses = statuses::by_name(&statuses::got(case, &statuses));
        if !statuses.is_empty() {
            expected::write(&case.folder.join(STATUSES), &expected::yaml(&statuses)?)?;
        }
    }
    Ok(expected::references(&answers, shared))
}
