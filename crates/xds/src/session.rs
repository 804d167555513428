//! One stream as a value: all watched types, the order in which they are sent, and which wait for others.
//! No I/O happens here: requests and worlds are put in, encoded responses come out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::TypeUrl;
use bytes::Bytes;
use tonic::Status;

use crate::budget::Share;
use crate::control::{Client, Event, Rejection, Verdict};
use crate::limits::Limits;
use crate::names::{self, Names};
use crate::payload::Protocol;
use crate::response::{Head, Response, is_news, response};
use crate::set::ResourceSet;
use crate::watch::{Epoch, Offer, Plan, Watch};

/// Properties of a stream that do not change.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) protocol: Protocol,
    /// The type of a single-type service; None on an aggregated stream.
    pub(crate) only: Option<TypeUrl>,
    pub(crate) limits: Arc<Limits>,
    /// Sent in every response's `control_plane`.
    pub(crate) identifier: Arc<str>,
    /// Makes nonces of different streams differ.
    pub(crate) stream: u64,
    /// The budget share of the client's address.
    pub(crate) share: Share,
}

/// The state of one stream.
pub(crate) struct Session<C> {
    pub(crate) client: C,
    pub(crate) terms: Terms,
    pub(crate) watches: Vec<Watch>,
    pub(crate) warming: Warming,
    pub(crate) names: Names,
    epoch: Epoch,
    /// The last world that was reported as settled; 0 after a response.
    reported: Epoch,
    responses: u64,
    began: Instant,
    /// The client was connected before, to this server or another.
    pub(crate) returning: bool,
    /// Deadline until which listeners and routes wait for a request for clusters.
    clusters_by: Option<Instant>,
    /// Deadline until which removals wait for requests for listeners and routes.
    users_by: Option<Instant>,
}

/// Time for a reconnecting client to repeat all its subscriptions. It sends them at once.
const GRACE: Duration = Duration::from_secs(2);

/// Clusters sent on this stream before the client asked for endpoints. Envoy warms them again and needs their load
/// assignments even if it already has them.
#[derive(Debug, Default)]
pub(crate) enum Warming {
    #[default]
    Nothing,
    Everything,
    Names(BTreeSet<Arc<str>>),
}

impl Warming {
    pub(crate) fn contains(&self, name: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Names(names) => names.contains(name),
        }
    }

    fn add(&mut self, plan: &Plan) {
        match self {
            Self::Everything => {}
            _ if plan.everything => *self = Self::Everything,
            _ if plan.changed.is_empty() => {}
            Self::Names(names) => names.extend(plan.changed.iter().map(|r| Arc::clone(&r.name))),
            Self::Nothing => *self = Self::Names(plan.changed.iter().map(|r| Arc::clone(&r.name)).collect()),
        }
    }
}

impl<C: Client> Session<C> {
    pub(crate) fn new(client: C, terms: Terms, began: Instant) -> Self {
        Self {
            client,
            names: Names::new(terms.share.nothing()),
            terms,
            watches: Vec::new(),
            warming: Warming::Nothing,
            epoch: 1,
            reported: 0,
            responses: 0,
            began,
            returning: false,
            clusters_by: None,
            users_by: None,
        }
    }

    /// The client adopted a newer world.
    pub(crate) fn world_moved(&mut self) {
        self.epoch += 1;
    }

