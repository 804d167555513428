//! Requests of the state-of-the-world protocol: each lists all names that are wanted.
//! The state is `session`'s; `delta` is the other reader of requests.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::TypeUrl;
use api::envoy::service::discovery::v3::DiscoveryRequest;
use tonic::Status;

use crate::control::{Client, Event};
use crate::response::lists_everything;
use crate::session::{Answer, Session};
use crate::watch::{Held, Watch};

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
            self.returning |= !version_info.is_empty();
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
