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
        // A file that cannot be looked for is not missing: the folder may be unreadable.
        let exists = |name: &str| {
            let path = folder.join(name);
            path.try_exists().map_err(|reason| CaFolderError::File { path, reason })
        };
        let names: &[&'static str] = if exists(CERT_MANAGER[0])? { &CERT_MANAGER } else { &ISTIO };
        let mut missing = Vec::new();
        for name in names {
            if !exists(name)? {
                missing.push(*name);
            }
        }
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
        let has_crl = names.len() == ISTIO.len() && exists(CRL)?;
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::prelude::{Just, ProptestConfig, Strategy, any, proptest};
    use proptest::sample::select;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
    use trust::authority::SigningAuthority;

    use super::{CaFiles, ISTIO};

    const NOW: i64 = 1_800_000_000;

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    /// The four files of a new intermediate.
    fn intermediate(root: &CertifiedIssuer<'static, KeyPair>) -> [(&'static str, String); 4] {
        let key = KeyPair::generate().unwrap();
        let certificate = params("intermediate").signed_by(&key, root).unwrap().pem();
        [ISTIO[0], ISTIO[1], ISTIO[2], ISTIO[3]].map(|name| {
            let text = match name {
                "ca-key.pem" => key.serialize_pem(),
                "root-cert.pem" => root.pem(),
                _ => certificate.clone(),
            };
            (name, text)
        })
    }

    /// What happens to a file before its next version is written.
    #[derive(Clone, Copy, Debug)]
    enum Disturbance {
        Truncated,
        Emptied,
        Removed,
        Foreign,
        None,
    }

    fn disturb(path: &Path, text: &str, disturbance: Disturbance) {
        match disturbance {
            Disturbance::Truncated => fs::write(path, &text[..text.len() / 2]).unwrap(),
            Disturbance::Emptied => fs::write(path, "").unwrap(),
            Disturbance::Removed => drop(fs::remove_file(path)),
            Disturbance::Foreign => fs::write(path, KeyPair::generate().unwrap().serialize_pem()).unwrap(),
            Disturbance::None => {}
        }
    }

    /// Reads the folder as the server does: what does not verify changes nothing.
    fn read(folder: &Path, current: &mut Option<SigningAuthority>) {
        if let Ok(Some(files)) = CaFiles::read(folder)
            && let Ok(authority) = files.authority(folder, current.as_ref(), NOW)
        {
            *current = Some(authority);
        }
    }

    /// The order of the four files, what happens before each is written, and whether the folder is read after it.
    fn events() -> impl Strategy<Value = Vec<(usize, Disturbance, bool)>> {
        use Disturbance::{Emptied, Foreign, None, Removed, Truncated};
        let order = Just(vec![0, 1, 2, 3]).prop_shuffle();
        let further =
            proptest::collection::vec((select(vec![Truncated, Emptied, Removed, Foreign, None]), any::<bool>()), 4);
        (order, further).prop_map(|(order, further)| {
            order.into_iter().zip(further).map(|(file, (disturbance, is_read))| (file, disturbance, is_read)).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_order_of_file_events_ends_in_the_last_valid_ca(updates in proptest::collection::vec(events(), 1..4)) {
            let root = CertifiedIssuer::self_signed(params("root"), KeyPair::generate().unwrap()).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let (mut current, mut known) = (None, Vec::new());
            for update in updates {
                let files = intermediate(&root);
                known.push(files[0].1.replace("\r\n", "\n"));
                for (file, disturbance, is_read) in update {
                    let (name, text) = &files[file];
                    let path = folder.path().join(name);
                    disturb(&path, text, disturbance);
                    if is_read {
                        read(folder.path(), &mut current);
                    }
                    fs::write(&path, text).unwrap();
                    if is_read {
                        read(folder.path(), &mut current);
                    }
                    // At any time the CA in use is one that was complete.
                    if let Some(ca) = &current {
                        assert!(known.contains(&ca.certificate().to_pem()));
                    }
                }
                read(folder.path(), &mut current);
                assert_eq!(current.as_ref().map(|ca| ca.certificate().to_pem()).as_ref(), known.last());
            }
        }
    }
}
