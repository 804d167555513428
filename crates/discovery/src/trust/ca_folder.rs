//! The files of a plugged-in CA, in upstream's two layouts.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use trust::authority::{AuthorityError, AuthorityTexts, SigningAuthority};
use trust::crl::{CrlError, RevocationLists};
use trust::key::SecretText;

/// cert-manager's layout: signing certificate, key, root.
const CERT_MANAGER: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];
/// Upstream's layout: signing certificate, key, root, chain.
const ISTIO: [&str; 4] = ["ca-cert.pem", "ca-key.pem", "root-cert.pem", "cert-chain.pem"];

/// Revocation lists of upstream's layout; optional.
const CRL: &str = "ca-crl.pem";

/// Why the files are not a usable CA.
#[derive(Debug, Error)]
pub(crate) enum CaFolderError {
    #[error("incomplete signing CA bundle detected in {}: {} missing", .folder.display(), .missing.join(" and "))]
    Incomplete { folder: PathBuf, missing: Vec<&'static str> },
    #[error("could not read {}: {reason}", .path.display())]
    File { path: PathBuf, reason: io::Error },
    #[error("could not use the CA in {}: {reason}", .folder.display())]
    Authority { folder: PathBuf, reason: AuthorityError },
    #[error("could not use the CA in {}: its root certificates have nothing in common with the current ones; add the new root to the old ones first", .0.display())]
    ForeignRoot(PathBuf),
    #[error("could not use {}: {reason}", .path.display())]
    Crl { path: PathBuf, reason: CrlError },
}

/// The content of the files.
#[derive(PartialEq, Eq)]
pub(crate) struct CaFiles {
    certificate: String,
    key: SecretText,
    roots: String,
    chain: String,
    /// Empty if there is no file, or if it has no content.
    crl: String,
}

impl CaFiles {
    /// Reads the folder; `None` if it has none of the files.
    pub(crate) fn read(folder: &Path) -> Result<Option<CaFiles>, CaFolderError> {
        let exists = |name: &&str| folder.join(name).exists();
        let names: &[&'static str] = if exists(&CERT_MANAGER[0]) { &CERT_MANAGER } else { &ISTIO };
        let missing: Vec<&'static str> = names.iter().copied().filter(|name| !exists(name)).collect();
        if missing.len() == names.len() {
            return Ok(None);
        }
        if !missing.is_empty() {
            return Err(CaFolderError::Incomplete { folder: folder.to_owned(), missing });
        }
        let text = |name: &str| {
            let path = folder.join(name);
            sources::disk::text(&path).map_err(|reason| CaFolderError::File { path, reason })
        };
        let (certificate, key, roots) = (text(names[0])?, SecretText::new(text(names[1])?), text(names[2])?);
        let chain = match names.get(3) {
            Some(name) => text(name)?,
            None => format!("{}\n{roots}", certificate.trim_end()),
        };
        let has_crl = names.len() == ISTIO.len() && exists(&CRL);
        let crl = if has_crl { text(CRL)? } else { String::new() };
        Ok(Some(CaFiles { certificate, key, roots, chain, crl }))
    }

    /// Verifies the CA. Roots may be added to or removed from those of `current`, not exchanged.
    pub(crate) fn authority(
        &self,
        folder: &Path,
        current: Option<&SigningAuthority>,
        now: i64,
    ) -> Result<SigningAuthority, CaFolderError> {
        let texts =
            AuthorityTexts { certificate: &self.certificate, key: &self.key, chain: &self.chain, roots: &self.roots };
        let read = SigningAuthority::from_texts(texts, now)
            .map_err(|reason| CaFolderError::Authority { folder: folder.to_owned(), reason })?;
        match current {
            Some(current) if !read.roots().is_step_from(current.roots()) => {
                Err(CaFolderError::ForeignRoot(folder.to_owned()))
            }
            _ => Ok(read),
        }
    }

    /// Verifies the revocation lists; `None` if there are none.
    pub(crate) fn revocations(
        &self,
        folder: &Path,
        authority: &SigningAuthority,
    ) -> Result<Option<RevocationLists>, CaFolderError> {
        if self.crl.trim().is_empty() {
            return Ok(None);
        }
        let lists = RevocationLists::from_pem(&self.crl, authority.chain(), authority.roots());
        lists.map(Some).map_err(|reason| CaFolderError::Crl { path: folder.join(CRL), reason })
    }
}