    /// The next response to send, or None until a request or a new world arrives.
    /// Order: clusters, endpoints, listeners, routes, the rest; removals of clusters and endpoints last.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Response> {
        self.lose_patience(now);
        loop {
            let released = self.released();
            for at in 0..self.watches.len() {
                if let Some(response) = self.advance(at, released, now) {
                    return Some(response);
                }
            }
            // Listeners or routes without changes settle in this pass, which may release removals.
            if self.released() == released {
                return None;
            }
        }
    }

    /// Reports that the client has everything of the current world, once for each world and response.
    pub(crate) fn report_settled(&mut self) {
        let is_new = self.reported < self.epoch && !self.watches.is_empty();
        if is_new && self.watches.iter().all(|watch| watch.is_settled(self.epoch)) {
            self.reported = self.epoch;
            self.client.observe(&Event::Settled);
        }
    }

    /// Whether `next` may return a response; cheaper than `next`.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        self.lose_patience(now);
        let released = self.released();
        self.watches.iter().any(|watch| {
            let released = if outlives_its_users(&watch.kind) { released } else { Epoch::MAX };
            watch.is_due(self.epoch, released)
        })
    }

    /// Whether `next` takes almost no time: all types are cheap to get, and few names can differ.
    pub(crate) fn is_quick(&mut self) -> bool {
        let Self { watches, client, .. } = self;
        watches.iter().all(|watch| watch.is_small() && client.is_quick(&watch.kind, watch.unlisted()))
    }

    /// Whether a type is watched, so that a request for it may be an answer.
    pub(crate) fn watches(&self, kind: &str) -> bool {
        self.watches.iter().any(|watch| watch.kind.as_str() == kind)
    }

    /// When to call `next` again although nothing happened.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.watches.iter().filter_map(|watch| watch.waits_until).chain(self.clusters_by).chain(self.users_by).min()
    }

    /// Called for a client that reconnects with clusters and asks for endpoints first: it is warming clusters and will
    /// ask for all clusters later. Until then it gets no listeners or routes, which might refer to newer clusters.
    pub(crate) fn returns_warming(&mut self) {
        let asked = self.watches.iter().any(|watch| watch.kind == TypeUrl::CLUSTER);
        if !asked && self.terms.only.is_none() {
            self.clusters_by = Some(self.began + self.terms.limits.patience);
        }
    }

    /// Called for a client that reconnects with clusters. None is removed before its listeners and routes are known.
    pub(crate) fn returns_with_clusters(&mut self) {
        if self.terms.only.is_none() {
            self.users_by = Some(self.began + GRACE);
        }
    }

    pub(crate) fn watch(&mut self, kind: &TypeUrl) -> Option<&mut Watch> {
        self.watches.iter_mut().find(|watch| watch.kind == *kind)
    }

    /// Starts to watch a type, at its position in the push order.
    pub(crate) fn begin(&mut self, watch: Watch) -> Result<(), Status> {
        if self.watches.len() >= self.terms.limits.types {
            return Err(Status::resource_exhausted(format!("more than {} types on a stream", self.watches.len())));
        }
        if watch.kind == TypeUrl::CLUSTER {
            self.clusters_by = None;
        }
        let at = self.watches.partition_point(|other| push_order(&other.kind) <= push_order(&watch.kind));
        self.watches.insert(at, watch);
        Ok(())
    }

    /// The type of a request: the only type of a single-type service, or the one that the request names.
    pub(crate) fn kind(&self, type_url: String) -> Result<TypeUrl, Status> {
        let (bytes, most) = (type_url.len(), self.terms.limits.type_bytes);
        if bytes > most {
            return Err(Status::invalid_argument(format!("type of {bytes} bytes, at most {most}")));
        }
        match &self.terms.only {
            Some(only) if type_url.is_empty() || type_url == only.as_str() => Ok(only.clone()),
            Some(only) => Err(Status::invalid_argument(format!("this service serves {only}, not {type_url}"))),
            None if type_url.is_empty() => Err(Status::invalid_argument("request without a type")),
            None => Ok(type_url.into()),
        }
    }

    /// Whether work on this stream takes so long that it needs a turn.
    pub(crate) fn is_heavy(&self) -> bool {
        names::is_heavy(&self.watches)
    }

    /// Checks limits and charges for the names of all types, after some of them changed.
    pub(crate) fn account(&mut self) -> Result<(), Status> {
        let Self { names, watches, terms, client, .. } = self;
        names.account(watches, &terms.limits, |kind| client.current(kind))
    }

    /// The names with the allocations of the current set, so that all streams share one per name.
    pub(crate) fn interned(&mut self, kind: &TypeUrl, names: Vec<String>) -> Result<Vec<Arc<str>>, Status> {
        let limits = &self.terms.limits;
        let (count, most) = (names.len(), if kind.is_debug() { limits.pages } else { limits.names });
        if count > most {
            return Err(Status::resource_exhausted(format!(
                "a request has {count} resource names, at most {most} are allowed"
            )));
        }
        if let Some(long) = names.iter().map(String::len).find(|len| *len > limits.name_bytes) {
            return Err(Status::invalid_argument(format!(
                "a resource name has {long} bytes, at most {} are allowed",
                limits.name_bytes
            )));
        }
        let current = if names.is_empty() { None } else { self.client.current(kind) };
        let intern = |name: String| match current.as_ref().and_then(|set| set.listed(&name)) {
            Some(resource) => Arc::clone(&resource.name),
            None => Arc::from(name),
        };
        Ok(names.into_iter().map(intern).collect())
    }

    /// Whether a nonce is of a response on this stream. istioctl puts the time into the nonce of its first request.
    pub(crate) fn gave(&self, nonce: &str) -> bool {
        let of_stream = nonce.strip_prefix(&*format!("{:016x}-", self.terms.stream));
        let number = of_stream.and_then(|number| number.parse::<u64>().ok());
        number.is_some_and(|number| (1..=self.responses).contains(&number))
    }

    /// Rejects a debug type that is not served: a client without a response would wait until its timeout.
    pub(crate) fn check_debug_type(&self, kind: &TypeUrl) -> Result<(), Status> {
        const KNOWN: [TypeUrl; 3] = [TypeUrl::DEBUG, TypeUrl::DEBUG_SYNCZ, TypeUrl::DEBUG_CONFIG_DUMP];
        if !KNOWN.contains(kind) {
            return Err(Status::invalid_argument(format!("unknown debug type {kind}")));
        }
        if !self.client.may_debug() {
            return Err(Status::permission_denied("debug pages are served to clients on loopback only"));
        }
        Ok(())
    }

    /// Matches a nonce with the watch's last response. Other nonces are stale; they are reported and otherwise ignored.
    /// A rejected response counts as delivered unless the control plane takes out its cause, because the same
    /// resources would be rejected again.
    pub(crate) fn answer(&mut self, kind: &TypeUrl, nonce: &str, error: Option<(i32, &str)>) -> Answer {
        let stream = self.terms.stream;
        let most = self.terms.limits.message_bytes;
        let error = error.map(|(code, message)| (code, &message[..message.floor_char_boundary(most)]));
        let Some(watch) = self.watches.iter_mut().find(|watch| watch.kind == *kind) else { return Answer::Stale };
        let Some(version) = watch.version.filter(|_| is_nonce(nonce, stream, watch.nonce)) else {
            self.client.observe(&Event::Stale { kind, nonce });
            return Answer::Stale;
        };
        if watch.unanswered {
            watch.answered();
            let offer = watch.offer.take();
            self.client.observe(&match error {
                None => Event::Acked { kind, nonce, version },
                Some((code, message)) => Event::Nacked { kind, nonce, version, code, message },
            });
            if let (Some((_, message)), Some(offer)) = (error, offer) {
                self.rejected(kind, message, offer);
            }
        }
        Answer::Current
    }

    /// Applies an acknowledgement of the last response of a type. Returns false if it is anything else.
    pub(crate) fn acknowledged(&mut self, kind: &str, nonce: &str) -> bool {
        let stream = self.terms.stream;
        let is_answered = |watch: &&Watch| watch.kind.as_str() == kind && is_nonce(nonce, stream, watch.nonce);
        let Some(watch) = self.watches.iter().find(is_answered) else { return false };
        let kind = watch.kind.clone();
        self.answer(&kind, nonce, None) == Answer::Current
    }

    fn rejected(&mut self, kind: &TypeUrl, message: &str, offer: Offer) {
        let rejection = Rejection { kind, message, offered: &offer.resources() };
        if self.client.rejected(&rejection) == Verdict::Unchanged {
            return;
        }
        if let Some(watch) = self.watch(kind) {
            watch.retract(offer);
        }
        self.world_moved();
    }

    pub(crate) fn report_subscription(&mut self, kind: &TypeUrl) {
        let Some(watch) = self.watches.iter().find(|watch| watch.kind == *kind) else { return };
        let subscription = &watch.subscription;
        self.client.observe(&if subscription.is_empty() {
            Event::Unsubscribed { kind }
        } else {
            Event::Subscribed { kind, wildcard: subscription.wildcard, names: &subscription.names }
        });
    }

    /// The latest world whose removals may be sent: its listeners and routes were answered, or are not watched.
    fn released(&self) -> Epoch {
        let users = || self.watches.iter().filter(|watch| refers_to_clusters(&watch.kind));
        if self.users_by.is_some() && users().count() < USERS.len() {
            return 0;
        }
        users().map(|watch| watch.settled).min().unwrap_or(Epoch::MAX)
    }

    /// Stops waiting for overdue answers. Envoy does not answer for clusters while one of them is warming; if that
    /// never ends, other changes must still be sent.
    fn lose_patience(&mut self, now: Instant) {
        let overdue = |until: &mut Instant| *until <= now;
        for watch in &mut self.watches {
            if watch.waits_until.as_mut().is_some_and(overdue) {
                watch.go_on();
            }
        }
        self.clusters_by.take_if(overdue);
        self.users_by.take_if(overdue);
    }

    /// Sends what one type needs, unless it has to wait.
    fn advance(&mut self, at: usize, released: Epoch, now: Instant) -> Option<Response> {
        if self.waits_for_clusters(&self.watches.get(at)?.kind) {
            return None;
        }
        let watch = self.watches.get_mut(at)?;
        let released = if outlives_its_users(&watch.kind) { released } else { Epoch::MAX };
        if !watch.is_due(self.epoch, released) {
            return None;
        }
        let Some(target) = self.client.current(&watch.kind) else {
            watch.carried_out_nothing(self.epoch);
            return None;
        };
        if watch.is_unchanged(&target) {
            watch.unchanged(self.epoch);
            self.client.observe(&Event::UpToDate { kind: &watch.kind });
            return None;
        }
        let plan = watch.plan(&target, self.epoch, released);
        if !is_news(self.terms.protocol, watch, &plan, &target) {
            watch.carried_out(plan, target, self.epoch);
            self.client.observe(&Event::UpToDate { kind: &watch.kind });
            return None;
        }
        if watch.waits_until.is_some() { None } else { Some(self.send(at, plan, target, now)) }
    }

    /// Whether listeners or routes must wait for clusters of the current world that are being sent or warmed.
    /// Envoy acknowledges new clusters when they are warm, and answers 503 for a route to one that is not.
    /// A new client with its first clusters has no traffic yet and may ask in any order.
    fn waits_for_clusters(&self, kind: &TypeUrl) -> bool {
        let pending = |clusters: &Watch| {
            let in_use = self.returning || clusters.answered_before;
            clusters.seen < self.epoch || (in_use && clusters.introduced && clusters.waits_until.is_some())
        };
        let clusters = self.watches.iter().find(|watch| watch.kind == TypeUrl::CLUSTER);
        refers_to_clusters(kind) && (self.clusters_by.is_some() || clusters.is_some_and(pending))
    }

    fn send(&mut self, at: usize, mut plan: Plan, target: Arc<ResourceSet>, now: Instant) -> Response {
        self.responses += 1;
        self.reported = 0;
        let nonce = nonce_text(self.terms.stream, self.responses);
        let kind = self.watches[at].kind.clone();
        // The first response names the control plane, which Envoy keeps; istioctl reads the name of each debug page.
        let is_named = self.responses == 1 || kind.is_debug();
        let head = Head { nonce: &nonce, identifier: is_named.then_some(&*self.terms.identifier) };
        let response = response(self.terms.protocol, &self.watches[at], &plan, &target, &head);
        if self.terms.protocol == Protocol::Sotw {
            plan.lists_all();
        }
        if kind == TypeUrl::CLUSTER {
            self.warm(&plan);
        }
        let watch = &mut self.watches[at];
        watch.sent(self.responses, response.version, plan.introduces, now + self.terms.limits.patience);
        watch.offered(plan, target, self.epoch);
        if kind.is_debug() {
            // A debug page answers one request; it is no subscription.
            self.watches.remove(at);
        }
        let Response { version, resources, removed, ref chunks } = response;
        let bytes = chunks.iter().map(Bytes::len).sum();
        self.client.observe(&Event::Sent { kind: &kind, nonce: &nonce, version, resources, removed, bytes });
        response
    }

    /// Envoy warms every cluster it is sent, which ends when it gets the load assignment, changed or not.
    /// Clusters and their load assignments have the same names.
    fn warm(&mut self, clusters: &Plan) {
        let Some(endpoints) = self.watch(&TypeUrl::ENDPOINT) else {
            if self.terms.protocol == Protocol::Delta {
                self.warming.add(clusters);
            }
            return;
        };
        if clusters.everything {
            endpoints.forget();
            return;
        }
        let names = clusters.changed.iter().map(|cluster| &cluster.name);
        let covered: Vec<_> = names.filter(|name| endpoints.subscription.covers(name)).cloned().collect();
        endpoints.forced.extend(covered);
    }
}

