//! Runs the CA: reads a plugged-in CA from its folder, or a self-signed root from its store, and follows changes. What
//! does not verify is reported and not used.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use net::watch::{FilePolling, PolledFiles};
use sources::kubernetes::trust_objects::WriteResult;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use trust::key::random_serial;
use trust::rotation::{RootState, RotationPolicy};

use super::ca_folder::{CaFiles, CaFolderError};
use super::problems::Topic;
use super::root_store::{RootStore, RootStoreError};
use super::{Trust, TrustState, unix_now};

/// Interval at which the files of a plugged-in CA are checked.
const FILE_INTERVAL: Duration = Duration::from_millis(500);
/// Changes of the stored root by other replicas are noticed within this time.
const MAX_LOOK: Duration = Duration::from_secs(60);
/// Back-off while the root cannot be read or written.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// A plugged-in CA in a folder.
pub(super) struct PluggedIn {
    pub(super) folder: PathBuf,
    pub(super) files: CaFiles,
}

impl PluggedIn {
    /// Reads the folder at start; `None` if there are no files. Unusable files are an error, as in upstream.
    pub(super) fn load(folder: PathBuf, trust: &Trust) -> Result<Option<PluggedIn>, CaFolderError> {
        let Some(files) = CaFiles::read(&folder)? else { return Ok(None) };
        publish(&files, &folder, trust)?;
        Ok(Some(PluggedIn { folder, files }))
    }

    /// Follows the files until cancelled.
    pub(super) async fn watch(self, trust: Arc<Trust>, stop: CancellationToken) {
        let PluggedIn { folder, files } = self;
        let own_folder = folder.clone();
        // The cause as text, which can be compared: it is reported when it changes.
        let read = move || CaFiles::read(&own_folder).map_err(|error| error.to_string());
        let mut polled = PolledFiles::new(FilePolling::every(FILE_INTERVAL), read).after(Ok(Some(files)));
        while let Some(Some(read)) = stop.run_until_cancelled(polled.changed()).await {
            let used = match read {
                Ok(Some(files)) => publish(files, &folder, &trust).map_err(|error| error.to_string()),
                Ok(None) => Err(format!("the files of the CA in {} are gone", folder.display())),
                Err(error) => Err(error.clone()),
            };
            match used {
                Ok(()) => trust.problems.solved(Topic::Authority),
                Err(error) => trust.problems.error(Topic::Authority, format!("{error}; {KEPT}")),
            }
        }
    }
}

const KEPT: &str = "the last good CA stays in use";

/// Uses a plugged-in CA from now on, if it verifies.
fn publish(files: &CaFiles, folder: &Path, trust: &Trust) -> Result<(), CaFolderError> {
    let now = unix_now();
    let current = trust.now();
    let current = current.as_ref().map(|state| &*state.authority);
    let authority = Arc::new(files.authority(folder, current, now)?);
    let revoked = files.revocations(folder, &authority)?;
    let place = folder.display().to_string();
    trust.publish(TrustState {
        authority,
        revoked,
        place,
        is_plugged_in: true,
        step: Default::default(),
        since: now,
        step_end: None,
        leaf_limit: None,
    });
    Ok(())
}

/// A self-signed root.
pub(super) struct SelfSigned {
    pub(super) store: RootStore,
    pub(super) policy: RotationPolicy,
    /// How often the root's age is checked; zero for never.
    pub(super) check: Duration,
}

