//! Sidecar injection as a pure function: decide → render → merge → finish. The webhook of `pilot-discovery` and
//! `pilotctl kube-inject` use it. `gateway` renders the objects of managed gateways with it. Templates are built in or written in upstream's language.

#![forbid(unsafe_code)]

mod annotations;
mod builtin;
mod config;
mod decide;
mod documents;
mod error;
mod finish;
mod gateway;
mod gotemplate;
mod injection;
mod merge;
mod native;
mod overrides;
mod patch;
mod pod;
mod probes;
mod prometheus;
mod proxy_config;
mod review;
mod values;
mod workload;
mod yaml;

pub use config::{InjectorConfig, Policy};
pub use decide::{Decision, SYSTEM_NAMESPACES, SkipReason, decide};
pub use documents::{InjectedFile, inject_file};
pub use error::InjectError;
pub use gateway::{GatewayInputs, GatewayObjectsError, gateway_objects};
pub use injection::{Injection, InjectionInput, MeshInputs, inject};
pub use native::NativeMode;
pub use patch::difference;
pub use proxy_config::{NamespacedProxyConfig, effective};
pub use review::{ReviewAnswer, ReviewInputs, ReviewOutcome, refuse, review};
pub use values::ChartValues;
pub use workload::Workload;
