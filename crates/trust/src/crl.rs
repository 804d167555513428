//! Certificate revocation lists of a plugged-in CA: they are used only if each is signed by a CA of the mesh, and if there
//! is one of every CA in the chain.

use thiserror::Error;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::revocation_list::CertificateRevocationList;

use crate::bundle::RootBundle;
use crate::certificate::Certificate;
use crate::pem::{self, PemError};
use crate::signature;

const LABEL: &str = "X509 CRL";

/// Why revocation lists are not used.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum CrlError {
    #[error(transparent)]
    Pem(#[from] PemError),
    #[error("there is no revocation list in the PEM blocks")]
    NoList,
    #[error("revocation list {number} cannot be parsed")]
    Malformed { number: usize },
    #[error("revocation list {number} is not signed by a certificate of the chain or a root")]
    Foreign { number: usize },
    #[error("there is no revocation list of the CA with certificate {0}")]
    Missing(String),
}

/// Verified revocation lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationLists(Vec<Vec<u8>>);

impl RevocationLists {
    /// Reads and verifies the lists of a CA.
    pub fn from_pem(text: &str, chain: &[Certificate], roots: &RootBundle) -> Result<RevocationLists, CrlError> {
        let blocks = pem::blocks(text)?.into_iter().filter(|block| block.label == LABEL);
        let lists: Vec<Vec<u8>> = blocks.map(|block| block.content.to_vec()).collect();
        if lists.is_empty() {
            return Err(CrlError::NoList);
        }
        let mut signers: Vec<&Certificate> = Vec::new();
        for (at, list) in lists.iter().enumerate() {
            let number = at + 1;
            let (rest, parsed) =
                CertificateRevocationList::from_der(list).map_err(|_| CrlError::Malformed { number })?;
            if !rest.is_empty() {
                return Err(CrlError::Malformed { number });
            }
            let signer = chain.iter().chain(roots.roots()).find(|issuer| is_signed_by(&parsed, issuer));
            signers.push(signer.ok_or(CrlError::Foreign { number })?);
        }
        // A root has none if it signs only intermediates that it never revokes.
        let without = chain.iter().find(|issuer| !signers.contains(issuer) && !roots.contains(issuer));
        match without {
            Some(issuer) => Err(CrlError::Missing(issuer.serial.clone())),
            None => Ok(RevocationLists(lists)),
        }
    }

    /// The lists as DER.
    pub fn lists(&self) -> &[Vec<u8>] {
        &self.0
    }

    pub fn to_pem(&self) -> String {
        self.0.iter().map(|list| pem::encode(LABEL, list)).collect()
    }
}

fn is_signed_by(list: &CertificateRevocationList<'_>, issuer: &Certificate) -> bool {
    let Ok((_, signer)) = X509Certificate::from_der(issuer.der()) else { return false };
    let signed = &list.signature_value.data;
    list.issuer().as_raw() == issuer.subject.as_slice()
        && signature::verify(signer.public_key(), &list.signature_algorithm, list.tbs_cert_list.as_ref(), signed)
            .is_ok()
}
