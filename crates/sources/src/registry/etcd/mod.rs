//! The etcd registry: keys of one prefix in the layout of a framework. It reads all keys at one revision and follows a
//! watch from there; compacted revisions are read again.

mod layout;
mod options;
mod source;

pub use layout::EtcdLayout;
pub use options::EtcdRegistryOptions;
pub use source::EtcdRegistry;

use model::names::ClusterId;
use model::problem::Problem;
use model::service::Registry;

use crate::registry::adapter::{Adapter, SourcePlace};
use crate::registry::diff::{MassLossGuard, ServiceListing};
use crate::registry::flags::{FlagValues, RegistryFlag};
use crate::registry::instances::InstanceTable;
use crate::registry::options_error::OptionsError;
use crate::source::Source;

/// The name and merge rank of the registry.
const REGISTRY: Registry = Registry::Adapter { rank: 35, name: "Etcd" };

/// The services that are published for keys, without their prefix, and values; and the problems with them.
pub fn published_services<'a>(
    entries: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    options: &EtcdRegistryOptions,
) -> (Vec<ServiceListing>, Vec<Problem>) {
    let mut table = InstanceTable::new(options.mapping(ClusterId::default()), MassLossGuard::default());
    for (key, value) in entries {
        table.put(key, options.layout.parse(key, value));
    }
    table.published()
}

impl Adapter for EtcdRegistryOptions {
    const REGISTRY: Registry = REGISTRY;
    const SECTION: Option<&'static str> = Some("etcd");
    const FLAGS: &'static [RegistryFlag] = &[];

    fn from_flags(_: &FlagValues) -> Result<EtcdRegistryOptions, OptionsError> {
        Err(OptionsError::NotByFlags)
    }

    fn check(&self) -> Result<(), OptionsError> {
        self.checked()
    }

    fn source(self, place: SourcePlace) -> impl Source {
        EtcdRegistry::new(self, place)
    }
}
