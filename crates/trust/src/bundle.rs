//! The root certificates that the mesh trusts, without duplicates and in a defined order.

use crate::certificate::{Certificate, CertificateError};

/// A set of root certificates in the order in which they were added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootBundle(Vec<Certificate>);

impl RootBundle {
    /// Without duplicates.
    pub fn new(roots: impl IntoIterator<Item = Certificate>) -> RootBundle {
        let mut bundle = RootBundle::default();
        for root in roots {
            if !bundle.contains(&root) {
                bundle.0.push(root);
            }
        }
        bundle
    }

    pub fn from_pem(text: &str) -> Result<RootBundle, CertificateError> {
        Ok(RootBundle::new(Certificate::all_from_pem(text)?))
    }

    pub fn roots(&self) -> &[Certificate] {
        &self.0
    }

    pub fn contains(&self, root: &Certificate) -> bool {
        self.0.iter().any(|own| own.der() == root.der())
    }

    /// Whether one of two bundles contains all of the other: a root was added or removed, not exchanged.
    pub fn is_step_from(&self, before: &RootBundle) -> bool {
        let contains_all = |one: &RootBundle, other: &RootBundle| other.0.iter().all(|root| one.contains(root));
        contains_all(self, before) || contains_all(before, self)
    }

    /// This bundle and further roots.
    pub fn with(&self, others: &RootBundle) -> RootBundle {
        RootBundle::new(self.0.iter().chain(&others.0).cloned())
    }

    pub fn to_pem(&self) -> String {
        self.0.iter().map(Certificate::to_pem).collect()
    }
}
