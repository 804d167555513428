//! The vocabulary of sources: every registry and every config store speaks only this.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::config::{Key, Object};
use crate::conflict::ConflictSettings;
use crate::endpoint::Endpoint;
use crate::fetch_requests::KeySource;
use crate::labels::Labels;
use crate::names::{CredentialKey, Namespace, ServiceKey, Str};
use crate::problem::Problem;
use crate::service::Service;
use crate::settings::{Mesh, Networks};
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
    ConflictSettings(Box<ConflictSettings>),
    /// The keys of an issuer of tokens; `None` where they are no longer wanted.
    KeySet(KeySource, Option<Str>),
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
    pub key_pair_error: Option<Str>,
    /// Why there is no certificate of an authority in it, if there is none.
    pub ca_error: Option<Str>,
    /// Why the certificate of an authority cannot be read, if it cannot.
    pub ca_bundle_error: Option<Str>,
    /// Its certificate and key, where they can be served.
    pub key_pair: Option<KeyPair>,
    /// Certificates of an authority, where they can be served.
    pub ca: Option<CaCertificates>,
}

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyPair {
    pub certificate: SecretBytes,
    pub key: SecretBytes,
    /// What the authority says of the certificate, to be shown with it.
    pub ocsp_staple: Option<SecretBytes>,
}

/// Whose certificates are trusted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CaCertificates {
    pub certificates: SecretBytes,
    /// Certificates of it that are trusted no more.
    pub crl: Option<SecretBytes>,
}

/// Bytes that no log and no debug page shows.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SecretBytes(Arc<[u8]>);

impl SecretBytes {
    /// The bytes themselves, for those that they are meant for.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for SecretBytes {
    fn from(bytes: &[u8]) -> SecretBytes {
        SecretBytes(bytes.into())
    }
}

impl fmt::Debug for SecretBytes {
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
