//! Legacy kinds: they must be convertible, and the rules of the current kinds hold for what they become.

use super::super::Object;
use super::super::legacy::{self, LegacyMesh};
use super::Report;

pub(super) fn check(object: &Object, mesh: LegacyMesh<'_>, report: &mut Report) {
    let conversion = match legacy::convert(object, mesh) {
        None => return,
        Some(Err(error)) => return report.error(error),
        Some(Ok(conversion)) => conversion,
    };
    conversion.notes.iter().for_each(|note| report.warn(note));
    let parsed = legacy::objects(&conversion, &object.meta);
    let validated = parsed.objects.iter().flat_map(super::validate).collect::<Vec<_>>();
    for problem in parsed.problems.iter().chain(&validated) {
        report.finding(problem.severity, &problem.message);
    }
    if !conversion.documents.is_empty() {
        let (hint, text) = (legacy::hint(object.spec.kind()), legacy::print(&conversion.documents));
        report.info(format_args!(
            "the kind is of an old Istio{hint}; pilotctl convert prints what to write instead:\n{text}"
        ));
    }
}
