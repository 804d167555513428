//! The Cloud Foundry registry: routes and internal routes, polled from the platform's Copilot.

mod cf_config;
mod copilot;
mod mapping;
mod options;
mod route_table;
mod rules;
pub mod schema;
mod source;

pub use options::CloudFoundryOptions;
pub use source::CloudFoundryRegistry;

use std::path::Path;

use model::config::Object;
use model::names::ClusterId;
use model::service::Registry;

use crate::registry::adapter::{Adapter, SourcePlace};
use crate::registry::diff::ServiceListing;
use crate::registry::flags::{FlagKind, FlagValues, RegistryFlag};
use crate::registry::options_error::OptionsError;
use crate::source::Source;
use schema::{InternalRoutesResponse, RoutesResponse};

const CONFIG_FLAG: &str = "cfConfig";

/// The services and the routing objects that are published for responses of Copilot.
pub fn published_services(
    routes: RoutesResponse,
    internal: InternalRoutesResponse,
    options: &CloudFoundryOptions,
) -> (Vec<ServiceListing>, Vec<Object>) {
    let table = route_table::RouteTable::new(routes, internal);
    let (services, _) = mapping::listings(&table, options, &ClusterId::default());
    let (objects, _) = rules::rules(&table, options);
    (services.into_values().collect(), objects.into_values().collect())
}

impl Adapter for CloudFoundryOptions {
    const REGISTRY: Registry = mapping::REGISTRY;
    const SECTION: Option<&'static str> = Some("cloudFoundry");
    const FLAGS: &'static [RegistryFlag] = &[RegistryFlag {
        name: CONFIG_FLAG,
        kind: FlagKind::Text,
        value_name: "FILE",
        default: "",
        help: "File with the address and certificates for Cloud Foundry's Copilot",
    }];

    fn from_flags(flags: &FlagValues) -> Result<CloudFoundryOptions, OptionsError> {
        match flags.text(CONFIG_FLAG) {
            "" => Err(OptionsError::MissingFlag("cfConfig=FILE")),
            file => cf_config::read(Path::new(file)),
        }
    }

    fn check(&self) -> Result<(), OptionsError> {
        options::check(self)
    }

    fn source(self, place: SourcePlace) -> impl Source {
        CloudFoundryRegistry::new(self, place)
    }
}
