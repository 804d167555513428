//! Replaces a self-signed root without a gap, in three steps: the new root is trusted, then it signs, then it is alone.
//! Each step lasts until every workload has renewed its certificate, and with it its roots. So the longest lifetime of a
//! leaf is recorded with the root before such a leaf is issued, and leaves have their usual lifetime during a rotation.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::authority::{AuthorityError, AuthorityTexts, IssueError, SigningAuthority};
use crate::key::{KeyError, KeyKind, PrivateKey, SecretText};
use crate::lifetime;

/// Added to the length of a step: replicas read the stored root once a minute, and clocks differ.
pub const SLACK: Duration = Duration::from_secs(120);

/// The current step of a rotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RotationStep {
    /// There is one root.
    #[default]
    Alone,
    /// Both roots are trusted, the old one signs.
    Announced,
    /// Both roots are trusted, the new one signs.
    Signing,
}

impl RotationStep {
    pub fn name(self) -> &'static str {
        match self {
            RotationStep::Alone => "alone",
            RotationStep::Announced => "announced",
            RotationStep::Signing => "signing",
        }
    }

    pub fn parse(name: &str) -> Option<RotationStep> {
        [RotationStep::Alone, RotationStep::Announced, RotationStep::Signing].into_iter().find(|s| s.name() == name)
    }
}

/// When steps are taken, and the properties of a new root.
#[derive(Clone, Debug, PartialEq)]
pub struct RotationPolicy {
    /// Length of a step; `None` for as long as the leaves live that were issued before it, and `SLACK`.
    pub step: Option<Duration>,
    /// Lifetime that leaves may have at any time: the default one.
    pub usual_leaf: Duration,
    /// Lifetime that leaves of a root without a record may have.
    pub max_leaf: Duration,
    /// A rotation begins when this share of the root's lifetime is left.
    pub begin_when_left: f64,
    pub root_lifetime: Duration,
    pub key: KeyKind,
    /// Subject of a new root: the trust domain.
    pub organization: String,
}

/// The self-signed root or roots.
#[derive(Clone, Debug)]
pub struct RootState {
    signer: Arc<SigningAuthority>,
    /// The new root while it is announced.
    next: Option<Arc<SigningAuthority>>,
    step: RotationStep,
    /// Start of the step, in seconds since 1970.
    since: i64,
    /// Longest lifetime in seconds of leaves that were issued before the step; of all leaves while there is one root.
    /// `None` if it was not recorded.
    longest_leaf: Option<i64>,
}

/// A RootState as texts, for storing it.
pub struct StoredRoots {
    pub certificate: String,
    pub key: SecretText,
    pub roots: String,
    /// Certificate and key of the announced root.
    pub next: Option<(String, SecretText)>,
    pub step: RotationStep,
    pub since: i64,
    pub longest_leaf: Option<i64>,
}

