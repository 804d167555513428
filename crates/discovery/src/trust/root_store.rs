//! Where a self-signed root is kept: in a Secret, or in a file without Kubernetes. Both have the same entries, so that a
//! root can be moved from one to the other.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use sources::kubernetes::access::Access;
use sources::kubernetes::trust_objects::{SecretObject, TrustObjects, TrustRequestError, WriteResult};
use thiserror::Error;
use trust::key::SecretText;
use trust::rotation::{RotationStep, StoredRoots};
use xxhash_rust::xxh3::xxh3_128;
use zeroize::Zeroizing;

/// Upstream's Secret and its type.
const SECRET: &str = "istio-ca-secret";
const SECRET_TYPE: &str = "istio.io/ca-root";
/// The file with the root, and the file with its certificate alone, for agents.
const FILE: &str = "istio-ca-secret.json";
const ROOT_FILE: &str = "root-cert.pem";

const CERTIFICATE: &str = "ca-cert.pem";
const KEY: &str = "ca-key.pem";
const ROOTS: &str = "root-cert.pem";
/// Entries of upstream's Secret that are empty.
const EMPTY: [&str; 2] = ["cert-chain.pem", "key.pem"];
const NEXT_CERTIFICATE: &str = "pilotage-next-cert.pem";
const NEXT_KEY: &str = "pilotage-next-key.pem";
/// The step of a rotation and its start in seconds since 1970.
const ROTATION: &str = "pilotage-rotation";
/// The longest lifetime of leaves that were issued, in seconds.
const LONGEST_LEAF: &str = "pilotage-longest-leaf";

