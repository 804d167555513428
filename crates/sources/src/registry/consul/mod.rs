//! The Consul registry. Each service is watched with its own blocking query (`service_watches`) or, when there are many,
//! through catalog-wide ones (`catalog_watch`). Failed queries never remove services.

mod agents;
mod catalog_event;
mod catalog_watch;
mod error;
mod mapping;
mod options;
mod schema;
mod service_watches;
mod source;

pub use options::{ConsulOptions, Profile};
pub use source::ConsulRegistry;

use model::names::ClusterId;
use model::service::Registry;

use crate::registry::adapter::{Adapter, SourcePlace};
use crate::registry::diff::ServiceListing;
use crate::registry::flags::{FlagKind, FlagValues, RegistryFlag};
use crate::registry::normalize;
use crate::registry::options_error::OptionsError;
use crate::registry::shared_options::GoDuration;
use crate::source::Source;

const URL_FLAG: &str = "consulserverURL";
const INTERVAL_FLAG: &str = "consulserverInterval";

/// The service that is published for a response with the instances of one service.
pub fn published_service(
    name: &str,
    response: &[u8],
    options: &ConsulOptions,
) -> Result<Option<ServiceListing>, serde_json::Error> {
    let schema::ConsulInstances(instances) = serde_json::from_slice(response)?;
    Ok(mapping::listing(name, instances, options, &ClusterId::default()).0)
}

impl Adapter for ConsulOptions {
    const REGISTRY: Registry = mapping::REGISTRY;
    const SECTION: Option<&'static str> = Some("consul");
    const FLAGS: &'static [RegistryFlag] = &[
        RegistryFlag {
            name: URL_FLAG,
            kind: FlagKind::Text,
            value_name: "URL",
            default: "",
            help: "URLs of Consul agents, separated by commas",
        },
        RegistryFlag {
            name: INTERVAL_FLAG,
            kind: FlagKind::Duration,
            value_name: "DURATION",
            default: "2s",
            help: "Minimum interval between two Consul queries for one list while it keeps changing",
        },
    ];

    fn from_flags(flags: &FlagValues) -> Result<ConsulOptions, OptionsError> {
        let addresses = flags.list(URL_FLAG);
        if addresses.is_empty() {
            return Err(OptionsError::MissingFlag("consulserverURL=URL"));
        }
        let interval = GoDuration(flags.duration(INTERVAL_FLAG));
        Ok(ConsulOptions { addresses, interval, ..ConsulOptions::default() })
    }

    fn check(&self) -> Result<(), OptionsError> {
        if self.addresses.is_empty() {
            return Err(OptionsError::NoAddress);
        }
        let values = [("service", "a"), ("datacenter", "a"), ("namespace", "a"), ("partition", "a")];
        normalize::check_host(&self.host, &values)
    }

    fn source(self, place: SourcePlace) -> impl Source {
        ConsulRegistry::new(self, place)
    }
}
