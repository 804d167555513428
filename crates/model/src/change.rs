//! The vocabulary of sources: every registry and every config store speaks only this.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::config::{Key, Object};
use crate::conflict::Conflicts;
use crate::endpoint::Endpoint;
use crate::labels::Labels;
use crate::names::{CredentialKey, Namespace, ServiceKey, Str};
use crate::problem::Problem;
use crate::service::Service;
use crate::settings::{Mesh, Networks};
use crate::wanted::KeySource;
use crate::workload::{Workload, WorkloadKey};

/// Who speaks, such as `files`, `memory` or `consul/dc1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub Str);

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
    /// A platform runs this workload, new or changed.
    WorkloadApplied(Arc<Workload>),
    /// A platform no longer runs this workload.
    WorkloadDeleted(WorkloadKey),
    /// A namespace with its labels, or none where it is gone.
    Namespace(Namespace, Option<Labels>),
    /// What a Secret or ConfigMap could be used for, or none where it is gone.
    Credential(CredentialKey, Option<Arc<Credential>>),
    /// Mesh-wide settings.
    Mesh(Mesh),
    Networks(Networks),
    /// What holds between sources that have the same things.
    Conflicts(Box<Conflicts>),
    /// The keys of an issuer of tokens; `None` where they are no longer wanted.
    Keys(KeySource, Option<Str>),
    /// Nothing changed, but everything is to be made again.
    Renew,
    /// All that is wrong in this source's input now; replaces what it said before.
    Problems(Vec<Problem>),
    /// Everything that was there when the source started has been told.
    Synced,
}

/// What is known of a Secret or ConfigMap: what it can be used for, and of its content only what that needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Credential {
    /// Names of the entries that are not empty.
    pub entries: BTreeSet<Str>,
    /// Why its certificate and key cannot be served, if they cannot.
    pub fault: Option<Str>,
    /// Why there is no certificate of an authority in it, if there is none.
    pub authority_fault: Option<Str>,
    /// Why the certificate of an authority cannot be read, if it cannot.
    pub bundle_fault: Option<Str>,
    /// Its certificate and key, where they can be served.
    pub pair: Option<Pair>,
    /// Certificates of an authority, where they can be served.
    pub authority: Option<Authority>,
}

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    pub certificate: Hidden,
    pub key: Hidden,
    /// What the authority says of the certificate, to be shown with it.
    pub staple: Option<Hidden>,
}

/// Whose certificates are trusted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authority {
    pub certificates: Hidden,
    /// Certificates of it that are trusted no more.
    pub revoked: Option<Hidden>,
}

/// Bytes that no log and no debug page shows.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Hidden(Arc<[u8]>);

impl Hidden {
    /// The bytes themselves, for those that they are meant for.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Hidden {
    fn from(bytes: &[u8]) -> Hidden {
        Hidden(bytes.into())
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes)", self.0.len())
    }
}

/// Changes of one source that belong together and are applied at once.
#[derive(Clone, Debug)]
pub struct Batch {
    pub source: SourceId,
    pub changes: Vec<Change>,
}
