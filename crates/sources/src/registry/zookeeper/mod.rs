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

use model::service::Registry;

use crate::registry::adapter::{Adapter, SourcePlace};
use crate::registry::flags::{FlagValues, RegistryFlag};
use crate::registry::options_error::OptionsError;
use crate::source::Source;

/// The name and merge rank of the registry.
const REGISTRY: Registry = Registry::Adapter { rank: 40, name: "ZooKeeper" };

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
