//! The source: one session at a time. A new session reads everything again; the known services are kept until it has.

use std::convert::Infallible;

use model::change::SourceId;
use tokio::time::{Instant, sleep_until};

use super::options::ZooKeeperOptions;
use super::session::{SessionError, ZooSession};
use super::tree::ServiceTree;
use crate::backoff::Backoff;
use crate::registry::adapter::SourcePlace;
use crate::registry::instances::InstanceTable;
use crate::source::{ChangeSender, Source, SourceError};

/// The source of one ensemble.
#[derive(Debug)]
pub struct ZooKeeperRegistry {
    id: SourceId,
    options: ZooKeeperOptions,
    table: InstanceTable,
}

/// Why a session is over.
enum FollowEnd {
    Session(SessionError),
    Source(SourceError),
}

impl From<SessionError> for FollowEnd {
    fn from(error: SessionError) -> FollowEnd {
        FollowEnd::Session(error)
    }
}

impl From<SourceError> for FollowEnd {
    fn from(error: SourceError) -> FollowEnd {
        FollowEnd::Source(error)
    }
}

impl ZooKeeperRegistry {
    pub fn new(options: ZooKeeperOptions, place: SourcePlace) -> ZooKeeperRegistry {
        let SourcePlace { id, cluster, guard } = place;
        let table = InstanceTable::new(options.mapping(cluster), guard);
        ZooKeeperRegistry { id, options, table }
    }

    /// Opens a session and follows it until it fails.
    async fn follow(
        &mut self,
        server: &str,
        sender: &ChangeSender,
        backoff: &mut Backoff,
    ) -> Result<Infallible, FollowEnd> {
        let health = sender.health();
        health.count_request();
        let mut session = ZooSession::open(&self.options, server).await?;
        let mut tree = ServiceTree::new(self.options.layout, self.options.root());
        session.send(tree.first_request());
        self.table.begin_read();
        let mut is_complete = false;
        loop {
            if !is_complete && session.is_idle() {
                is_complete = true;
                self.table.end_read();
                backoff.reset();
                health.mark_reachable();
                self.table.publish(sender).await?;
            }
            // Half of a first read would look like a loss.
            let due = self.table.due().filter(|_| is_complete);
            let update = tokio::select! {
                update = session.next(server) => update?,
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.table.publish(sender).await?;
                    continue;
                }
            };
            for request in tree.take(update, &mut self.table) {
                session.send(request);
            }
            health.set_watches(tree.watches());
        }
    }
}

impl Source for ZooKeeperRegistry {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let (mut backoff, mut number) = (Backoff::default(), fastrand::usize(..self.options.addresses.len().max(1)));
        loop {
            let server = self.options.server(number);
            let Err(end) = self.follow(&server, &sender, &mut backoff).await;
            match end {
                FollowEnd::Source(error) => return Err(error),
                FollowEnd::Session(error) => {
                    sender.health().mark_unreachable(error.to_string());
                    number = number.wrapping_add(1);
                    backoff.wait().await;
                }
            }
        }
    }
}
