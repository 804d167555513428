//! Opens the storage that `--configStorage` names: a file, or etcd.

use std::sync::Arc;

use anyhow::{Result, bail};
use configapi::store::Storage;
use configapi::store::cache::HistoryLimits;
use configapi::store::embedded::EmbeddedStorage;
use configapi::store::etcd::EtcdStorage;
use etcd::{EtcdOptions, EtcdTls, EtcdUser};

use crate::args::config_api::ConfigApiFlags;

pub(super) async fn open(flags: &ConfigApiFlags) -> Result<Arc<dyn Storage>> {
    let limits = HistoryLimits::default();
    match flags.storage.to_str() {
        Some(address) if EtcdOptions::is_address(address) => {
            Ok(Arc::new(EtcdStorage::open(options(flags, address)?, limits).await?))
        }
        Some(address) if address.contains("://") => {
            bail!("could not use --configStorage={address}: expected the path of a file, etcd:// or etcds://")
        }
        _ => Ok(Arc::new(EmbeddedStorage::open(&flags.storage, limits)?)),
    }
}

fn options(flags: &ConfigApiFlags, address: &str) -> Result<EtcdOptions> {
    let mut options = EtcdOptions::parse(address)?;
    let files = &flags.etcd;
    if options.tls.is_none() && (files.ca_file.is_some() || files.cert_file.is_some() || files.key_file.is_some()) {
        bail!(
            "could not use --configStorage={address} with certificates: the scheme etcd is plain text, expected etcds"
        );
    }
    if files.cert_file.is_some() != files.key_file.is_some() {
        bail!(
            "could not use --configStorage={address}: --configStorageCertFile and --configStorageKeyFile belong together"
        );
    }
    if let Some(tls) = &mut options.tls {
        let (ca_file, cert_file) = (files.ca_file.clone(), files.cert_file.clone());
        *tls = EtcdTls { ca_file, cert_file, key_file: files.key_file.clone() };
    }
    options.user = match (&files.user, &files.password_file) {
        (Some(name), Some(file)) => Some(EtcdUser { name: name.clone(), password_file: file.clone() }),
        (None, None) => None,
        _ => bail!(
            "could not use --configStorage={address}: --configStorageUser and --configStoragePasswordFile belong together"
        ),
    };
    Ok(options)
}
