//! The ZooKeeper registry: services of Curator and Spring Cloud, or providers of Dubbo. `session` speaks the subset of
//! ZooKeeper's protocol that reading with watches needs. The available client crate has its own I/O runtime and sixty
//! dependencies.

mod curator;
mod options;
mod protocol;
mod session;
mod source;
mod tree;

pub use options::{ZooKeeperLayout, ZooKeeperOptions};
pub use source::ZooKeeperRegistry;

use std::collections::VecDeque;

use bytes::Bytes;
use model::names::ClusterId;
use model::problem::Problem;
use model::service::Registry;

use crate::registry::adapter::{Adapter, SourcePlace};
use crate::registry::diff::{MassLossGuard, ServiceListing};
use crate::registry::flags::{FlagValues, RegistryFlag};
use crate::registry::instances::InstanceTable;
use crate::registry::options_error::OptionsError;
use crate::source::Source;

use protocol::{ZooFrame, ZooUpdate};
use tree::ServiceTree;

/// The name and merge rank of the registry.
const REGISTRY: Registry = Registry::Adapter { rank: 40, name: "ZooKeeper" };

/// The services that are published after a session in which the server sent these frames, and the problems with them.
/// Replies answer the requests in their order; a malformed frame ends the session.
pub fn published_services(
    frames: impl IntoIterator<Item = Bytes>,
    options: &ZooKeeperOptions,
) -> (Vec<ServiceListing>, Vec<Problem>) {
    let mut table = InstanceTable::new(options.mapping(ClusterId::default()), MassLossGuard::default());
    let mut tree = ServiceTree::new(options.layout, options.root());
    let mut unanswered = VecDeque::from([tree.first_request()]);
    for frame in frames {
        let update = match protocol::read_frame(frame) {
            Ok(ZooFrame::Pong | ZooFrame::Authenticated) => continue,
            Ok(ZooFrame::Event { path, change }) => ZooUpdate::Changed { path, change },
            Ok(ZooFrame::Reply { error, body, .. }) => {
                let update = unanswered.pop_front().map(|request| protocol::update(request, error, body));
                let Some(Ok(update)) = update else { break };
                update
            }
            Err(_) => break,
        };
        unanswered.extend(tree.take(update, &mut table));
    }
    table.published()
}

impl Adapter for ZooKeeperOptions {
    const REGISTRY: Registry = REGISTRY;
    const SECTION: Option<&'static str> = Some("zookeeper");
    const FLAGS: &'static [RegistryFlag] = &[];

    fn from_flags(_: &FlagValues) -> Result<ZooKeeperOptions, OptionsError> {
        Err(OptionsError::NotByFlags)
    }

    fn check(&self) -> Result<(), OptionsError> {
        self.checked()
    }

    fn source(self, place: SourcePlace) -> impl Source {
        ZooKeeperRegistry::new(self, place)
    }
}
