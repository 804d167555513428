//! Requests of the state-of-the-world protocol: each lists all names of a subscription.
//! The state is in `session`; `delta` reads the requests of the other protocol into the same state.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::TypeUrl;
use api::envoy::service::discovery::v3::DiscoveryRequest;
use tonic::Status;

use crate::control::{Client, Event};
use crate::response::lists_everything;
use crate::session::{Answer, Session};
use crate::set::ResourceSet;
use crate::watch::{Held, Watch};

impl<C: Client> Session<C> {
    /// Applies one request. Responses to it are returned by [`Session::next`].
    pub(crate) fn sotw(&mut self, request: DiscoveryRequest) -> Result<(), Status> {
        let kind = self.kind(request.type_url)?;
        let error = request.error_detail.as_ref();
        if kind == TypeUrl::HEALTH {
            self.client.observe(&Event::Health { error: error.map(|e| e.message.as_str()) });
            return Ok(());
        }
        let (nonce, names) = (request.response_nonce, request.resource_names);
        let Some(watch) = self.watch(&kind) else {
            // With or without a nonce: it may be of a stream to another server.
            return self.sotw_begin(kind, names, &nonce, !request.version_info.is_empty());
        };
        let repeated = watch.subscription.is_repeated_by(&names);
        if !nonce.is_empty() {
            if self.answer(&kind, &nonce, error.map(|e| (e.code, e.message.as_str()))) == Answer::Stale {
                // The client will answer the newer response too, with the names it wants then.
                self.dropped(&kind, &names);
                return Ok(());
            }
            if repeated {
                return Ok(());
            }
        }
        let names = self.interned(&kind, names)?;
        let current = self.client.current(&kind);
        let Some(watch) = self.watch(&kind) else { return Ok(()) };
        if nonce.is_empty() && watch.waits_until.is_none() {
            watch.forget();
            watch.owed |= lists_everything(&kind);
        }
        watch.wants(names, current.as_deref());
        watch.owed &= !watch.subscription.is_empty();
        if !repeated {
            self.account()?;
            self.report_subscription(&kind);
        }
        Ok(())
    }

    fn sotw_begin(&mut self, kind: TypeUrl, names: Vec<String>, nonce: &str, returning: bool) -> Result<(), Status> {
        if kind.is_debug() {
            if self.gave(nonce) {
                return Ok(()); // acknowledges a debug page, which is no subscription
            }
            self.check_debug_type(&kind)?;
        }
        let names = self.interned(&kind, names)?;
        self.returning |= returning;
        if kind == TypeUrl::ENDPOINT && returning {
            self.returns_warming();
        }
        let mut watch = Watch::new(kind.clone());
        watch.wants(names, self.client.current(&kind).as_deref());
        self.begin(watch)?;
        self.account()?;
        self.report_subscription(&kind);
        Ok(())
    }

    /// A name that is omitted once and then requested again is sent again: the client has dropped its resource.
    fn dropped(&mut self, kind: &TypeUrl, names: &[String]) {
        let Some(watch) = self.watch(kind) else { return };
        if watch.subscription.wildcard && !watch.subscription.is_wildcard_list(kind, names) {
            watch.forget();
            return;
        }
        let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let dropped = watch.subscription.names.iter().filter(|name| !names.contains(&***name));
        for name in dropped.cloned().collect::<Vec<_>>() {
            watch.correct(&name, Held::Unknown);
        }
    }
}

impl Watch {
    /// Subscribes to these names; new ones are due.
    fn wants(&mut self, names: Vec<Arc<str>>, current: Option<&ResourceSet>) {
        let added = self.subscription.replace(&self.kind, names);
        if let Some(current) = current {
            self.subscription.share(current);
        }
        if added.wildcard {
            self.forget();
        }
        added.names.iter().for_each(|name| self.correct(name, Held::Nothing));
        if !added.is_empty() {
            // For types whose responses list everything, a response shows that a name does not exist.
            self.owed |= lists_everything(&self.kind);
            self.seen = 0;
        }
    }
}
