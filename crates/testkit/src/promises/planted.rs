//! Deliberate bugs between a real server and the record, one for each promise: what a proxy receives or answers is
//! altered before it is recorded, as a faulty server would have sent it. They prove that the checker finds them.

use std::collections::HashMap;

use super::Promise;
use super::content::{ResourceKind, ResponseContent};

/// A bug that breaks one promise.
pub struct Planted {
    promise: Promise,
    /// First load assignment of each name.
    first: HashMap<String, ResponseContent>,
    /// Clusters that are held back until routes were sent.
    withheld: Option<ResponseContent>,
}

impl Planted {
    pub fn new(promise: Promise) -> Planted {
        Planted { promise, first: HashMap::new(), withheld: None }
    }

    /// What the proxy receives instead of a response.
    pub(super) fn alter(&mut self, mut response: ResponseContent) -> Vec<ResponseContent> {
        let is_endpoints = response.kind == ResourceKind::Endpoints && !response.resources.is_empty();
        let is_repeated = is_endpoints && !self.is_first(&response);
        let is_clusters = response.kind == ResourceKind::Clusters && !response.resources.is_empty();
        match self.promise {
            // Endpoints are sent once and never again.
            Promise::Convergence if is_repeated => Vec::new(),
            // The first endpoints are sent again after all later ones.
            Promise::NoRegress if is_repeated => {
                let name = &response.resources[0].name;
                let nonce = format!("{}-again", response.nonce);
                let old = self.first.get(name).map(|first| ResponseContent { nonce, ..first.clone() });
                [response].into_iter().chain(old).collect()
            }
            Promise::NoInvention if is_endpoints => {
                response.resources[0].endpoints.insert("192.0.2.1".to_owned());
                vec![response]
            }
            Promise::NoWipe if is_repeated => {
                response.resources[0].endpoints.clear();
                vec![response]
            }
            Promise::Isolation if is_clusters => {
                response.resources[0].markers.push(0);
                vec![response]
            }
            // Clusters are sent a second time, with another definition.
            Promise::FaultIsolation if is_clusters => {
                let mut other = response.clone();
                other.resources.iter_mut().for_each(|resource| resource.hash ^= 1);
                vec![response, other]
            }
            Promise::Order if is_clusters => {
                self.withheld = Some(response);
                Vec::new()
            }
            Promise::Order if response.kind == ResourceKind::Routes => {
                [response].into_iter().chain(self.withheld.take()).collect()
            }
            _ => vec![response],
        }
    }

    /// What the proxy answers, while the server takes it as accepted.
    pub(super) fn answer(&self, accepted: bool) -> bool {
        accepted && self.promise != Promise::Honesty
    }

    /// Whether a load assignment is the first of its name.
    fn is_first(&mut self, response: &ResponseContent) -> bool {
        let mut is_first = true;
        for resource in &response.resources {
            let alone = ResponseContent { resources: vec![resource.clone()], ..response.clone() };
            is_first &= !self.first.contains_key(&resource.name);
            self.first.entry(resource.name.clone()).or_insert(alone);
        }
        is_first
    }
}
