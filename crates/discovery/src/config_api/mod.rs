//! The configuration API (`crates/configapi`) in this process: its storage, its users, its ports, and the source that
//! feeds its objects into the mesh.

mod files;
mod in_process;
mod kubeconfig;
mod serve;
mod source;
mod storage;
mod users;

use std::sync::Arc;

use anyhow::{Context, Result};
use cli::version;
use configapi::api::{Api, ApiOptions};
use configapi::http::ApiService;
use configapi::store::Storage;
use sources::kubernetes::access::Access;
use tokio_util::sync::CancellationToken;

use crate::args::TlsFlags;
use crate::args::config_api::ConfigApiFlags;
use crate::environment::Instance;
use crate::tls::Certificates;
use files::ApiFiles;
pub use kubeconfig::kubeconfig;
pub(crate) use serve::{UnixSocket, router};
pub(crate) use source::{ConfigApiSource, ID};

/// The open API.
pub(crate) struct ConfigApi {
    pub(crate) service: ApiService,
    pub(crate) storage: Arc<dyn Storage>,
    /// Of the TCP port; `None` if there is only a Unix socket.
    pub(crate) certificates: Option<Arc<Certificates>>,
}

/// Opens the storage and makes the objects that always exist. `None` if the API is off.
pub(crate) async fn open(
    flags: &ConfigApiFlags,
    instance: &Instance,
    stop: &CancellationToken,
) -> Result<Option<ConfigApi>> {
    if !flags.is_on() {
        return Ok(None);
    }
    let storage = storage::open(flags).await?;
    let files = ApiFiles::new(flags);
    let users = match flags.tcp_address() {
        Some(_) => users::follow(flags, &files, stop.clone())?,
        None => Arc::default(),
    };
    let certificates = match flags.tcp_address() {
        Some(address) => Some(certificates(flags, &files, address)?),
        None => None,
    };
    let options = ApiOptions {
        validation: flags.validation.into(),
        users,
        version: version::line().to_owned(),
        namespaces: vec![instance.namespace().to_owned()],
    };
    let api = Arc::new(Api::new(storage.clone(), options, stop.clone()));
    api.seed().await?;
    Ok(Some(ConfigApi { service: ApiService::new(api), storage, certificates }))
}

impl ConfigApi {
    /// Access for the parts of this process that write to an API server.
    pub(crate) fn access(&self) -> Access {
        in_process::access(self.service.clone())
    }
}

/// Certificates of the TCP port: those of the flags, else of a CA of our own next to the storage.
fn certificates(flags: &ConfigApiFlags, files: &ApiFiles, address: &str) -> Result<Arc<Certificates>> {
    let own = flags.cert_file.is_empty() && flags.key_file.is_empty();
    let tls = match own {
        true => files.make_certificates(address, &flags.client_ca_file)?,
        false => TlsFlags {
            cert_file: flags.cert_file.clone(),
            key_file: flags.key_file.clone(),
            ca_file: flags.client_ca_file.clone(),
        },
    };
    let loaded = Certificates::load(&tls).context("could not serve the configuration API")?;
    loaded.context("could not serve the configuration API without a certificate")
}
