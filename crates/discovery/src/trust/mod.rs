//! The certificate authority of the mesh, and the authentication of its clients. `authority` runs the CA, `serving` makes this server's
//! own certificate, `service` answers requests for certificates, `authenticate` verifies the identity of a caller.

pub(crate) mod authenticate;
mod authority;
mod ca_folder;
mod config_maps;
mod kubernetes_signer;
mod lifetimes;
pub(crate) mod metrics;
mod problems;
pub(crate) mod recheck;
mod root_store;
pub(crate) mod service;
mod serving;
mod start;
mod trust_bundle;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{Notify, watch};
use trust::authority::SigningAuthority;
use trust::bundle::RootBundle;
use trust::certificate::Certificate;
use trust::crl::RevocationLists;
use trust::rotation::RotationStep;

pub(crate) use config_maps::DiscoverySelectors;
pub(crate) use start::{RunningTrust, TrustStart, start};
pub(crate) use trust_bundle::BundleReceiver;

use metrics::TrustMetrics;
use problems::{Topic, TrustProblems};

/// The CA at one moment.
#[derive(Debug)]
pub(crate) struct TrustState {
    pub(crate) authority: Arc<SigningAuthority>,
    /// Certificates that the CA has revoked.
    pub(crate) revoked: Option<RevocationLists>,
    /// Where the CA comes from: a Secret, file or folder.
    pub(crate) place: String,
    pub(crate) is_plugged_in: bool,
    /// Step of a rotation of a self-signed root, and its start in seconds since 1970.
    pub(crate) step: RotationStep,
    pub(crate) since: i64,
    /// The earliest end of the step, in seconds since 1970.
    pub(crate) step_end: Option<i64>,
    /// Longest lifetime of leaves in seconds that may be issued: see `trust::rotation`. `None` for any lifetime.
    pub(crate) leaf_limit: Option<i64>,
}

/// Longest lifetimes of leaves are recorded in whole days: a record is a write of the stored root.
const RECORDED: i64 = 24 * 3600;
/// A caller who requests a longer lifetime than any before waits this long for the record.
const RECORD_TIMEOUT: Duration = Duration::from_secs(3);

impl TrustState {
    fn may_issue(&self, lifetime: i64) -> bool {
        self.leaf_limit.is_none_or(|limit| lifetime <= limit)
    }
}

/// The CA, shared by all that use it.
#[derive(Debug)]
pub(crate) struct Trust {
    state: watch::Sender<Option<Arc<TrustState>>>,
    /// This server's own certificate.
    own: watch::Sender<Option<Certificate>>,
    /// The CA issues this server's own certificate.
    issues_own: AtomicBool,
    /// Roots of the cluster's signers, if they issue the certificates of workloads.
    signer_roots: watch::Sender<RootBundle>,
    rotation_requested: AtomicBool,
    /// The longest lifetime of leaves in seconds that must be recorded before they are issued; 0 for none.
    longest_leaf: AtomicI64,
    wake: Notify,
    pub(crate) metrics: TrustMetrics,
    pub(crate) problems: TrustProblems,
}

impl Trust {
    pub(crate) fn new(problems: TrustProblems) -> Arc<Trust> {
        Arc::new(Trust {
            state: watch::Sender::new(None),
            own: watch::Sender::new(None),
            issues_own: AtomicBool::new(false),
            signer_roots: watch::Sender::new(RootBundle::default()),
            rotation_requested: AtomicBool::new(false),
            longest_leaf: AtomicI64::new(0),
            wake: Notify::new(),
            metrics: TrustMetrics::default(),
            problems,
        })
    }

    /// The CA now; `None` until it is loaded.
    pub(crate) fn now(&self) -> Option<Arc<TrustState>> {
        self.state.borrow().clone()
    }

    pub(crate) fn own_certificate(&self) -> Option<Certificate> {
        self.own.borrow().clone()
    }

    /// Whether this server will get its first certificate soon. False if the CA failed: without the permission for its Secret
    /// the plain-text ports work.
    pub(crate) fn awaits_own_certificate(&self) -> bool {
        let has_failed = || self.problems.has(Topic::Authority) || self.problems.has(Topic::OwnCertificate);
        self.issues_own.load(Ordering::Relaxed) && self.own.borrow().is_none() && !has_failed()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<TrustState>>> {
        self.state.subscribe()
    }

    fn publish(&self, state: TrustState) {
        self.state.send_if_modified(|current| {
            let is_same = current.as_ref().is_some_and(|current| {
                current.authority.certificate() == state.authority.certificate()
                    && current.authority.roots() == state.authority.roots()
                    && current.authority.chain() == state.authority.chain()
                    && current.revoked == state.revoked
                    && current.step == state.step
                    && current.leaf_limit == state.leaf_limit
            });
            if !is_same {
                tracing::info!(
                    place = state.place,
                    roots = state.authority.roots().roots().len(),
                    step = state.step.name(),
                    "certificate authority is ready"
                );
                *current = Some(Arc::new(state));
            }
            !is_same
        });
    }

    /// The CA, and the lifetime of a leaf for which `lifetime` seconds are requested. A longer one than any before is issued
    /// after it was recorded with the root. During a rotation, and if there is no record in time, it is shortened.
    pub(crate) async fn for_lifetime(&self, lifetime: i64) -> Option<(Arc<TrustState>, i64)> {
        let mut states = self.subscribe();
        let state = states.borrow_and_update().clone()?;
        let is_final = |state: &TrustState| state.may_issue(lifetime) || state.step != RotationStep::Alone;
        if !is_final(&state) {
            let days = lifetime.saturating_add(RECORDED - 1) / RECORDED;
            let recorded = days.saturating_mul(RECORDED);
            // Only the first caller wakes the task that writes the record.
            if self.longest_leaf.fetch_max(recorded, Ordering::Relaxed) < recorded {
                self.wake.notify_one();
            }
            let is_recorded = states.wait_for(|state| state.as_ref().is_some_and(|state| is_final(state)));
            let _ = tokio::time::timeout(RECORD_TIMEOUT, is_recorded).await;
        }
        let state = self.now()?;
        let limit = state.leaf_limit.unwrap_or(lifetime);
        Some((state, lifetime.min(limit)))
    }

    /// Begins to replace a self-signed root. Returns false for a plugged-in CA, which its owner replaces.
    pub(crate) fn request_rotation(&self) -> bool {
        let is_own = self.now().is_some_and(|state| !state.is_plugged_in && state.step == RotationStep::Alone);
        if is_own {
            self.rotation_requested.store(true, Ordering::Relaxed);
            self.wake.notify_one();
        }
        is_own
    }
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
