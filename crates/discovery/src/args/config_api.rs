//! Flags of the configuration API.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use configapi::api::ConfigValidation;

/// Prefix of the address of a Unix socket.
const UNIX: &str = "unix://";

/// Flags of the configuration API.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigApiFlags {
    /// Addresses of the configuration API, separated by commas: HOST:PORT for TLS, unix:///PATH for a socket; default: off
    #[arg(id = "configAPI", long = "configAPI", value_delimiter = ',')]
    pub addresses: Vec<String>,

    /// Storage of the configuration API: a file, or etcd://HOST:PORT,.../PREFIX, which several servers may share; etcds://
    /// for TLS
    #[arg(id = "configStorage", long = "configStorage", default_value = "config.redb")]
    pub storage: PathBuf,

    #[command(flatten)]
    pub etcd: EtcdFlags,

    /// Certificate of the configuration API; default: of a CA that is made next to the storage
    #[arg(id = "configAPICertFile", long = "configAPICertFile", default_value = "")]
    pub cert_file: String,

    /// Private key of that certificate
    #[arg(id = "configAPIKeyFile", long = "configAPIKeyFile", default_value = "")]
    pub key_file: String,

    /// CA certificates that verify clients of the configuration API: the common name is the user, organizations are groups
    #[arg(id = "configAPIClientCAFile", long = "configAPIClientCAFile", default_value = "")]
    pub client_ca_file: String,

    /// Tokens of the configuration API, a line each: TOKEN,USER,UID,"GROUP,..."; default: one for an administrator, made
    /// next to the storage
    #[arg(id = "configAPITokenFile", long = "configAPITokenFile")]
    pub token_file: Option<PathBuf>,

    /// Roles of users and groups: read or write, by namespace; members of system:masters may do everything
    #[arg(id = "configAPIRolesFile", long = "configAPIRolesFile")]
    pub roles_file: Option<PathBuf>,

    /// What to do with configuration that validation rejects
    #[arg(id = "configAPIValidation", long = "configAPIValidation", value_enum, default_value = "reject")]
    pub validation: ValidationFlag,
}

/// Flags of a storage in etcd.
#[derive(Clone, Debug, Default, Args)]
pub struct EtcdFlags {
    /// CA certificates that verify etcd; default: those of the operating system
    #[arg(id = "configStorageCAFile", long = "configStorageCAFile")]
    pub ca_file: Option<PathBuf>,

    /// Client certificate for etcd
    #[arg(id = "configStorageCertFile", long = "configStorageCertFile")]
    pub cert_file: Option<PathBuf>,

    /// Private key of that certificate
    #[arg(id = "configStorageKeyFile", long = "configStorageKeyFile")]
    pub key_file: Option<PathBuf>,

    /// User of etcd
    #[arg(id = "configStorageUser", long = "configStorageUser")]
    pub user: Option<String>,

    /// File with the password of that user
    #[arg(id = "configStoragePasswordFile", long = "configStoragePasswordFile")]
    pub password_file: Option<PathBuf>,
}

/// What to do with configuration that validation rejects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ValidationFlag {
    /// Refuse it
    #[default]
    Reject,
    /// Store it and warn the client
    Warn,
}

impl From<ValidationFlag> for ConfigValidation {
    fn from(flag: ValidationFlag) -> ConfigValidation {
        match flag {
            ValidationFlag::Reject => ConfigValidation::Reject,
            ValidationFlag::Warn => ConfigValidation::Warn,
        }
    }
}

impl ConfigApiFlags {
    /// Whether the API is served.
    pub(crate) fn is_on(&self) -> bool {
        self.addresses.iter().any(|address| !address.is_empty())
    }

    pub(crate) fn tcp_address(&self) -> Option<&str> {
        self.addresses.iter().map(String::as_str).find(|address| !address.is_empty() && !address.starts_with(UNIX))
    }

    pub(crate) fn socket_path(&self) -> Option<PathBuf> {
        self.addresses.iter().find_map(|address| address.strip_prefix(UNIX)).map(PathBuf::from)
    }
}

/// Flags of `pilot-discovery config-api kubeconfig`.
#[derive(Clone, Debug, Args)]
pub struct KubeconfigFlags {
    /// Address of the configuration API as clients reach it, such as https://127.0.0.1:15020
    #[arg(long)]
    pub server: String,

    /// The value of --configStorage of the server
    #[arg(long = "configStorage", default_value = "config.redb")]
    pub storage: PathBuf,

    /// The value of --configAPITokenFile of the server
    #[arg(long = "configAPITokenFile")]
    pub token_file: Option<PathBuf>,

    /// CA certificate of the server; default: the one made next to the storage
    #[arg(long = "configAPICAFile")]
    pub ca_file: Option<PathBuf>,

    /// User of the token; default: the first of the file
    #[arg(long, default_value = "")]
    pub user: String,

    /// Namespace of commands that name none
    #[arg(long, short = 'n', default_value = "default")]
    pub namespace: String,
}
