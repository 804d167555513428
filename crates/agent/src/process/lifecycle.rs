//! Requests to drain or end, from signals and from the status port to the supervisor.

use tokio::sync::watch;

/// Ordered by strength. A weaker request never replaces a stronger one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LifecycleRequest {
    #[default]
    Run,
    /// Drain listeners and keep running.
    Drain,
    /// Drain, then exit.
    Stop,
    /// Exit without draining.
    Quit,
}

/// Sends requests to the supervisor; clones share it.
#[derive(Clone, Debug, Default)]
pub struct LifecycleSender(watch::Sender<LifecycleRequest>);

impl LifecycleSender {
    pub fn send(&self, request: LifecycleRequest) {
        self.0.send_if_modified(|current| {
            let is_stronger = request > *current;
            *current = request.max(*current);
            is_stronger
        });
    }

    pub fn subscribe(&self) -> watch::Receiver<LifecycleRequest> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::{LifecycleRequest, LifecycleSender};

    #[test]
    fn requests_only_escalate() {
        let requests = LifecycleSender::default();
        let receiver = requests.subscribe();
        requests.send(LifecycleRequest::Drain);
        requests.send(LifecycleRequest::Run);
        assert_eq!(*receiver.borrow(), LifecycleRequest::Drain);
        requests.send(LifecycleRequest::Quit);
        requests.send(LifecycleRequest::Stop);
        assert_eq!(*receiver.borrow(), LifecycleRequest::Quit);
    }
}
