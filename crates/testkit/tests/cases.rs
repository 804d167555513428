//! The recorded cases themselves: every stored resource survives the way to bytes and back.

use std::collections::BTreeSet;

use api::TypeUrl;
use testkit::canonical;
use testkit::cases::{Case, CaseStore};
use testkit::difference::differences;

const TYPES: [TypeUrl; 6] =
    [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER, TypeUrl::ROUTE, TypeUrl::EXTENSION, TypeUrl::NAME_TABLE];

#[test]
fn every_recorded_resource_survives_bytes() {
    let store = CaseStore::read(|_| true);
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for (case, kind, resource) in store.cases.iter().flat_map(recorded) {
        let text = resource.to_string();
        if !seen.insert(text.clone()) {
            continue;
        }
        // An Any of nothing, as upstream gives Wasm without configuration, has no ProtoJSON form to read.
        if kind == TypeUrl::EXTENSION && text.contains(r#""configuration":{}"#) {
            continue;
        }
        let body = canonical::encode(&resource).unwrap_or_else(|e| panic!("{} {kind:?}: {e}", case.label()));
        let again = canonical::json(kind.as_str(), &body);
        let again_text = again.to_string();
        // As text: lists and objects come in the recorded order too.
        if again_text != text {
            let places = differences(&resource, &again);
            wrong.push(format!("{} {}: {:?}", case.label(), canonical::name(&resource), places.first()));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), seen.len(), wrong.join("\n"));
    assert!(seen.len() > 900, "only {} resources", seen.len());
}

fn recorded(case: &Case) -> Vec<(&Case, TypeUrl, std::sync::Arc<serde_json::Value>)> {
    let of = |proxy: &str, kind: &TypeUrl| {
        let all = case.expected(proxy, kind);
        all.into_iter().map(|r| (case, kind.clone(), r)).collect::<Vec<_>>()
    };
    case.proxies.iter().flat_map(|p| TYPES.iter().flat_map(|t| of(&p.name, t)).collect::<Vec<_>>()).collect()
}
