//! What secrets say: Envoy's message for each name, from published material or from files.
//! A file that vanished or holds no PEM leaves the last good content in use.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use api::Resource;
use api::envoy::config::core::v3::DataSource;
use api::envoy::config::core::v3::data_source::Specifier;
use api::envoy::extensions::transport_sockets::tls::v3::secret::Type;
use api::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret as Message, TlsCertificate,
};
use bytes::Bytes;
use rustls::InconsistentKeys;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use tracing::warn;

use super::names::Secret;
use crate::certificates::Current;

/// The files of one stream's secrets as last read.
#[derive(Default)]
pub(super) struct Files {
    good: BTreeMap<PathBuf, Bytes>,
    /// Bytes that were complained about, so that it is done once.
    bad: BTreeMap<PathBuf, Option<Vec<u8>>>,
}

impl Files {
    /// Reads the files of these secrets; true when the content of one is new. A pair changes as a whole: while
    /// its key does not match its certificate, which is seen between two writes, the old pair stays.
    pub(super) fn read<'a>(&mut self, secrets: impl IntoIterator<Item = &'a Secret>) -> bool {
        let mut changed = false;
        for secret in secrets {
            let read: Vec<(&PathBuf, Option<Bytes>)> =
                secret.files().into_iter().map(|file| (file, self.look(file))).collect();
            let is_new =
                |(file, text): &(&PathBuf, Option<Bytes>)| text.is_some() && self.good.get(*file) != text.as_ref();
            let texts: Option<Vec<&Bytes>> = read.iter().map(|(_, text)| text.as_ref()).collect();
            if read.iter().any(is_new) && texts.is_some_and(|texts| belong_together(&texts)) {
                changed = true;
                self.good.extend(read.into_iter().filter_map(|(file, text)| Some((file.clone(), text?))));
            }
        }
        changed
    }

    /// The PEM text of a file; None when there is none.
    fn look(&mut self, file: &PathBuf) -> Option<Bytes> {
        let read = std::fs::read(file);
        let text = read.as_ref().ok().filter(|text| is_pem(text));
        if let Some(text) = text {
            self.bad.remove(file);
            return Some(Bytes::copy_from_slice(text));
        }
        let seen = read.as_ref().ok().cloned();
        if self.bad.insert(file.clone(), seen.clone()) != Some(seen) {
            let reason = read.map_or_else(|error| error.to_string(), |_| "it holds no PEM".to_owned());
            warn!(file = %file.display(), %reason, "could not use a secret's file; its last good content stays");
        }
        None
    }
}

/// A chain and the key of another certificate do not; what cannot be judged here is left to Envoy.
fn belong_together(texts: &[&Bytes]) -> bool {
    let [chain, key] = texts else { return true };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let key = PrivateKeyDer::from_pem_slice(key);
    let (Ok(chain), Ok(key)) = (chain, key) else { return true };
    let Ok(key) = aws_lc_rs::default_provider().key_provider.load_private_key(key) else { return true };
    let checked = CertifiedKey::new(chain, key).keys_match();
    !matches!(checked, Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)))
}

fn is_pem(text: &[u8]) -> bool {
    text.windows(11).any(|at| at == b"-----BEGIN ")
}

/// Envoy's secret of this name; None while it is not there.
pub(super) fn resource(name: &Arc<str>, secret: &Secret, current: &Current, files: &Files) -> Option<Resource> {
    let file = |path: &PathBuf| files.good.get(path);
    let kind = match secret {
        Secret::Workload => {
            let material = current.as_ref()?;
            pair(&material.chain, &material.key)?
        }
        Secret::Root => trusted(&current.as_ref()?.root)?,
        Secret::Pair { chain, key } => pair(file(chain)?, file(key)?)?,
        Secret::RootFile(path) => trusted(file(path)?)?,
    };
    Some(Resource::new(Arc::clone(name), &Message { name: name.to_string(), r#type: Some(kind) }))
}

fn pair(chain: &Bytes, key: &Bytes) -> Option<Type> {
    let certificate = TlsCertificate {
        certificate_chain: Some(source(chain)?),
        private_key: Some(source(key)?),
        ..TlsCertificate::default()
    };
    Some(Type::TlsCertificate(certificate))
}

fn trusted(roots: &Bytes) -> Option<Type> {
    let context =
        CertificateValidationContext { trusted_ca: Some(source(roots)?), ..CertificateValidationContext::default() };
    Some(Type::ValidationContext(context))
}

fn source(text: &Bytes) -> Option<DataSource> {
    (!text.is_empty())
        .then(|| DataSource { specifier: Some(Specifier::InlineBytes(text.to_vec())), ..Default::default() })
}
