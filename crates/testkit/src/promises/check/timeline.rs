//! What sources had at which time, and which faults touched what.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::history::{EndpointSet, Event, FaultScope, MeshPart, TimedEvent};

/// A state of a service in its source.
#[derive(Debug)]
pub(super) struct InputState {
    pub(super) endpoints: EndpointSet,
    pub(super) begun: Duration,
    pub(super) done: Duration,
}

/// The states of one service, in order. The first is the empty one before the first input.
#[derive(Debug)]
pub(super) struct ServiceInputs {
    pub(super) source: Arc<str>,
    pub(super) states: Vec<InputState>,
}

#[derive(Debug)]
struct FaultSpan {
    fault: Arc<str>,
    scope: FaultScope,
    begun: Duration,
    ended: Duration,
}

pub(super) struct Timeline {
    pub(super) services: BTreeMap<Arc<str>, ServiceInputs>,
    faults: Vec<FaultSpan>,
    pub(super) window: Duration,
}

impl Timeline {
    pub(super) fn of(events: &[TimedEvent], window: Duration) -> Timeline {
        let mut timeline = Timeline { services: BTreeMap::new(), faults: Vec::new(), window };
        for TimedEvent { at, event } in events {
            match event {
                Event::Input { source, service, endpoints, begun } => {
                    let before =
                        || InputState { endpoints: EndpointSet::new(), begun: Duration::ZERO, done: Duration::ZERO };
                    let inputs = timeline
                        .services
                        .entry(service.clone())
                        .or_insert_with(|| ServiceInputs { source: source.clone(), states: vec![before()] });
                    inputs.states.push(InputState { endpoints: endpoints.clone(), begun: *begun, done: *at });
                }
                Event::FaultBegun { fault, scope } => timeline.faults.push(FaultSpan {
                    fault: fault.clone(),
                    scope: scope.clone(),
                    begun: *at,
                    ended: Duration::MAX,
                }),
                Event::FaultEnded { fault } => {
                    let open = timeline.faults.iter_mut().rev();
                    let open = open.into_iter().find(|span| span.fault == *fault && span.ended == Duration::MAX);
                    if let Some(span) = open {
                        span.ended = *at;
                    }
                }
                _ => {}
            }
        }
        timeline
    }

    /// The time between two moments in which no fault touched a part of the chain.
    pub(super) fn undisturbed(&self, chain: &[MeshPart], from: Duration, to: Duration) -> Duration {
        let touching = self.faults.iter().filter(|span| span.scope.touches(chain));
        let mut spans: Vec<(Duration, Duration)> =
            touching.map(|span| (span.begun.max(from), span.ended.min(to))).filter(|(a, b)| a < b).collect();
        spans.sort_unstable();
        let (mut disturbed, mut end) = (Duration::ZERO, from);
        for (begun, ended) in spans {
            disturbed += ended.saturating_sub(begun.max(end));
            end = end.max(ended);
        }
        to.saturating_sub(from).saturating_sub(disturbed)
    }

    /// Names of the faults between two moments, whatever they touch.
    pub(super) fn faults_between(&self, from: Duration, to: Duration) -> Vec<&str> {
        self.faults.iter().filter(|span| span.begun < to && span.ended > from).map(|span| &*span.fault).collect()
    }
}

impl ServiceInputs {
    /// Whether a proxy behind this chain may have these endpoints at this time, from state `least` or a later one.
    pub(super) fn allows(
        &self,
        timeline: &Timeline,
        chain: &[MeshPart],
        endpoints: &EndpointSet,
        at: Duration,
        least: usize,
    ) -> bool {
        let is_allowed = |(index, state): (usize, &InputState)| {
            let replaced = self.states.get(index + 1);
            index >= least
                && state.endpoints == *endpoints
                && state.begun <= at
                && replaced.is_none_or(|next| timeline.undisturbed(chain, next.done.min(at), at) <= timeline.window)
        };
        self.states.iter().enumerate().any(is_allowed)
    }

    /// The newest state with these endpoints.
    pub(super) fn newest(&self, endpoints: &EndpointSet, at: Duration) -> Option<usize> {
        self.states.iter().rposition(|state| state.endpoints == *endpoints && state.begun <= at)
    }
}