/// Why the root is not usable now.
#[derive(Debug, thiserror::Error)]
enum SelfSignedError {
    #[error(transparent)]
    Store(#[from] RootStoreError),
    #[error("could not use the root in {place}: {reason}")]
    Authority { place: String, reason: trust::authority::AuthorityError },
    #[error(transparent)]
    Rotation(#[from] trust::rotation::RotationError),
    #[error("could not make a key: {0}")]
    Key(#[from] trust::key::KeyError),
    #[error("another replica wrote {0}")]
    Conflict(String),
}

impl SelfSigned {
    /// Reads or makes the root, then follows it until cancelled.
    pub(super) async fn run(mut self, trust: Arc<Trust>, stop: CancellationToken) {
        let mut retry = FIRST_RETRY;
        loop {
            let pause = match self.look(&trust).await {
                Ok(()) => {
                    retry = FIRST_RETRY;
                    trust.problems.solved(Topic::Authority);
                    self.pause()
                }
                Err(SelfSignedError::Conflict(place)) => {
                    info!(place, "another replica wrote the root; reading it");
                    FIRST_RETRY
                }
                Err(error) => {
                    let now = if trust.now().is_some() { KEPT } else { "no certificates are issued; retrying" };
                    trust.problems.error(Topic::Authority, format!("{error}; {now}"));
                    retry = (retry * 2).min(LAST_RETRY);
                    retry.mul_f64(0.5 + 0.5 * fastrand::f64())
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = trust.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn pause(&self) -> Duration {
        let step = self.policy.step.map_or(MAX_LOOK, |step| step.max(Duration::from_secs(1)));
        MAX_LOOK.min(step).min(if self.check.is_zero() { MAX_LOOK } else { self.check })
    }

    /// Reads the root and takes the steps of a rotation that are due.
    async fn look(&mut self, trust: &Trust) -> Result<(), SelfSignedError> {
        let (mut state, mut version) = match self.store.load().await? {
            Some(stored) => {
                let place = self.store.place();
                let state = RootState::from_stored(&stored.roots)
                    .map_err(|reason| SelfSignedError::Authority { place, reason })?;
                (state, stored.version)
            }
            None => {
                let state = RootState::new(&self.policy, unix_now(), &random_serial()?)?;
                info!(place = self.store.place(), "created self-signed root");
                let version = self.save(&state, "").await?;
                (state, version)
            }
        };
        (state, version) = self.record(state, version, trust).await?;
        let mut requested = trust.rotation_requested.swap(false, Ordering::Relaxed);
        while let Some(step) = self.due(&state, requested) {
            requested = false;
            state = state.advance(&self.policy, unix_now(), &random_serial()?)?;
            version = self.save(&state, &version).await?;
            info!(step = step.name(), "root rotation advanced");
        }
        trust.publish(TrustState {
            authority: state.signer().clone(),
            revoked: None,
            place: self.store.place(),
            is_plugged_in: false,
            step: state.step(),
            since: state.since(),
            step_end: state.step_end(&self.policy),
            leaf_limit: Some(state.leaf_limit(&self.policy)),
        });
        Ok(())
    }

    /// Records the longest lifetime that was requested, so that certificates may have it. Without the record they are
    /// shorter, and all else goes on.
    async fn record(
        &mut self,
        state: RootState,
        version: String,
        trust: &Trust,
    ) -> Result<(RootState, String), SelfSignedError> {
        let longest = trust.longest_leaf.load(Ordering::Relaxed);
        let (state, version) = match state.with_longest_leaf(&self.policy, longest) {
            None => (state, version),
            Some(recorded) => match self.save(&recorded, &version).await {
                Ok(version) => {
                    info!(seconds = longest, "recorded the longest lifetime of certificates with the root");
                    (recorded, version)
                }
                Err(conflict @ SelfSignedError::Conflict(_)) => return Err(conflict),
                Err(error) => {
                    warn!(%error, "could not record a longer lifetime of certificates; issuing shorter ones");
                    return Ok((state, version));
                }
            },
        };
        // A longer one may have been requested meanwhile.
        let _ = trust.longest_leaf.compare_exchange(longest, 0, Ordering::Relaxed, Ordering::Relaxed);
        Ok((state, version))
    }

    fn due(&self, state: &RootState, requested: bool) -> Option<trust::rotation::RotationStep> {
        let is_begun = state.step() != trust::rotation::RotationStep::Alone;
        // With checks off, a rotation begins on request only.
        let is_checked = requested || is_begun || !self.check.is_zero();
        state.due(&self.policy, unix_now(), requested).filter(|_| is_checked)
    }

    async fn save(&mut self, state: &RootState, version: &str) -> Result<String, SelfSignedError> {
        let conflict = |store: &RootStore| SelfSignedError::Conflict(store.place());
        match self.store.save(&state.to_stored()?, version).await? {
            WriteResult::Conflict => Err(conflict(&self.store)),
            WriteResult::Written => {
                let stored = self.store.load().await?.ok_or_else(|| conflict(&self.store))?;
                let is_ours = stored.roots.certificate == state.signer().certificate().to_pem();
                if is_ours { Ok(stored.version) } else { Err(conflict(&self.store)) }
            }
        }
    }
}
