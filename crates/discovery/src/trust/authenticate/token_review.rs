//! Kubernetes tokens: the API server reviews them, because a signature alone does not show that an account or pod was
//! deleted. Reviews have their own request budget and are remembered for some seconds; checks of open streams are always
//! reviewed again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sources::kubernetes::access::Access;
use sources::kubernetes::rate_limit::RateLimit;
use sources::kubernetes::remote_access::RemoteAccess;
use sources::kubernetes::trust_objects::{ReviewedUser, TrustObjects, TrustRequestError};
use tokio::sync::OnceCell;
use trust::identity::SpiffeId;
use trust::token;

use super::super::metrics::TrustMetrics;
use super::super::unix_now;
use super::{Caller, Freshness, Reason};

/// How long an accepted and a refused token are remembered.
const ACCEPTED: Duration = Duration::from_secs(10);
const REFUSED: Duration = Duration::from_secs(2);
/// Tokens remembered at the same time.
const MAX_REMEMBERED: usize = 10_000;
/// Time for a review, with the wait for the budget.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Group of all service accounts.
const GROUP: &str = "system:serviceaccounts";

/// The cluster of this server.
pub(crate) struct OwnCluster {
    pub(crate) access: Access,
    /// Its id and aliases.
    pub(crate) names: Vec<String>,
}

/// Reviews tokens with the API servers of the clusters that issued them.
pub(crate) struct TokenReviewer {
    own: OwnCluster,
    client: OnceCell<TrustObjects>,
    remotes: RemoteAccess,
    /// Clients of remote clusters, with the numbers of their credentials.
    remote_clients: Mutex<HashMap<String, (u64, TrustObjects)>>,
    /// Reviews that each API server is asked for.
    rate: Option<RateLimit>,
    audiences: Vec<String>,
    remembered: Mutex<HashMap<u128, (Instant, Option<ReviewedUser>)>>,
    /// Differs between processes, so that no one can search for tokens with the same hash.
    seed: u64,
    metrics: TrustMetrics,
}

impl TokenReviewer {
    pub(crate) fn new(
        own: OwnCluster,
        remotes: RemoteAccess,
        rate: Option<RateLimit>,
        audiences: Vec<String>,
        metrics: TrustMetrics,
    ) -> TokenReviewer {
        TokenReviewer {
            own,
            client: OnceCell::new(),
            remotes,
            remote_clients: Mutex::default(),
            rate,
            audiences,
            remembered: Mutex::default(),
            seed: fastrand::u64(..),
            metrics,
        }
    }

    pub(super) async fn review(
        &self,
        token: &str,
        cluster: Option<&str>,
        trust_domain: &str,
        freshness: Freshness,
    ) -> Result<Caller, Reason> {
        // `None` for the own cluster.
        let cluster = cluster.filter(|name| !self.own.names.iter().any(|own| own == name));
        if let Some(unknown) = cluster.filter(|name| self.remotes.get(name).is_none()) {
            let shown: String = unknown.chars().take(64).collect();
            return Err(Reason::Refused(format!("cluster {shown:?} is not known")));
        }
        if token.len() > token::MAX_BYTES {
            return Err(Reason::Refused(format!("it has {} bytes", token.len())));
        }
        // The API server decides; this only avoids a question whose answer is known.
        let expires = token::unverified_expiry(token);
        if expires.is_some_and(|end| end <= unix_now()) {
            return Err(Reason::Expired("it has expired".to_owned()));
        }
        let remembered = match freshness {
            Freshness::Seconds => self.recall(token, cluster),
            Freshness::Now => None,
        };
        let user = match remembered {
            Some(user) => user,
            None => self.ask(token, cluster).await?,
        };
        let user = user.ok_or_else(|| Reason::refused("the API server does not accept it"))?;
        let identity = identity(&user, &self.audiences, trust_domain)?;
        Ok(Caller { identities: vec![identity], expires })
    }

    fn recall(&self, token: &str, cluster: Option<&str>) -> Option<Option<ReviewedUser>> {
        let remembered = self.remembered.lock();
        let (at, user) = remembered.get(&self.key(token, cluster))?;
        let limit = if user.is_some() { ACCEPTED } else { REFUSED };
        (at.elapsed() < limit).then(|| user.clone())
    }

