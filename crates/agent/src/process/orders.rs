//! What the keeper is told to do, by signals and by the status port.

use tokio::sync::watch;

/// From doing nothing to ending at once: a later order never takes an earlier one back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
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
pub struct Orders(watch::Sender<Order>);

impl Orders {
    pub fn give(&self, order: Order) {
        self.0.send_if_modified(|current| {
            let is_stronger = order > *current;
            *current = order.max(*current);
            is_stronger
        });
    }

    pub fn subscribe(&self) -> watch::Receiver<Order> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::{Order, Orders};

    #[test]
    fn orders_only_grow_stronger() {
        let orders = Orders::default();
        let seen = orders.subscribe();
        orders.give(Order::Drain);
        orders.give(Order::Run);
        assert_eq!(*seen.borrow(), Order::Drain);
        orders.give(Order::Quit);
        orders.give(Order::Stop);
        assert_eq!(*seen.borrow(), Order::Quit);
    }
}
