//! A future that is polled only after its own wake-up. A task that waits for several things polls all of them whenever one
//! of them happens. For a shutdown or a deadline that is work for nothing, and a lock that all streams share.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Polls a future only after its own wake-up.
pub struct WhenWoken<F> {
    future: Pin<Box<F>>,
    wakes: Arc<Wakes>,
    waker: Waker,
}

/// Records the wake-up and passes it on to the task.
struct Wakes {
    is_woken: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl<F: Future> WhenWoken<F> {
    pub fn new(future: F) -> WhenWoken<F> {
        // The first poll registers the future with whatever wakes it.
        let wakes = Arc::new(Wakes { is_woken: AtomicBool::new(true), task: Mutex::default() });
        WhenWoken { future: Box::pin(future), waker: wakes.clone().into(), wakes }
    }
}

impl<F: Future> Future for WhenWoken<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // Before the flag is read, so that a wake-up in between reaches the task.
        self.wakes.register(context.waker());
        if !self.wakes.is_woken.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        let Self { future, waker, .. } = &mut *self;
        future.as_mut().poll(&mut Context::from_waker(waker))
    }
}

impl Wakes {
    fn register(&self, waker: &Waker) {
        let mut task = self.task.lock();
        if !task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        // Called after the lock is released.
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;

    use super::{Ordering, Poll, WhenWoken};

    #[tokio::test]
    async fn future_is_polled_at_first_and_when_it_is_woken() {
        let (token, polls) = (CancellationToken::new(), AtomicUsize::new(0));
        let mut cancelled = Box::pin(token.cancelled());
        let mut ended = WhenWoken::new(poll_fn(|context| {
            polls.fetch_add(1, Ordering::Relaxed);
            cancelled.as_mut().poll(context)
        }));
        for _ in 0..100 {
            let first = poll_fn(|context| Poll::Ready(std::pin::Pin::new(&mut ended).poll(context).is_ready())).await;
            assert!(!first);
        }
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        let canceller = token.clone();
        tokio::spawn(async move { canceller.cancel() });
        tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the wake-up reaches the task");
        assert!(polls.load(Ordering::Relaxed) >= 2);
    }

    #[tokio::test]
    async fn future_that_is_ready_needs_no_wake_up() {
        assert_eq!(WhenWoken::new(std::future::ready(7)).await, 7);
    }
}
