//! Client of Envoy's admin port.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;

use crate::error::ReplyError;
use crate::{client, wait};

#[derive(Clone, Debug)]
pub struct Admin {
    address: SocketAddr,
}

impl Admin {
    pub(super) fn new(address: SocketAddr) -> Admin {
        Admin { address }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The text of an admin page.
    pub async fn get(&self, path: &str) -> Result<String, ReplyError> {
        let reply = client::get(self.address, "admin", path).await?;
        if !reply.status.is_success() {
            return Err(ReplyError::Status { request: path.to_owned(), status: reply.status, body: reply.body });
        }
        Ok(reply.body)
    }

    /// An admin page as JSON.
    pub async fn json(&self, path: &str) -> Result<Value, ReplyError> {
        let text = self.get(path).await?;
        serde_json::from_str(&text).map_err(|e| ReplyError::NotJson { request: path.to_owned(), cause: e.to_string() })
    }

    /// All configuration, including endpoints.
    pub async fn config_dump(&self) -> Result<Value, ReplyError> {
        self.json("/config_dump?include_eds").await
    }

    /// Clusters with the addresses and health flags of their endpoints.
    pub async fn clusters(&self) -> Result<Value, ReplyError> {
        self.json("/clusters?format=json").await
    }

    /// Counters and gauges whose name matches the regular expression.
    pub async fn stats(&self, filter: &str) -> Result<BTreeMap<String, u64>, ReplyError> {
        let text = self.get(&format!("/stats?filter={}", escaped(filter))).await?;
        let pair = |line: &str| line.rsplit_once(": ").and_then(|(k, v)| Some((k.to_owned(), v.parse().ok()?)));
        Ok(text.lines().filter_map(pair).collect())
    }

    /// Resources that it still waits for; empty once everything is warm.
    pub async fn warming(&self) -> Result<Vec<Value>, ReplyError> {
        let dump = self.json("/init_dump").await?;
        Ok(dump["unready_targets_dumps"].as_array().cloned().unwrap_or_default())
    }

    /// Number of rejected updates of all types.
    pub async fn rejected(&self) -> Result<u64, ReplyError> {
        Ok(self.stats("update_rejected").await?.values().sum())
    }

    /// Waits until everything is warm, and checks that no update was rejected.
    pub async fn assert_settled(&self) {
        wait::until("nothing warming", async || {
            let warming = self.warming().await?;
            if warming.is_empty() { Ok(()) } else { Err(format!("{warming:?}")) }
        })
        .await;
        let rejected = self.rejected().await.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(rejected, 0, "updates that Envoy rejected");
    }
}

/// Percent-encodes a regular expression for a URL.
fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
