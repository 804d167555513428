//! The page about the certificate authority. It shows certificates, never keys.

use ::trust::certificate::Certificate;
use serde_json::{Value, json};

use super::{PageQuery, PageResponse, Pages};

pub(super) fn trustz(pages: &Pages, query: &PageQuery) -> PageResponse {
    let Some(trust) = &pages.pilot().trust else { return PageResponse::json(json!({"authority": null})) };
    let is_rotating = query.get("rotate") == Some("true") && trust.request_rotation();
    let state = trust.now();
    let authority = state.as_ref().map(|state| {
        json!({
            "place": state.place,
            "selfSigned": !state.is_plugged_in,
            "rotationStep": state.step.name(),
            "since": seconds(state.since),
            "stepEnd": state.step_end.map(seconds),
            "longestLifetime": state.leaf_limit,
            "signing": shown(state.authority.certificate()),
            "revocationLists": state.revoked.as_ref().map_or(0, |revoked| revoked.lists().len()),
            "roots": state.authority.roots().roots().iter().map(shown).collect::<Vec<_>>(),
        })
    });
    let own = trust.own_certificate();
    PageResponse::json(json!({
        "authority": authority,
        "own": own.as_ref().map(shown),
        "rotationRequested": is_rotating,
    }))
}

fn shown(certificate: &Certificate) -> Value {
    json!({
        "serial": certificate.serial,
        "notBefore": seconds(certificate.not_before),
        "notAfter": seconds(certificate.not_after),
        "names": certificate.uris.iter().chain(&certificate.dns_names).collect::<Vec<_>>(),
    })
}

fn seconds(since_1970: i64) -> String {
    model::config::timestamp::format(since_1970)
}
