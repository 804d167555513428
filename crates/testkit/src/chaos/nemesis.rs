//! Rounds of faults: each round injects up to three that do not exclude each other, changes sources meanwhile, repairs
//! everything, changes more, and waits until the proxies have it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use super::faults::{Fault, FaultGroup, Injection};
use super::report::{ChaosReport, Round};
use super::world::World;
use crate::promises::{Event, check};

/// How long a proxy may work with endpoints that have changed, faults not counted. Generous: tests run on busy machines.
const WINDOW: Duration = Duration::from_secs(45);
/// Faults in one round.
const AT_ONCE: usize = 3;

/// How long a run lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChaosLength {
    /// Until each fault was injected once.
    EachOnce,
    /// All faults again and again, with further seeds, until this time is over.
    Time(Duration),
}

#[derive(Clone, Copy, Debug)]
pub struct ChaosOptions {
    pub seed: u64,
    pub length: ChaosLength,
}

/// Runs the nemesis on new replicas of this binary, and checks the promises.
pub async fn run(binary: &Path, options: ChaosOptions) -> ChaosReport {
    let begun = Instant::now();
    let mut world = World::start(binary, options.seed).await;
    println!("seed {}: everything runs after {:.1} s", options.seed, begun.elapsed().as_secs_f64());
    let mut rounds = Vec::new();
    let mut planned: Vec<Fault> = Vec::new();
    let begun = Instant::now();
    loop {
        if planned.is_empty() {
            let is_over = match options.length {
                ChaosLength::EachOnce => !rounds.is_empty(),
                ChaosLength::Time(limit) => begun.elapsed() >= limit,
            };
            if is_over {
                break;
            }
            planned = Fault::ALL.into_iter().filter(|fault| fault.is_possible(&world)).collect();
            world.random.shuffle(&mut planned);
        }
        let faults = next_round(&mut planned);
        let round = play(&mut world, &faults).await;
        println!("{round}");
        rounds.push(round);
    }
    world.expect().await;
    let checked = check(&world.history.events(), world.history.markers(), WINDOW);
    ChaosReport::new(options.seed, rounds, checked, world.history.figures())
}

/// Takes the faults of the next round, of different groups.
fn next_round(planned: &mut Vec<Fault>) -> Vec<Fault> {
    let mut groups: BTreeSet<FaultGroup> = BTreeSet::new();
    let mut faults = Vec::new();
    planned.retain(|fault| {
        let is_taken = faults.len() < AT_ONCE && groups.insert(fault.group());
        if is_taken {
            faults.push(*fault);
        }
        !is_taken
    });
    faults
}

async fn play(world: &mut World, faults: &[Fault]) -> Round {
    let begun = world.history.now();
    let injections: Vec<Injection> = faults.iter().map(|fault| fault.plan(world)).collect();
    for injection in &injections {
        // Recorded first: what it breaks may be noticed at once.
        let (fault, scope) = (injection.name.clone(), injection.scope.clone());
        world.history.record(Event::FaultBegun { fault, scope });
        injection.begin(world).await;
    }
    for _ in 0..6 {
        world.change().await;
        let pause = world.random.u64(50..250);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    world.observe().await;
    for injection in &injections {
        injection.end(world).await;
        world.history.record(Event::FaultEnded { fault: injection.name.clone() });
    }
    for _ in 0..3 {
        world.change().await;
    }
    let settled = world.settle(WINDOW * 2).await;
    world.observe().await;
    Round { faults: faults.to_vec(), begun, ended: world.history.now(), settled }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_all_faults_once_and_no_group_twice() {
        let mut planned = Fault::ALL.to_vec();
        fastrand::Rng::with_seed(7).shuffle(&mut planned);
        let mut seen = Vec::new();
        while !planned.is_empty() {
            let round = next_round(&mut planned);
            let groups: BTreeSet<FaultGroup> = round.iter().map(|fault| fault.group()).collect();
            assert!(!round.is_empty() && groups.len() == round.len() && round.len() <= AT_ONCE, "{round:?}");
            seen.extend(round);
        }
        seen.sort_unstable();
        assert_eq!(seen, Fault::ALL);
    }
}
