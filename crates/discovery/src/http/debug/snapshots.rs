//! `snapshotz`: which snapshot of the configuration each proxy has, to see when a change has arrived.

use serde_json::{Value, json};

use super::{PageQuery, PageResponse, Pages};
use crate::serve::clients::Connection;

pub(super) fn snapshotz(pages: &Pages, _: &PageQuery) -> PageResponse {
    let (published, clients) = (pages.pilot().world().now(), pages.pilot().clients().all());
    let proxies = clients.iter().filter(|client| !client.only_looks()).map(|client| proxy(client));
    PageResponse::json(json!({"snapshot": published.number, "proxies": proxies.collect::<Value>()}))
}

fn proxy(connection: &Connection) -> Value {
    let watched = connection.watched();
    let pending = watched.values().filter(|watched| {
        let (sent, acked) = watched.nonces();
        sent != acked
    });
    let rejected = watched.iter().find_map(|(kind, watched)| {
        let refused = watched.refused.as_ref()?;
        Some(json!({"type": kind.short(), "message": refused.message}))
    });
    json!({
        "proxy": &*connection.proxy.id,
        "snapshot": connection.cut().map(|cut| cut.number),
        "unacknowledged": pending.count(),
        "rejected": rejected,
    })
}
