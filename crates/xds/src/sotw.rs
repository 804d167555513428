//! State of the world: every request lists all names wanted, every response replaces the one before.
//! The state is `watch`'s; `delta` is the other reader of it.

use api::TypeUrl;
use api::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use tonic::Status;

use crate::control::{Client, Event};
use crate::session::{Answer, Head, Outcome, Session};
use crate::set::{Payload, Protocol, ResourceSet};
use crate::watch::{Plan, Watch};

impl<C: Client> Session<C> {
    /// Takes one request. What it asks for comes out of [`Session::next`].
    pub(crate) fn sotw(&mut self, request: DiscoveryRequest) -> Result<(), Status> {
        let DiscoveryRequest { type_url, resource_names, response_nonce: nonce, error_detail, .. } = request;
        let kind = self.kind(type_url)?;
        if kind == TypeUrl::HEALTH {
            self.client.observe(&Event::Health { error: error_detail.as_ref().map(|e| e.message.as_str()) });
            return Ok(());
        }
        let names = self.interned(&kind, resource_names)?;
        let first = self.watch(&kind).is_none();
        if first && kind.is_debug() && !nonce.is_empty() {
            return Ok(()); // the acknowledgement of a page that was sent once
        }
        if first {
            // With or without a nonce: it may come from a stream to another server.
            self.begin(Watch::new(kind.clone()))?;
        } else if !nonce.is_empty() {
            let error = error_detail.as_ref().map(|e| (e.code, e.message.as_str()));
            if self.answer(&kind, &nonce, error) == Answer::Stale {
                // The client answers the newer response too, with its names as they are then.
                return Ok(());
            }
        }
        let Some(watch) = self.watch(&kind) else { return Ok(()) };
        let before = watch.subscription.clone();
        let added = watch.subscription.replace(&kind, names);
        let again = !first && nonce.is_empty() && !watch.in_flight;
        if added.wildcard || again {
            watch.forget();
        }
        added.names.iter().for_each(|name| watch.forget_name(name));
        if !watch.subscription.is_empty() && (first || again || !added.is_empty()) {
            // Types that list everything say by an answer that a name does not exist.
            watch.owed |= lists_everything(&kind);
            watch.seen = 0;
        }
        if first || before != watch.subscription {
            self.report_subscription(&kind);
        }
        Ok(())
    }
}

/// What to send for a plan; None when there is nothing to tell.
pub(crate) fn outcome(watch: &Watch, plan: &Plan, target: &ResourceSet) -> Option<Outcome> {
    if !lists_everything(&watch.kind) {
        // Only what changed: the protocol allows it for types that others refer to, and a removal has no form.
        let resources = plan.resource_count(target);
        let payload = || plan.payload(target, Protocol::Sotw);
        return (resources > 0).then(|| Outcome { payload: payload(), resources, removed: Vec::new() });
    }
    let news = plan.everything || !plan.changed.is_empty() || !plan.removed.is_empty();
    if !news && !watch.owed {
        return None;
    }
    let lingering = plan.lingering();
    let (payload, resources) = whole(watch, target);
    Some(Outcome {
        payload: payload.followed_by(&Payload::of(&watch.kind, &lingering, Protocol::Sotw)),
        resources: resources + lingering.len(),
        removed: Vec::new(),
    })
}

/// Everything the client subscribes to.
fn whole(watch: &Watch, target: &ResourceSet) -> (Payload, usize) {
    let names = &watch.subscription.names;
    let unlisted = names.iter().filter(|name| target.listed(name).is_none()).filter_map(|name| target.get(name));
    if watch.subscription.wildcard {
        let unlisted: Vec<_> = unlisted.collect();
        let more = Payload::of(&watch.kind, &unlisted, Protocol::Sotw);
        return (target.whole(Protocol::Sotw).followed_by(&more), target.resources().len() + unlisted.len());
    }
    let named: Vec<_> = names.iter().filter_map(|name| target.get(name)).collect();
    (Payload::of(&watch.kind, &named, Protocol::Sotw), named.len())
}

/// Types whose responses list every resource, so that leaving one out removes it.
fn lists_everything(kind: &TypeUrl) -> bool {
    ![TypeUrl::ENDPOINT, TypeUrl::ROUTE, TypeUrl::SECRET, TypeUrl::EXTENSION].contains(kind)
}

pub(crate) fn head(head: &Head<'_>) -> DiscoveryResponse {
    DiscoveryResponse {
        version_info: head.version.to_string(),
        type_url: head.kind.to_string(),
        nonce: head.nonce.to_owned(),
        control_plane: head.control_plane(),
        ..DiscoveryResponse::default()
    }
}
