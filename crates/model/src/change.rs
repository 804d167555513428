//! The vocabulary of sources: every registry and every config store speaks only this.

use std::sync::Arc;

use crate::config::{Key, Object};
use crate::endpoint::Endpoint;
use crate::names::{ServiceKey, Text};
use crate::problem::Problem;
use crate::service::Service;
use crate::settings::{Mesh, Networks};

/// Who speaks, such as `files`, `memory` or `consul/dc1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub Text);

/// One thing that a source saw.
#[derive(Clone, Debug)]
pub enum Change {
    /// A config object is there, new or changed.
    Applied(Object),
    /// A config object is gone.
    Deleted(Key),
    /// A registry has this service, new or changed.
    ServiceApplied(Arc<Service>),
    /// A registry no longer has this service.
    ServiceDeleted(ServiceKey),
    /// All endpoints that this source knows of a service.
    Endpoints(ServiceKey, Vec<Endpoint>),
    /// Mesh-wide settings.
    Mesh(Mesh),
    Networks(Networks),
    /// All that is wrong in this source's input now; replaces what it said before.
    Problems(Vec<Problem>),
    /// Everything that was there when the source started has been told.
    Synced,
}

/// Changes of one source that belong together and are applied at once.
#[derive(Clone, Debug)]
pub struct Batch {
    pub source: SourceId,
    pub changes: Vec<Change>,
}