    async fn ask(&self, token: &str, cluster: Option<&str>) -> Result<Option<ReviewedUser>, Reason> {
        self.metrics.reviews.add(1);
        // API servers remember accepted tokens for 10 s, by token and audiences. With an audience that no token has and
        // that was never asked for before, they look again at the token's account and pod.
        let unique = format!("pilotage-{:016x}", fastrand::u64(..));
        let audiences: Vec<String> = self.audiences.iter().cloned().chain([unique]).collect();
        let asked = tokio::time::timeout(TIMEOUT, async {
            let client = self.client(cluster).await?;
            client.review(token, &audiences).await
        });
        let user = match asked.await {
            Ok(Ok(user)) => user,
            Ok(Err(error)) => return Err(self.unavailable(&error.to_string())),
            Err(_) => return Err(self.unavailable("no response in time")),
        };
        let mut remembered = self.remembered.lock();
        if remembered.len() >= MAX_REMEMBERED {
            remembered.retain(|_, (at, _)| at.elapsed() < ACCEPTED);
        }
        if remembered.len() < MAX_REMEMBERED {
            remembered.insert(self.key(token, cluster), (Instant::now(), user.clone()));
        }
        Ok(user)
    }

    fn unavailable(&self, reason: &str) -> Reason {
        self.metrics.failed_reviews.add(1);
        Reason::Unavailable(format!("the API server could not review it: {reason}"))
    }

    /// A client of the API server that reviews tokens of a cluster; `None` is the own one.
    async fn client(&self, cluster: Option<&str>) -> Result<TrustObjects, TrustRequestError> {
        let Some(cluster) = cluster else {
            let connect = || TrustObjects::connect(self.own.access.clone());
            return self.client.get_or_try_init(connect).await.cloned();
        };
        let gone = || TrustRequestError::Failed("the cluster was removed".to_owned());
        let (version, access) = self.remotes.get(cluster).ok_or_else(gone)?;
        let known = self.remote_clients.lock().get(cluster).filter(|(of, _)| *of == version).cloned();
        if let Some((_, client)) = known {
            return Ok(client);
        }
        let client = TrustObjects::connect(access.with_own_rate_limit(self.rate)).await?;
        let mut clients = self.remote_clients.lock();
        clients.retain(|name, (of, _)| self.remotes.get(name).is_some_and(|(version, _)| version == *of));
        clients.insert(cluster.to_owned(), (version, client.clone()));
        Ok(client)
    }

    /// A token of one cluster means nothing in another.
    fn key(&self, token: &str, cluster: Option<&str>) -> u128 {
        let text = format!("{}\n{token}", cluster.unwrap_or_default());
        xxhash_rust::xxh3::xxh3_128_with_seed(text.as_bytes(), self.seed)
    }
}

/// The identity of a reviewed user: a service account, for one of the audiences that were asked for.
fn identity(user: &ReviewedUser, audiences: &[String], trust_domain: &str) -> Result<SpiffeId, Reason> {
    if !user.groups.iter().any(|group| group == GROUP) {
        return Err(Reason::refused("it is not of a service account"));
    }
    // An API server that ignores audiences returns none: then the token may be for any.
    if !user.audiences.iter().any(|audience| audiences.contains(audience)) {
        return Err(Reason::refused("the API server did not confirm the audience"));
    }
    SpiffeId::of_service_account(&user.name, trust_domain).map_err(Reason::refused)
}

#[cfg(test)]
mod tests {
    use sources::kubernetes::trust_objects::ReviewedUser;

    use super::identity;

    #[test]
    fn only_service_accounts_of_the_audience_have_an_identity() {
        let of = |name: &str, groups: &[&str], audiences: &[&str]| {
            let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            let user = ReviewedUser { name: name.to_owned(), groups: texts(groups), audiences: texts(audiences) };
            identity(&user, &["istio-ca".to_owned()], "td").ok().map(|id| id.to_string())
        };
        let (account, group) = ("system:serviceaccount:shop:cart", &["system:serviceaccounts"]);
        assert_eq!(of(account, group, &["istio-ca"]).as_deref(), Some("spiffe://td/ns/shop/sa/cart"));
        assert_eq!(of(account, &["system:masters"], &["istio-ca"]), None);
        assert_eq!(of(account, group, &[]), None);
        assert_eq!(of(account, group, &["https://kubernetes.default.svc"]), None);
        assert_eq!(of("admin", group, &["istio-ca"]), None);
        assert_eq!(of("system:serviceaccount:a:b:c", group, &["istio-ca"]), None);
    }
}
