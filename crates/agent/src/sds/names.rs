//! Parses secret names as the control plane writes them into Envoy's configuration.

use std::path::PathBuf;

use crate::file_secrets;

/// The workload's own certificate.
pub const WORKLOAD: &str = "default";
/// The roots that peer certificates are verified with.
pub const ROOT: &str = "ROOTCA";

/// Where the content of a secret comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SecretSource {
    Workload,
    Root,
    /// A certificate chain and its key, in files.
    Pair {
        chain: PathBuf,
        key: PathBuf,
    },
    /// Trusted certificates, in a file.
    RootFile(PathBuf),
}

impl SecretSource {
    /// `None` for an unknown name.
    pub(super) fn parse(name: &str) -> Option<SecretSource> {
        let is_path = |path: &str| !path.is_empty() && !path.contains('~');
        if let Some(files) = name.strip_prefix(file_secrets::PAIR) {
            let (chain, key) = files.split_once('~')?;
            return (is_path(chain) && is_path(key))
                .then(|| SecretSource::Pair { chain: chain.into(), key: key.into() });
        }
        if let Some(file) = name.strip_prefix(file_secrets::ROOT) {
            return is_path(file).then(|| SecretSource::RootFile(file.into()));
        }
        match name {
            WORKLOAD => Some(SecretSource::Workload),
            ROOT => Some(SecretSource::Root),
            _ => None,
        }
    }

    /// The files of this secret.
    pub(super) fn files(&self) -> Vec<&PathBuf> {
        match self {
            SecretSource::Workload | SecretSource::Root => Vec::new(),
            SecretSource::Pair { chain, key } => vec![chain, key],
            SecretSource::RootFile(file) => vec![file],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SecretSource;

    #[test]
    fn names_are_parsed() {
        let pair = SecretSource::Pair { chain: "/a/cert.pem".into(), key: "/a/key.pem".into() };
        for (name, expected) in [
            ("default", Some(SecretSource::Workload)),
            ("ROOTCA", Some(SecretSource::Root)),
            ("file-cert:/a/cert.pem~/a/key.pem", Some(pair)),
            ("file-root:/a/root.pem", Some(SecretSource::RootFile("/a/root.pem".into()))),
            ("file-cert:/a/cert.pem", None),
            ("file-cert:~/a/key.pem", None),
            ("file-cert:a~b~c", None),
            ("file-root:a~b", None),
            ("kubernetes://secret", None),
            ("", None),
        ] {
            assert_eq!(SecretSource::parse(name), expected, "{name}");
        }
    }
}
