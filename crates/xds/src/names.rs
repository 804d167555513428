//! Accounts for the resource names of a stream: limits over all types, and a charge for names that do not exist.
//! Names that exist share memory with their resources and cost almost nothing.

use std::sync::Arc;

use api::TypeUrl;
use tonic::Status;

use crate::budget::Charge;
use crate::limits::Limits;
use crate::set::ResourceSet;
use crate::watch::Watch;

/// Bytes for one name: its entries in the subscription and in the client's holding, and the string's header.
const NAME_COST: usize = 160;

/// From this many bytes on, names are looked up one by one. Up to here, the stream's own charge covers them.
const LOOKED_AT: usize = 64 * 1024;

/// Streams with more names than this wait for a turn before they are processed.
const MANY: usize = 4_000;

/// The names of one stream.
#[derive(Debug)]
pub(crate) struct Names {
    charge: Charge,
    /// Bytes that all names would cost if none of them existed, at the last lookup.
    looked_at: usize,
}

impl Names {
    pub(crate) fn new(charge: Charge) -> Self {
        Self { charge, looked_at: LOOKED_AT }
    }
}

/// Whether work on a stream takes so long that it needs a turn.
pub(crate) fn is_heavy(watches: &[Watch]) -> bool {
    let names: usize = watches.iter().map(entries).sum();
    names > MANY || watches.iter().any(|watch| watch.kind.is_debug())
}

impl Names {
    /// Checks the limits after names changed, and charges the client for names that do not exist.
    pub(crate) fn account(
        &mut self,
        watches: &[Watch],
        limits: &Limits,
        mut current: impl FnMut(&TypeUrl) -> Option<Arc<ResourceSet>>,
    ) -> Result<(), Status> {
        let subscriptions = || watches.iter().map(|watch| &watch.subscription);
        let (count, bytes): (usize, usize) =
            (subscriptions().map(|s| s.names.len()).sum(), subscriptions().map(|s| s.name_bytes).sum());
        within("resource names", count, limits.stream_names)?;
        within("bytes of resource names", bytes, limits.stream_name_bytes)?;
        // An upper bound is enough to see that the names changed little since the last lookup.
        let at_most = watches.iter().map(entries).sum::<usize>() * NAME_COST + bytes;
        if at_most.abs_diff(self.looked_at) <= self.looked_at / 4 {
            return Ok(());
        }
        if at_most <= LOOKED_AT {
            self.looked_at = LOOKED_AT;
            return Ok(self.charge.set(0)?);
        }
        let cost = watches.iter().map(|watch| cost(watch, current(&watch.kind).as_deref())).sum();
        self.looked_at = at_most;
        Ok(self.charge.set(cost)?)
    }
}

fn within(what: &str, count: usize, most: usize) -> Result<(), Status> {
    if count > most {
        return Err(Status::resource_exhausted(format!("more than {most} {what} on a stream")));
    }
    Ok(())
}

/// Bytes for those names of one type that do not exist.
fn cost(watch: &Watch, current: Option<&ResourceSet>) -> usize {
    let lists_all = |set: &ResourceSet| set.lists_exactly(&watch.subscription.names);
    if watch.holding.except.is_empty() && current.is_some_and(lists_all) {
        return 0;
    }
    let exists = |name: &str| current.is_some_and(|set| set.listed(name).is_some());
    let named = &watch.subscription.names;
    let held = watch.holding.except.keys().filter(|name| !named.contains(*name));
    named.iter().chain(held).filter(|name| !exists(name)).map(|name| NAME_COST + name.len()).sum()
}

fn entries(watch: &Watch) -> usize {
    watch.subscription.names.len().max(watch.holding.except.len())
}
