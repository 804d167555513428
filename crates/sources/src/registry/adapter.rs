//! The interface of a registry. Its folder implements [`Adapter`] for its options; `table` has one row for each.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use model::change::{Batch, SourceId};
use model::names::ClusterId;
use model::service::Registry;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::registry::diff::MassLossGuard;
use crate::registry::flags::{FlagValues, RegistryFlag};
use crate::registry::options_error::OptionsError;
use crate::source::{Source, SourceTask, spawn};

/// The options of one kind of registry.
pub trait Adapter: Clone + fmt::Debug + PartialEq + DeserializeOwned + Send + Sync + 'static {
    /// The name in `--registries`, in source ids and on debug pages, with the rank in merges.
    const REGISTRY: Registry;
    /// The key of the options in an entry of `--registryConfig`; `None` where an entry cannot describe the registry.
    const SECTION: Option<&'static str>;
    /// Flags that describe one such registry.
    const FLAGS: &'static [RegistryFlag];

    /// Options from [`Adapter::FLAGS`] and their defaults. The caller checks them.
    fn from_flags(flags: &FlagValues) -> Result<Self, OptionsError>;

    /// Checks values that their types cannot.
    fn check(&self) -> Result<(), OptionsError>;

    /// The source that watches a registry with these options.
    fn source(self, place: SourcePlace) -> impl Source;
}

/// The input of a source in addition to its options.
#[derive(Clone, Debug)]
pub struct SourcePlace {
    pub id: SourceId,
    /// The cluster of all endpoints.
    pub cluster: ClusterId,
    pub guard: MassLossGuard,
}

/// One row of the table of registries: an [`Adapter`] without its type.
pub struct AdapterRow {
    pub registry: Registry,
    pub section: Option<&'static str>,
    pub flags: &'static [RegistryFlag],
    from_flags: fn(&FlagValues) -> Result<AdapterOptions, OptionsError>,
    deserialize: fn(&mut dyn erased_serde::Deserializer<'_>) -> Result<AdapterOptions, erased_serde::Error>,
}

impl AdapterRow {
    pub const fn of<A: Adapter>() -> AdapterRow {
        AdapterRow {
            registry: A::REGISTRY,
            section: A::SECTION,
            flags: A::FLAGS,
            from_flags: |flags| A::from_flags(flags).map(AdapterOptions::new),
            deserialize: |deserializer| erased_serde::deserialize::<A>(deserializer).map(AdapterOptions::new),
        }
    }

    /// Checked options from flags.
    pub fn from_flags(&self, flags: &FlagValues) -> Result<AdapterOptions, OptionsError> {
        let options = (self.from_flags)(flags)?;
        options.check()?;
        Ok(options)
    }

    /// Options from a section of `--registryConfig`; the caller checks them.
    pub(super) fn deserialize(
        &self,
        deserializer: &mut dyn erased_serde::Deserializer<'_>,
    ) -> Result<AdapterOptions, erased_serde::Error> {
        (self.deserialize)(deserializer)
    }
}

/// Options of any kind of registry.
#[derive(Clone)]
pub struct AdapterOptions(Arc<dyn DynOptions>);

impl AdapterOptions {
    pub fn new<A: Adapter>(options: A) -> AdapterOptions {
        AdapterOptions(Arc::new(options))
    }

    pub fn registry(&self) -> Registry {
        self.0.registry()
    }

    pub fn check(&self) -> Result<(), OptionsError> {
        self.0.check()
    }

    /// Starts the source of the registry.
    pub fn start(&self, place: SourcePlace, batches: mpsc::Sender<Batch>, end: CancellationToken) -> SourceTask {
        self.0.start(place, batches, end)
    }
}

impl fmt::Debug for AdapterOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for AdapterOptions {
    fn eq(&self, other: &AdapterOptions) -> bool {
        self.0.equals(&*other.0)
    }
}

/// [`Adapter`] as a trait object.
trait DynOptions: fmt::Debug + Send + Sync {
    fn registry(&self) -> Registry;
    fn check(&self) -> Result<(), OptionsError>;
    fn start(&self, place: SourcePlace, batches: mpsc::Sender<Batch>, end: CancellationToken) -> SourceTask;
    fn equals(&self, other: &dyn DynOptions) -> bool;
    fn as_any(&self) -> &dyn Any;
}

impl<A: Adapter> DynOptions for A {
    fn registry(&self) -> Registry {
        A::REGISTRY
    }

    fn check(&self) -> Result<(), OptionsError> {
        Adapter::check(self)
    }

    fn start(&self, place: SourcePlace, batches: mpsc::Sender<Batch>, end: CancellationToken) -> SourceTask {
        spawn(self.clone().source(place), batches, end)
    }

    fn equals(&self, other: &dyn DynOptions) -> bool {
        other.as_any().downcast_ref::<A>() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
