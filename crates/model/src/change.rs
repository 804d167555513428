//! The changes that registries and config stores send; the only input of the snapshot.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::config::problem::Problem;
use crate::config::{Key, Object};
use crate::conflict::ConflictSettings;
use crate::endpoint::Endpoint;
use crate::fetch_requests::KeySource;
use crate::labels::Labels;
use crate::names::{CredentialKey, Namespace, ServiceKey, Str};
use crate::service::Service;
use crate::settings::{Mesh, Networks};
use crate::workload::{Workload, WorkloadKey};

/// The name of a source, such as `files`, `memory` or `consul/dc1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub Str);

/// One change that a source reports.
#[derive(Clone, Debug)]
pub enum Change {
    /// A config object was added or changed.
    Applied(Object),
    /// A config object was deleted.
    Deleted(Key),
    /// A service was added or changed in a registry.
    ServiceApplied(Arc<Service>),
    /// A service was removed from a registry.
    ServiceDeleted(ServiceKey),
    /// All endpoints that this source has for a service; replaces its previous list.
    Endpoints(ServiceKey, Vec<Endpoint>),
    /// A workload was added or changed.
    WorkloadApplied(Arc<Workload>),
    /// A workload was removed.
    WorkloadDeleted(WorkloadKey),
    /// The labels of a namespace; `None` if it was deleted.
    Namespace(Namespace, Option<Labels>),
    /// The credentials of a Secret or ConfigMap; `None` if it was deleted.
    Credential(CredentialKey, Option<Arc<Credential>>),
    /// The mesh config.
    Mesh(Mesh),
    Networks(Networks),
    /// How conflicts between sources are resolved.
    ConflictSettings(Box<ConflictSettings>),
    /// A fetched JSON Web Key Set; `None` if no policy needs it any longer.
    KeySet(KeySource, Option<Str>),
    /// Nothing changed, but all resources are to be generated again.
    Renew,
    /// All current problems of this source's input; replaces its previous list.
    Problems(Vec<Problem>),
    /// The source has reported its complete initial state.
    Synced,
}

/// What a Secret or ConfigMap can be used for. Of its content only certificates and keys are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Credential {
    /// Names of the data entries that are not empty.
    pub entries: BTreeSet<Str>,
    /// Why there is no usable certificate and key.
    pub key_pair_error: Option<Str>,
    /// Why there is no CA certificate.
    pub ca_error: Option<Str>,
    /// Why the CA certificate cannot be parsed.
    pub ca_bundle_error: Option<Str>,
    pub key_pair: Option<KeyPair>,
    pub ca: Option<CaCertificates>,
}

/// A certificate chain and its private key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyPair {
    pub certificate: SecretBytes,
    pub key: SecretBytes,
    pub ocsp_staple: Option<SecretBytes>,
}

/// Trusted CA certificates and their revocation list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CaCertificates {
    pub certificates: SecretBytes,
    pub crl: Option<SecretBytes>,
}

/// Bytes whose `Debug` output shows only their length, so that they appear in no log and no debug page.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SecretBytes(Arc<[u8]>);

impl SecretBytes {
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

/// Changes of one source that are applied together.
#[derive(Clone, Debug)]
pub struct Batch {
    pub source: SourceId,
    pub changes: Vec<Change>,
}