/// Whether a request's nonce was that of the last response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Current,
    Stale,
}

fn nonce_text(stream: u64, response: u64) -> String {
    format!("{stream:016x}-{response}")
}

/// Whether this is `nonce_text(stream, response)`.
fn is_nonce(nonce: &str, stream: u64, response: u64) -> bool {
    let Some((of_stream, number)) = nonce.split_at_checked(16) else { return false };
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let Some(number) = number.strip_prefix('-').filter(|number| !number.starts_with(['0', '+'])) else { return false };
    of_stream.bytes().all(is_hex)
        && u64::from_str_radix(of_stream, 16) == Ok(stream)
        && number.parse::<u64>() == Ok(response)
}

fn push_order(kind: &TypeUrl) -> usize {
    const ORDER: [TypeUrl; 5] =
        [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER, TypeUrl::ROUTE, TypeUrl::SECRET];
    ORDER.iter().position(|first| first == kind).unwrap_or(ORDER.len())
}

/// Types that refer to clusters.
const USERS: [TypeUrl; 2] = [TypeUrl::LISTENER, TypeUrl::ROUTE];

fn refers_to_clusters(kind: &TypeUrl) -> bool {
    USERS.contains(kind)
}

/// Types whose removals wait until nothing on the client refers to them.
fn outlives_its_users(kind: &TypeUrl) -> bool {
    [TypeUrl::CLUSTER, TypeUrl::ENDPOINT].contains(kind)
}

#[cfg(test)]
mod tests {
    use super::{is_nonce, nonce_text};

    #[test]
    fn nonce_is_recognised_in_no_other_spelling() {
        let stream = 0xab_cdef;
        assert!(is_nonce(&nonce_text(stream, 12), stream, 12));
        for other in
            ["", "-12", "0000000000abcdef-", "0000000000ABCDEF-12", "0000000000abcdef-012", "0000000000abcdef-+12"]
        {
            assert!(!is_nonce(other, stream, 12), "{other}");
        }
        assert!(!is_nonce(&nonce_text(stream, 12), stream, 13) && !is_nonce(&nonce_text(1, 12), stream, 12));
    }
}