/// Why a step cannot be taken.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum RotationError {
    #[error("could not make a root: {0}")]
    Issue(#[from] IssueError),
    #[error("could not use a root: {0}")]
    Authority(#[from] AuthorityError),
    #[error("could not use a key: {0}")]
    Key(#[from] KeyError),
}

impl RootState {
    /// A new root.
    pub fn new(policy: &RotationPolicy, now: i64, serial: &[u8; 16]) -> Result<RootState, RotationError> {
        let signer = Arc::new(new_root(policy, now, serial)?);
        let longest_leaf = Some(seconds(policy.usual_leaf));
        Ok(RootState { signer, next: None, step: RotationStep::Alone, since: now, longest_leaf })
    }

    /// Reads a stored state. Its root may have expired: the next steps then follow at once.
    pub fn from_stored(stored: &StoredRoots) -> Result<RootState, AuthorityError> {
        let read = |certificate: &str, key: &str, roots: &str| {
            let texts = AuthorityTexts { certificate, key, chain: "", roots };
            SigningAuthority::from_texts_at_any_time(texts).map(Arc::new)
        };
        let signer = read(&stored.certificate, &stored.key, &stored.roots)?;
        let next = stored.next.as_ref().map(|(certificate, key)| read(certificate, key, &stored.roots)).transpose()?;
        // A step that its content does not support falls back to what the content says.
        let step = match (stored.step, &next) {
            (RotationStep::Announced, None) | (RotationStep::Alone, _) => match signer.roots().roots().len() {
                1 => RotationStep::Alone,
                _ => RotationStep::Signing,
            },
            (step, _) => step,
        };
        let next = next.filter(|_| step == RotationStep::Announced);
        Ok(RootState { signer, next, step, since: stored.since, longest_leaf: stored.longest_leaf })
    }

    pub fn to_stored(&self) -> Result<StoredRoots, KeyError> {
        let text = |authority: &SigningAuthority| -> Result<_, KeyError> {
            Ok((authority.certificate().to_pem(), authority.key_pem()?))
        };
        let (certificate, key) = text(&self.signer)?;
        let next = self.next.as_deref().map(text).transpose()?;
        Ok(StoredRoots {
            certificate,
            key,
            roots: self.signer.roots().to_pem(),
            next,
            step: self.step,
            since: self.since,
            longest_leaf: self.longest_leaf,
        })
    }

    /// The CA that signs, with all roots that are trusted.
    pub fn signer(&self) -> &Arc<SigningAuthority> {
        &self.signer
    }

    pub fn step(&self) -> RotationStep {
        self.step
    }

    pub fn since(&self) -> i64 {
        self.since
    }

    /// Longest lifetime of leaves in seconds that may be issued now. A longer one needs a record: `with_longest_leaf`.
    pub fn leaf_limit(&self, policy: &RotationPolicy) -> i64 {
        let usual = seconds(policy.usual_leaf);
        match self.step {
            RotationStep::Alone => self.recorded(policy).max(usual),
            RotationStep::Announced | RotationStep::Signing => usual,
        }
    }

    /// Records that leaves of this lifetime will be issued. `None` if nothing changes: they may be issued already, or they
    /// may not, because a rotation is under way.
    pub fn with_longest_leaf(&self, policy: &RotationPolicy, lifetime: i64) -> Option<RootState> {
        let is_new = self.step == RotationStep::Alone && lifetime > self.leaf_limit(policy);
        is_new.then(|| RootState { longest_leaf: Some(lifetime), ..self.clone() })
    }

    fn recorded(&self, policy: &RotationPolicy) -> i64 {
        self.longest_leaf.unwrap_or_else(|| seconds(policy.max_leaf))
    }

    /// The earliest end of the current step, in seconds since 1970; `None` if there is no rotation.
    pub fn step_end(&self, policy: &RotationPolicy) -> Option<i64> {
        let longest = || self.recorded(policy).max(seconds(policy.usual_leaf)).saturating_add(seconds(SLACK));
        let length = policy.step.map_or_else(longest, seconds);
        (self.step != RotationStep::Alone).then(|| self.since.saturating_add(length))
    }

    /// The step that is due. `requested` begins a rotation before the root is old.
    pub fn due(&self, policy: &RotationPolicy, now: i64, requested: bool) -> Option<RotationStep> {
        let is_over = self.step_end(policy).is_some_and(|end| now >= end);
        let root = self.signer.certificate();
        match self.step {
            RotationStep::Alone => {
                let left = (root.not_after.saturating_sub(now)) as f64;
                let life = (root.not_after.saturating_sub(root.not_before)) as f64;
                (requested || left <= life * policy.begin_when_left).then_some(RotationStep::Announced)
            }
            // A root that ends sooner than the step leaves no choice.
            RotationStep::Announced => (is_over || now >= root.not_after).then_some(RotationStep::Signing),
            RotationStep::Signing => is_over.then_some(RotationStep::Alone),
        }
    }

    /// Takes the next step.
    pub fn advance(&self, policy: &RotationPolicy, now: i64, serial: &[u8; 16]) -> Result<RootState, RotationError> {
        let (signer, next, step) = match (self.step, &self.next) {
            (RotationStep::Alone, _) | (RotationStep::Announced, None) => {
                let next = new_root(policy, now, serial)?;
                let roots = self.signer.roots().with(next.roots());
                let signer = Arc::new(self.signer.with_roots(roots.clone())?);
                (signer, Some(Arc::new(next.with_roots(roots)?)), RotationStep::Announced)
            }
            (RotationStep::Announced, Some(next)) => (next.clone(), None, RotationStep::Signing),
            (RotationStep::Signing, _) => {
                let alone = crate::bundle::RootBundle::new([self.signer.certificate().clone()]);
                (Arc::new(self.signer.with_roots(alone)?), None, RotationStep::Alone)
            }
        };
        // When a root is announced, older leaves live on. In later steps they have ended, and newer ones are not longer.
        let longest_leaf = match step {
            RotationStep::Announced => self.longest_leaf,
            RotationStep::Signing | RotationStep::Alone => Some(seconds(policy.usual_leaf)),
        };
        Ok(RootState { signer, next, step, since: now, longest_leaf })
    }

    /// The highest lifetime warning that is due for the signing root, in percent.
    pub fn warning(&self, now: i64) -> Option<u8> {
        let root = self.signer.certificate();
        lifetime::warning(root.not_before, root.not_after, now)
    }
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

fn new_root(policy: &RotationPolicy, now: i64, serial: &[u8; 16]) -> Result<SigningAuthority, RotationError> {
    let key = PrivateKey::generate(policy.key)?;
    Ok(SigningAuthority::new_root(&policy.organization, key, policy.root_lifetime, now, serial)?)
}
