//! What the keeper is told to do, by signals and by the status port.

use tokio::sync::watch;

/// From doing nothing to ending at once: a later order never takes an earlier one back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LifecycleRequest {
    #[default]
    Run,
    /// Stop taking new connections, but stay.
    Drain,
    /// Drain, wait, end.
    Stop,
    /// End now.
    Quit,
}

/// Gives orders; clones give them to the same keeper.
#[derive(Clone, Debug, Default)]
pub struct LifecycleSender(watch::Sender<LifecycleRequest>);

impl LifecycleSender {
    pub fn give(&self, order: LifecycleRequest) {
        self.0.send_if_modified(|current| {
            let is_stronger = order > *current;
            *current = order.max(*current);
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
    fn orders_only_grow_stronger() {
        let orders = LifecycleSender::default();
        let seen = orders.subscribe();
        orders.give(LifecycleRequest::Drain);
        orders.give(LifecycleRequest::Run);
        assert_eq!(*seen.borrow(), LifecycleRequest::Drain);
        orders.give(LifecycleRequest::Quit);
        orders.give(LifecycleRequest::Stop);
        assert_eq!(*seen.borrow(), LifecycleRequest::Quit);
    }
}
