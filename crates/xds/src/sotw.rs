//! State of the world: every request lists all names wanted, every response replaces the one before.
//! The state is `watch`'s; `delta` is the other reader of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use api::{Resource, TypeUrl, Version};
use tonic::Status;

use crate::control::{Client, Event};
use crate::session::{Answer, Head, Outcome, Session};
use crate::set::{Payload, Protocol, ResourceSet};
use crate::watch::{Held, Plan, Watch};

impl<C: Client> Session<C> {
    /// Takes one request. What it asks for comes out of [`Session::next`].
    pub(crate) fn sotw(&mut self, request: DiscoveryRequest) -> Result<(), Status> {
        let DiscoveryRequest { type_url, resource_names, response_nonce: nonce, version_info, error_detail, .. } =
            request;
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
            if kind == TypeUrl::ENDPOINT && !version_info.is_empty() {
                self.returns_warming();
            }
            // With or without a nonce: it may come from a stream to another server.
            self.begin(Watch::new(kind.clone()))?;
        } else if !nonce.is_empty() {
            let error = error_detail.as_ref().map(|e| (e.code, e.message.as_str()));
            if self.answer(&kind, &nonce, error) == Answer::Stale {
                // The client answers the newer response too, with its names as they are then.
                self.dropped(&kind, &names);
                return Ok(());
            }
        }
        let Some(watch) = self.watch(&kind) else { return Ok(()) };
        let before = watch.subscription.clone();
        let added = watch.subscription.replace(&kind, names);
        let again = !first && nonce.is_empty() && watch.waits_until.is_none();
        if added.wildcard || again {
            watch.forget();
        }
        added.names.iter().for_each(|name| watch.correct(name, Held::Nothing));
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

    /// A name left out for a moment may be back in the next request, but the client has dropped its resource.
    fn dropped(&mut self, kind: &TypeUrl, names: &[Arc<str>]) {
        let Some(watch) = self.watch(kind) else { return };
        let names: BTreeSet<&str> = names.iter().map(|name| &**name).collect();
        let dropped = watch.subscription.names.iter().filter(|name| !names.contains(&***name));
        for name in dropped.cloned().collect::<Vec<_>>() {
            watch.correct(&name, Held::Unknown);
        }
    }
}

/// Whether a plan has anything to tell.
pub(crate) fn is_news(watch: &Watch, plan: &Plan, target: &ResourceSet) -> bool {
    if lists_everything(&watch.kind) {
        watch.owed || plan.everything || !plan.changed.is_empty() || !plan.removed.is_empty()
    } else {
        plan.resource_count(target) > 0
    }
}

/// What to send for a plan.
pub(crate) fn outcome(watch: &Watch, plan: &Plan, target: &ResourceSet) -> Outcome {
    if !lists_everything(&watch.kind) {
        // Only what changed: the protocol allows it for types that others refer to, and a removal has no form.
        return Outcome {
            version: target.version(),
            payload: plan.payload(target, Protocol::Sotw),
            resources: plan.resource_count(target),
            removed: Vec::new(),
        };
    }
    let lingering = plan.lingering();
    let (payload, resources) = whole(watch, target);
    Outcome {
        version: version_with(target, &lingering),
        payload: payload.followed_by(&Payload::of(&watch.kind, &lingering, Protocol::Sotw)),
        resources: resources + lingering.len(),
        removed: Vec::new(),
    }
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

/// The version of a listing; what lingers in it is part of it.
fn version_with(target: &ResourceSet, lingering: &[Resource]) -> Version {
    let mut text = target.version().to_bytes().to_vec();
    for resource in lingering {
        text.extend_from_slice(resource.name.as_bytes());
        text.extend_from_slice(&resource.version.to_bytes());
    }
    if lingering.is_empty() { target.version() } else { Version::of(&text) }
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