/// Why the root cannot be read or written.
#[derive(Debug, Error)]
pub(crate) enum RootStoreError {
    #[error("could not {action} Secret {namespace}/{SECRET}: {reason}")]
    Secret { action: &'static str, namespace: String, reason: TrustRequestError },
    #[error("could not {action} {}: {reason}", .path.display())]
    File { action: &'static str, path: PathBuf, reason: io::Error },
    #[error("{place} has no entry {entry}")]
    Missing { place: String, entry: &'static str },
}

/// A stored root and the version of its Secret or file.
pub(crate) struct StoredVersion {
    pub(crate) roots: StoredRoots,
    pub(crate) version: String,
}

/// Where the root is kept.
pub(crate) enum RootStore {
    Secret { access: Access, namespace: String, client: Option<TrustObjects> },
    Folder(PathBuf),
}

impl RootStore {
    pub(crate) fn secret(access: Access, namespace: &str) -> RootStore {
        RootStore::Secret { access, namespace: namespace.to_owned(), client: None }
    }

    /// For messages and debug pages.
    pub(crate) fn place(&self) -> String {
        match self {
            RootStore::Secret { namespace, .. } => format!("Secret {namespace}/{SECRET}"),
            RootStore::Folder(folder) => folder.join(FILE).display().to_string(),
        }
    }

    /// `None` if there is no root yet.
    pub(crate) async fn load(&mut self) -> Result<Option<StoredVersion>, RootStoreError> {
        let place = self.place();
        let found = match self {
            RootStore::Folder(folder) => read_file(folder)?,
            RootStore::Secret { access, namespace, client } => {
                let failed = |reason| RootStoreError::Secret { action: "read", namespace: namespace.clone(), reason };
                let client = connected(client, access).await.map_err(failed)?;
                let secret = client.secret(namespace, SECRET).await.map_err(failed)?;
                secret.map(|secret| (zeroised(secret.data), secret.version))
            }
        };
        let Some((data, version)) = found else { return Ok(None) };
        Ok(Some(StoredVersion { roots: decode(&data, &place)?, version }))
    }

    /// Writes a root over the given version; an empty version means that there is none yet.
    pub(crate) async fn save(&mut self, roots: &StoredRoots, version: &str) -> Result<WriteResult, RootStoreError> {
        let data = encode(roots);
        match self {
            RootStore::Folder(folder) => write_file(folder, &data, version),
            RootStore::Secret { access, namespace, client } => {
                let failed = |reason| RootStoreError::Secret { action: "write", namespace: namespace.clone(), reason };
                let client = connected(client, access).await.map_err(failed)?;
                let secret = SecretObject {
                    version: version.to_owned(),
                    type_name: SECRET_TYPE.to_owned(),
                    data: data.iter().map(|(name, value)| (name.clone(), value.to_vec())).collect(),
                    ..SecretObject::default()
                };
                client.write_secret(namespace, SECRET, secret).await.map_err(failed)
            }
        }
    }
}

async fn connected<'a>(
    client: &'a mut Option<TrustObjects>,
    access: &Access,
) -> Result<&'a TrustObjects, TrustRequestError> {
    match client {
        Some(client) => Ok(client),
        none => Ok(none.insert(TrustObjects::connect(access.clone()).await?)),
    }
}

type Entries = BTreeMap<String, Zeroizing<Vec<u8>>>;

fn zeroised(entries: BTreeMap<String, Vec<u8>>) -> Entries {
    entries.into_iter().map(|(name, value)| (name, Zeroizing::new(value))).collect()
}

fn encode(roots: &StoredRoots) -> Entries {
    let entry = |name: &str, text: &str| (name.to_owned(), Zeroizing::new(text.as_bytes().to_vec()));
    let mut entries =
        Entries::from([entry(CERTIFICATE, &roots.certificate), entry(KEY, &roots.key), entry(ROOTS, &roots.roots)]);
    entries.extend(EMPTY.map(|name| entry(name, "")));
    if let Some((certificate, key)) = &roots.next {
        entries.extend([entry(NEXT_CERTIFICATE, certificate), entry(NEXT_KEY, key)]);
    }
    if roots.step != RotationStep::Alone {
        entries.extend([entry(ROTATION, &format!("{} {}", roots.step.name(), roots.since))]);
    }
    entries.extend(roots.longest_leaf.map(|seconds| entry(LONGEST_LEAF, &seconds.to_string())));
    entries
}

fn decode(entries: &Entries, place: &str) -> Result<StoredRoots, RootStoreError> {
    let text = |name: &str| {
        let text = entries.get(name).and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.filter(|text| !text.trim().is_empty()).map(str::to_owned)
    };
    let required =
        |entry: &'static str| text(entry).ok_or_else(|| RootStoreError::Missing { place: place.to_owned(), entry });
    let certificate = required(CERTIFICATE)?;
    let rotation = text(ROTATION).unwrap_or_default();
    let (step, since) = rotation.split_once(' ').unwrap_or_default();
    Ok(StoredRoots {
        key: SecretText::new(required(KEY)?),
        // Old versions of upstream did not write this entry.
        roots: text(ROOTS).unwrap_or_else(|| certificate.clone()),
        next: text(NEXT_CERTIFICATE).zip(text(NEXT_KEY).map(SecretText::new)),
        step: RotationStep::parse(step).unwrap_or_default(),
        since: since.trim().parse().unwrap_or_default(),
        longest_leaf: text(LONGEST_LEAF).and_then(|text| text.trim().parse().ok()),
        certificate,
    })
}

fn read_file(folder: &Path) -> Result<Option<(Entries, String)>, RootStoreError> {
    let path = folder.join(FILE);
    let failed = |reason| RootStoreError::File { action: "read", path: path.clone(), reason };
    let text = match sources::disk::content(&path) {
        Ok(text) => Zeroizing::new(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let entries: BTreeMap<String, String> =
        serde_json::from_slice(&text).map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    let entries = entries.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
    Ok(Some((zeroised(entries), format!("{:x}", xxh3_128(&text)))))
}

fn write_file(folder: &Path, entries: &Entries, version: &str) -> Result<WriteResult, RootStoreError> {
    let path = folder.join(FILE);
    let failed = |reason| RootStoreError::File { action: "write", path: path.clone(), reason };
    fs::create_dir_all(folder).map_err(failed)?;
    fs::set_permissions(folder, Permissions::from_mode(0o700)).map_err(failed)?;
    let lock = OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(folder.join("lock"));
    // Held until the end of this function: another server may use the same folder.
    let _lock = Flock::lock(lock.map_err(failed)?, FlockArg::LockExclusive)
        .map_err(|(_, error)| failed(io::Error::from(error)))?;
    let current = read_file(folder)?.map(|(_, version)| version).unwrap_or_default();
    if current != version {
        return Ok(WriteResult::Conflict);
    }
    let texts: BTreeMap<&String, _> =
        entries.iter().map(|(name, value)| (name, String::from_utf8_lossy(value))).collect();
    let text = Zeroizing::new(serde_json::to_vec_pretty(&texts).map_err(|error| failed(io::Error::other(error)))?);
    replace(&path, &text, 0o600).map_err(failed)?;
    let roots = entries.get(ROOTS).map(|roots| roots.as_slice()).unwrap_or_default();
    replace(&folder.join(ROOT_FILE), roots, 0o644).map_err(failed)?;
    Ok(WriteResult::Written)
}

/// Writes a file so that readers see the old content or the new, also after a crash.
fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let part = path.with_extension("part");
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().create_new(true).write(true).mode(mode).open(&part)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use sources::kubernetes::trust_objects::WriteResult;
    use trust::key::KeyKind;
    use trust::rotation::{RootState, RotationPolicy, RotationStep};

    use super::RootStore;

    fn policy() -> RotationPolicy {
        RotationPolicy {
            step: None,
            usual_leaf: Duration::from_secs(60),
            max_leaf: Duration::from_secs(600),
            begin_when_left: 0.2,
            root_lifetime: Duration::from_secs(3600),
            key: KeyKind::P256,
            organization: "cluster.local".to_owned(),
        }
    }

    #[tokio::test]
    async fn a_root_is_stored_once_and_privately() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("ca");
        let mut store = RootStore::Folder(folder.clone());
        assert!(store.load().await.unwrap().is_none());
        let state = RootState::new(&policy(), 100, &[1; 16]).unwrap();
        assert_eq!(store.save(&state.to_stored().unwrap(), "").await.unwrap(), WriteResult::Written);
        assert_eq!(store.save(&state.to_stored().unwrap(), "").await.unwrap(), WriteResult::Conflict);
        let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("istio-ca-secret.json"))), (0o700, 0o600));
        let roots = std::fs::read_to_string(folder.join("root-cert.pem")).unwrap();
        assert_eq!(roots, state.signer().certificate().to_pem());
    }

    #[tokio::test]
    async fn every_step_of_a_rotation_is_stored() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = RootStore::Folder(folder.path().to_owned());
        let mut state = RootState::new(&policy(), 100, &[1; 16]).unwrap();
        let mut version = String::new();
        for step in [RotationStep::Alone, RotationStep::Announced, RotationStep::Signing, RotationStep::Alone] {
            assert_eq!(store.save(&state.to_stored().unwrap(), &version).await.unwrap(), WriteResult::Written);
            let stored = store.load().await.unwrap().unwrap();
            let read = RootState::from_stored(&stored.roots).unwrap();
            assert_eq!((read.step(), read.signer().roots()), (step, state.signer().roots()));
            assert_eq!(
                (read.leaf_limit(&policy()), read.step_end(&policy())),
                (state.leaf_limit(&policy()), state.step_end(&policy()))
            );
            version = stored.version;
            state = state.advance(&policy(), 200, &[2; 16]).unwrap();
        }
    }
}
