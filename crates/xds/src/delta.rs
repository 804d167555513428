//! Requests of the delta protocol: each subscribes to names and unsubscribes from names.
//! The state is in `session`; `sotw` reads the requests of the other protocol into the same state.

use std::sync::Arc;

use api::{TypeUrl, Version};
use tonic::Status;

use crate::control::{Client, Event};
use crate::decode::DeltaRequest;
use crate::held::HeldVersions;
use crate::layer::{NameSet, Sum};
use crate::session::{Session, Warming};
use crate::set::ResourceSet;
use crate::subscription::{Added, Subscription};
use crate::watch::{Held, Watch};

impl<C: Client> Session<C> {
    /// Applies one request. Responses to it are returned by [`Session::next`].
    pub(crate) fn delta(&mut self, request: DeltaRequest) -> Result<(), Status> {
        let DeltaRequest { message: request, held } = request;
        let kind = self.kind(request.type_url)?;
        if kind == TypeUrl::HEALTH {
            self.client.observe(&Event::Health { error: request.error_detail.as_ref().map(|e| e.message.as_str()) });
            return Ok(());
        }
        let subscribe = request.resource_names_subscribe;
        let unsubscribe = request.resource_names_unsubscribe;
        let nonce = request.response_nonce;
        if self.watch(&kind).is_none() {
            if kind.is_debug() {
                if self.gave(&nonce) {
                    return Ok(()); // acknowledges a debug page, which is no subscription
                }
                self.check_debug_type(&kind)?;
            }
            return self.delta_begin(kind, subscribe, &unsubscribe, &held);
        }
        if !nonce.is_empty() {
            // The names below count even if the nonce is stale: no later request repeats them.
            let error = request.error_detail.as_ref().map(|e| (e.code, e.message.as_str()));
            self.answer(&kind, &nonce, error);
        }
        let subscribe = self.interned(&kind, subscribe)?;
        self.delta_modify(&kind, subscribe, &unsubscribe)
    }

    fn delta_begin(
        &mut self,
        kind: TypeUrl,
        subscribe: Vec<String>,
        unsubscribe: &[String],
        held: &HeldVersions,
    ) -> Result<(), Status> {
        self.returning |= !held.is_empty();
        if kind == TypeUrl::ENDPOINT && !held.is_empty() {
            self.returns_warming();
        }
        if kind == TypeUrl::CLUSTER && !held.is_empty() {
            self.returns_with_clusters();
        }
        let mut watch = Watch::new(kind.clone());
        let (subscription, added) = match self.subscribed_whole(&kind, &subscribe, unsubscribe) {
            Some(names) => {
                let added = Added { wildcard: false, names: names.names.iter().cloned().collect() };
                (Subscription::of(names), added)
            }
            None => Subscription::begin(&kind, self.interned(&kind, subscribe)?, unsubscribe),
        };
        // A client without any resources waits for the first response even if it is empty.
        watch.owed = added.wildcard;
        if let Some(current) = self.held_in_full(&kind, &subscription, held) {
            watch.holding.base = Some(current);
        } else {
            let held_names = self.interned(&kind, held.iter().map(|(name, _)| name.to_owned()).collect())?;
            for (name, (_, version)) in held_names.into_iter().zip(held.iter()) {
                if subscription.covers(&name) && !self.must_resend(&kind, &name) {
                    watch.holding.except.insert(name, Version::parse(version).map_or(Held::Unknown, Held::Version));
                }
            }
            let is_held = |name: &Arc<str>| watch.holding.except.contains_key(name);
            watch.forced = added.names.into_iter().filter(|name| !is_held(name)).collect();
        }
        watch.subscription = subscription;
        if kind == TypeUrl::ENDPOINT {
            self.warming = Default::default();
        }
        self.begin(watch)?;
        self.account()?;
        self.report_subscription(&kind);
        Ok(())
    }

    /// All names of the current set, if a first request subscribes to exactly these. One comparison of sums covers all.
    fn subscribed_whole(&mut self, kind: &TypeUrl, subscribe: &[String], unsubscribe: &[String]) -> Option<NameSet> {
        if subscribe.is_empty() || !unsubscribe.is_empty() {
            return None;
        }
        let sum = subscribe.iter().fold(Sum::default(), |sum, name| sum.plus(Sum::of_name(name)));
        self.client.current(kind)?.names_equal_to(subscribe.len(), sum)
    }

    /// The current set, if the client holds exactly its resources. One comparison of sums covers all of them.
    fn held_in_full(
        &mut self,
        kind: &TypeUrl,
        subscription: &Subscription,
        held: &HeldVersions,
    ) -> Option<Arc<ResourceSet>> {
        if held.is_empty() || *kind == TypeUrl::ENDPOINT && self.must_resend_any() {
            return None;
        }
        let current = self.client.current(kind)?;
        let is_wanted =
            subscription.wildcard && subscription.names.is_empty() || current.lists_exactly(&subscription.names);
        (is_wanted && held.equals(current.len(), current.sum())).then_some(current)
    }

    /// Whether any load assignment is sent although the client holds it.
    fn must_resend_any(&self) -> bool {
        let clusters_asked = self.watches.iter().any(|watch| watch.kind == TypeUrl::CLUSTER);
        self.terms.only.is_none() && (!clusters_asked || !matches!(self.warming, Warming::Nothing))
    }

    /// Whether a load assignment is sent although the client holds it: either its cluster was sent on this stream, or
    /// the client asks for endpoints before clusters. Envoy does that while it is warming clusters, and the server
    /// cannot see which ones.
    fn must_resend(&self, kind: &TypeUrl, name: &str) -> bool {
        let aggregated = self.terms.only.is_none();
        let clusters_asked = self.watches.iter().any(|watch| watch.kind == TypeUrl::CLUSTER);
        *kind == TypeUrl::ENDPOINT && aggregated && (!clusters_asked || self.warming.contains(name))
    }

    fn delta_modify(&mut self, kind: &TypeUrl, subscribe: Vec<Arc<str>>, unsubscribe: &[String]) -> Result<(), Status> {
        if subscribe.is_empty() && unsubscribe.is_empty() {
            return Ok(());
        }
        let most = self.terms.limits.names;
        let current = self.client.current(kind);
        let Some(watch) = self.watch(kind) else { return Ok(()) };
        let added = watch.subscription.modify(subscribe, unsubscribe);
        if let Some(current) = current {
            watch.subscription.share(&current);
        }
        if watch.subscription.names.len() > most {
            return Err(Status::resource_exhausted(format!("more than {most} resource names on a stream")));
        }
        if added.wildcard {
            watch.forget();
            watch.owed = true;
        }
        watch.forced.extend(added.names);
        for name in unsubscribe {
            watch.forced.remove(name.as_str());
            let name: Arc<str> = Arc::from(name.as_str());
            if watch.subscription.covers(&name) {
                // Unsubscribed by name but still covered by the wildcard: the client expects the current state of it.
                watch.forced.insert(name);
            } else {
                watch.holding.except.remove(&name);
            }
        }
        self.account()?;
        self.report_subscription(kind);
        Ok(())
    }
}
