//! The DNS registry: names whose SRV records, or A and AAAA records, are the endpoints of a service.

mod options;
mod resolver;
mod source;

pub use options::{DnsOptions, DnsService};
pub use source::DnsRegistry;

use model::service::Registry;

use crate::registry::adapter::{Adapter, SourcePlace};
use crate::registry::flags::{FlagValues, RegistryFlag};
use crate::registry::normalize;
use crate::registry::options_error::OptionsError;
use crate::source::Source;

impl Adapter for DnsOptions {
    const REGISTRY: Registry = source::REGISTRY;
    const SECTION: Option<&'static str> = Some("dns");
    const FLAGS: &'static [RegistryFlag] = &[];

    fn from_flags(_: &FlagValues) -> Result<DnsOptions, OptionsError> {
        Err(OptionsError::NotByFlags)
    }

    fn check(&self) -> Result<(), OptionsError> {
        if self.services.is_empty() {
            return Err(OptionsError::NoService);
        }
        for service in &self.services {
            if normalize::hostname(&service.host, &[]).is_none() {
                let value = service.host.clone();
                return Err(OptionsError::Invalid { field: "host", value, expected: "a host name" });
            }
            if !service.srv.is_empty() && !service.name.is_empty() {
                return Err(OptionsError::SrvAndName(service.host.clone()));
            }
        }
        Ok(())
    }

    fn source(self, place: SourcePlace) -> impl Source {
        DnsRegistry::new(self, place)
    }
}
