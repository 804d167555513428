//! The Eureka registry: reads the full registry once, then deltas, which are verified by their hash code.

mod error;
mod mapping;
mod options;
mod peers;
mod schema;
mod source;

pub use options::{EurekaOptions, ServicePer};
pub use source::EurekaRegistry;

use model::names::ClusterId;
use model::service::Registry;

use crate::registry::adapter::{Adapter, SourcePlace};
use crate::registry::diff::ServiceListing;
use crate::registry::flags::{FlagKind, FlagValues, RegistryFlag};
use crate::registry::normalize;
use crate::registry::options_error::OptionsError;
use crate::registry::shared_options::GoDuration;
use crate::source::Source;

const URL_FLAG: &str = "eurekaserverURL";
const INTERVAL_FLAG: &str = "eurekaserverInterval";

/// The services that are published for a response with applications.
pub fn published_services(response: &[u8], options: &EurekaOptions) -> Result<Vec<ServiceListing>, serde_json::Error> {
    let schema::Envelope { applications } = serde_json::from_slice(response)?;
    let instances = || applications.application.iter().flat_map(|application| &application.instance);
    let _ = schema::hash_code(instances());
    Ok(mapping::listings(instances(), options, &ClusterId::default()).0.into_values().collect())
}

impl Adapter for EurekaOptions {
    const REGISTRY: Registry = mapping::REGISTRY;
    const SECTION: Option<&'static str> = Some("eureka");
    const FLAGS: &'static [RegistryFlag] = &[
        RegistryFlag {
            name: URL_FLAG,
            kind: FlagKind::Text,
            value_name: "URL",
            default: "",
            help: "URLs of Eureka peers, separated by commas",
        },
        RegistryFlag {
            name: INTERVAL_FLAG,
            kind: FlagKind::Duration,
            value_name: "DURATION",
            default: "2s",
            help: "Eureka polling interval",
        },
    ];

    fn from_flags(flags: &FlagValues) -> Result<EurekaOptions, OptionsError> {
        let addresses = flags.list(URL_FLAG);
        if addresses.is_empty() {
            return Err(OptionsError::MissingFlag("eurekaserverURL=URL"));
        }
        let interval = GoDuration(flags.duration(INTERVAL_FLAG));
        Ok(EurekaOptions { addresses, interval, ..EurekaOptions::default() })
    }

    fn check(&self) -> Result<(), OptionsError> {
        if self.addresses.is_empty() {
            return Err(OptionsError::NoAddress);
        }
        normalize::check_host(&self.host, &[("name", "a")])
    }

    fn source(self, place: SourcePlace) -> impl Source {
        EurekaRegistry::new(self, place)
    }
}
