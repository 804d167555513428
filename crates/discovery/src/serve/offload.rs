//! Long computations away from the threads that serve connections. `turns` decides when those for clients may run.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{JoinHandle, spawn_blocking};

/// Runs a computation on a separate thread. A runtime of one thread, as simulations use, runs it as a task: the order of
/// all events then does not depend on how fast threads are.
pub(super) fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => tokio::spawn(async move { work() }),
        _ => spawn_blocking(work),
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{ThreadId, current};

    use super::offload;

    async fn thread() -> ThreadId {
        offload(|| current().id()).await.unwrap()
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_runs_everything_on_it() {
        assert_eq!(thread().await, current().id());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_run_long_work_on_a_separate_thread() {
        let worker = tokio::spawn(async { (current().id(), thread().await) });
        let (worker, work) = worker.await.unwrap();
        assert_ne!(work, worker);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_the_work_alone() {
        let failed = offload(|| panic!("on purpose")).await;
        assert!(failed.is_err_and(|failed| failed.is_panic()));
    }
}
