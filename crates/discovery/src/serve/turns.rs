//! Fair turns of computation. Work for clients runs on separate threads, as many at a time as there are cores, and
//! namespaces take turns by the time they have used. Work that takes long gives up its place and continues next to
//! others, but its namespace gets no further turn, so that one namespace does not delay another.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::names::Namespace;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::Instant;
use xds::{Executor, Job};

use super::offload::offload;

/// Work that takes longer than this no longer counts as running, so that other work may start. Most work takes far less.
const SHORT: Duration = Duration::from_millis(25);
/// Long work that may run per core. The operating system divides the cores between it and short work.
const LONG_PER_CORE: usize = 4;

/// Decides which work may run.
#[derive(Debug)]
pub(crate) struct Turns {
    cores: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    groups: BTreeMap<Namespace, Group>,
    /// Running work that is not long.
    short: usize,
    long: usize,
}

/// The work of one namespace. Dropped when there is none.
#[derive(Debug, Default)]
struct Group {
    waiting: VecDeque<oneshot::Sender<()>>,
    running: usize,
    long: usize,
    /// Time used by completed work. A new namespace starts with the least of the others.
    used: Duration,
}

impl Default for Turns {
    fn default() -> Self {
        Turns::new(std::thread::available_parallelism().map_or(2, usize::from))
    }
}

impl Turns {
    fn new(cores: usize) -> Turns {
        Turns { cores: cores.max(2), state: Mutex::default() }
    }

    /// An executor for clients of one namespace.
    pub(crate) fn executor(self: &Arc<Self>, namespace: &Namespace) -> Executor {
        let (turns, namespace) = (self.clone(), namespace.clone());
        Executor::new(move |job| _ = tokio::spawn(turns.clone().run(namespace.clone(), job)))
    }

    async fn run(self: Arc<Self>, namespace: Namespace, job: Job) {
        // The sender is dropped only with all turns, when the server stops.
        if self.turn(&namespace).await.is_err() {
            return;
        }
        let begun = Instant::now();
        let mut work = offload(job);
        let mut is_long = false;
        if tokio::time::timeout(SHORT, &mut work).await.is_err() {
            is_long = self.outlasts(&namespace);
            // A panic is reported where it happens, and ends the client's stream.
            let _ = work.await;
        }
        self.ended(&namespace, begun.elapsed(), is_long);
    }

    fn turn(&self, namespace: &Namespace) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        let least = state.groups.values().map(|group| group.used).min().unwrap_or_default();
        let fresh = || Group { used: least, ..Group::default() };
        state.groups.entry(namespace.clone()).or_insert_with(fresh).waiting.push_back(sender);
        self.grant(&mut state);
        receiver
    }

    /// Work has run for long. Returns whether its place is given to others.
    fn outlasts(&self, namespace: &Namespace) -> bool {
        let mut state = self.lock();
        if state.long >= self.cores * LONG_PER_CORE {
            return false;
        }
        let Some(group) = state.groups.get_mut(namespace) else { return false };
        group.long += 1;
        state.long += 1;
        state.short -= 1;
        self.grant(&mut state);
        true
    }

    fn ended(&self, namespace: &Namespace, took: Duration, is_long: bool) {
        let mut state = self.lock();
        match is_long {
            true => state.long -= 1,
            false => state.short -= 1,
        }
        if let Some(group) = state.groups.get_mut(namespace) {
            group.running -= 1;
            group.long -= usize::from(is_long);
            group.used += took;
            if group.running == 0 && group.waiting.is_empty() {
                state.groups.remove(namespace);
            }
        }
        self.grant(&mut state);
    }

    /// Gives free places to waiting work, the namespace that used the least time first.
    fn grant(&self, state: &mut State) {
        while state.short < self.cores {
            let may = |group: &Group| !group.waiting.is_empty() && group.long < self.cores - 1;
            let waiting = state.groups.iter_mut().filter(|(_, group)| may(group));
            let Some((_, group)) = waiting.min_by_key(|(_, group)| group.used) else { return };
            if group.waiting.pop_front().is_some_and(|waiter| waiter.send(()).is_ok()) {
                group.running += 1;
                state.short += 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::Turns;

    /// Work that runs until the sender is dropped.
    fn endless() -> (mpsc::Sender<()>, impl FnOnce() + Send) {
        let (end, ended) = mpsc::channel::<()>();
        (end, move || _ = ended.recv())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn hole_04_endless_work_of_one_namespace_leaves_room_for_others() {
        let turns = Arc::new(Turns::new(2));
        let greedy = turns.executor(&"greedy".into());
        let mut ends = Vec::new();
        for _ in 0..10 {
            let (end, work) = endless();
            ends.push(end);
            let greedy = greedy.clone();
            tokio::spawn(async move { greedy.run(work).await });
        }
        let begun = Instant::now();
        let honest = turns.executor(&"honest".into());
        for count in 0..20 {
            assert_eq!(honest.run(move || count).await.unwrap(), count);
        }
        eprintln!("20 answers next to endless work took {:?}", begun.elapsed());
        assert!(turns.lock().groups["greedy"].running <= 2, "{turns:?}");
        drop(ends);
        greedy.run(|| ()).await.unwrap();
    }

    #[tokio::test]
    async fn the_namespace_that_used_less_is_first() {
        let turns = Arc::new(Turns::new(2));
        let (ends, works): (Vec<_>, Vec<_>) = (0..2).map(|_| endless()).unzip();
        for work in works {
            assert!(turns.turn(&"busy".into()).await.is_ok());
            drop(work);
        }
        let (mut of_busy, mut of_idle) = (turns.turn(&"busy".into()), turns.turn(&"idle".into()));
        turns.ended(&"busy".into(), Duration::from_secs(1), false);
        assert!(of_idle.try_recv().is_ok() && of_busy.try_recv().is_err());
        turns.ended(&"busy".into(), Duration::from_secs(1), false);
        assert!(of_busy.try_recv().is_ok());
        turns.ended(&"busy".into(), Duration::ZERO, false);
        turns.ended(&"idle".into(), Duration::ZERO, false);
        assert!(turns.lock().groups.is_empty());
        drop(ends);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_that_panics_gives_its_place_back() {
        let turns = Arc::new(Turns::new(2));
        let executor = turns.executor(&"shop".into());
        for _ in 0..5 {
            let failed: Result<(), _> = executor.run(|| panic!("on purpose")).await;
            assert!(failed.is_err());
        }
        assert_eq!(executor.run(|| 7).await.unwrap(), 7);
    }
}
