//! Files next to the storage: a CA, the certificate of the server, and the first token. They are made when they are
//! missing; keys and tokens are readable by their owner only.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use configapi::users::ADMINISTRATORS;
use etcd::EtcdOptions;
use trust::authority::{AuthorityTexts, SigningAuthority};
use trust::issue::SubjectName;
use trust::key::{KeyFormat, KeyKind, PrivateKey, random_serial};

use crate::args::TlsFlags;
use crate::args::config_api::{ConfigApiFlags, KubeconfigFlags};

/// Ten years. The certificate of the server is made again at each start.
const LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
const ORGANIZATION: &str = "pilotage configuration API";

/// The folder of these files.
pub(super) struct ApiFiles {
    folder: PathBuf,
    token_file: Option<PathBuf>,
}

impl ApiFiles {
    pub(super) fn new(flags: &ConfigApiFlags) -> ApiFiles {
        ApiFiles { folder: folder(&flags.storage), token_file: flags.token_file.clone() }
    }

    pub(super) fn of_kubeconfig(flags: &KubeconfigFlags) -> ApiFiles {
        ApiFiles { folder: folder(&flags.storage), token_file: flags.token_file.clone() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn ca_file(&self) -> PathBuf {
        self.path("ca.pem")
    }

    pub(super) fn token_file(&self) -> PathBuf {
        self.token_file.clone().unwrap_or_else(|| self.path("tokens.csv"))
    }

    /// Makes the first token if no file of tokens is given and none exists.
    pub(super) fn make_token(&self) -> Result<()> {
        let path = self.token_file();
        if self.token_file.is_none() && !path.exists() {
            let token = hex(&random_serial()?) + &hex(&random_serial()?);
            self.write_secret("tokens.csv", &format!("{token},admin,admin,\"{ADMINISTRATORS}\"\n"))?;
        }
        Ok(())
    }

    /// Issues a certificate for the server by the CA of this folder.
    pub(super) fn make_certificates(&self, address: &str, client_ca_file: &str) -> Result<TlsFlags> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let authority = self.authority(now)?;
        let names = names(address);
        let (issued, key) = authority.issue_with_key(&names, LIFETIME, now, random_serial()?)?;
        self.write_secret("server-key.pem", &key.to_pem(KeyFormat::Pkcs8)?)?;
        self.write("server.pem", &issued.certificate.to_pem())?;
        let text = |path: PathBuf| path.display().to_string();
        Ok(TlsFlags {
            cert_file: text(self.path("server.pem")),
            key_file: text(self.path("server-key.pem")),
            ca_file: client_ca_file.to_owned(),
        })
    }

    /// The CA of this folder, which is made if it does not exist.
    fn authority(&self, now: i64) -> Result<SigningAuthority> {
        let (certificate, key) = (self.ca_file(), self.path("ca-key.pem"));
        if !certificate.exists() {
            let made = PrivateKey::generate(KeyKind::P256)?;
            let authority = SigningAuthority::new_root(ORGANIZATION, made, LIFETIME, now, &random_serial()?)?;
            self.write_secret("ca-key.pem", &authority.key_pem()?)?;
            self.write("ca.pem", &authority.certificate().to_pem())?;
        }
        let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()));
        let (certificate_text, key_text) = (read(&certificate)?, read(&key)?);
        let texts =
            AuthorityTexts { certificate: &certificate_text, key: &key_text, chain: "", roots: &certificate_text };
        SigningAuthority::from_texts(texts, now).with_context(|| format!("could not use {}", certificate.display()))
    }

    fn write_secret(&self, name: &str, text: &str) -> Result<()> {
        self.replace(name, text, 0o600)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        self.replace(name, text, 0o644)
    }

    /// Replaces a file at once, so that a crash leaves the old or the new one.
    fn replace(&self, name: &str, text: &str, mode: u32) -> Result<()> {
        let (path, new) = (self.path(name), self.path(&format!("{name}.new")));
        let failed = || format!("could not write {}", path.display());
        fs::create_dir_all(&self.folder).with_context(failed)?;
        // A file left by a crash may have another mode.
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new).with_context(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).with_context(failed)?;
        fs::rename(&new, &path).with_context(failed)
    }
}

/// The folder next to a storage; `config-api.d` in the working folder for one in etcd.
fn folder(storage: &Path) -> PathBuf {
    if storage.to_str().is_some_and(EtcdOptions::is_address) {
        return PathBuf::from("config-api.d");
    }
    let mut name = storage.as_os_str().to_owned();
    name.push(".d");
    name.into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The names under which the server is reached: those of this machine and of the address.
fn names(address: &str) -> Vec<SubjectName> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let mut names = vec!["localhost", "127.0.0.1", "::1"];
    if !host.is_empty() && !names.contains(&host) {
        names.push(host);
    }
    let mut names: Vec<SubjectName> = names.into_iter().map(SubjectName::of_text).collect();
    let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if !own.trim().is_empty() {
        names.push(SubjectName::of_text(own.trim()));
    }
    names
}
