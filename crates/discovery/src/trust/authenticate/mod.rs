//! Authenticates callers. Methods are tried in upstream's order, and the first success counts: client certificate, token of
//! another issuer, Kubernetes token, forwarded client certificate.

mod forwarded;
mod jwt_rule;
mod token_review;

use std::net::IpAddr;

use http::header::AUTHORIZATION;
use http::{Extensions, HeaderMap};
use model::settings::{IpBlocks, Knobs};
use tonic::transport::server::TcpConnectInfo;
use trust::certificate::Certificate;
use trust::identity::SpiffeId;

pub(crate) use jwt_rule::{JwtRule, TokenKeys};
pub(crate) use token_review::{OwnCluster, TokenReviewer};

use super::unix_now;
use crate::tls::{ClientCertificates, TrustDomain};

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) identities: Vec<SpiffeId>,
    /// End of the token or certificate, in seconds since 1970.
    pub(crate) expires: Option<i64>,
}

/// Why a caller is not authenticated. The text is for the log, not for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthFailure {
    pub(crate) reasons: Vec<String>,
    /// A method could not be used now, for example because the API server does not respond.
    pub(crate) is_unavailable: bool,
    /// The token or certificate has expired.
    pub(crate) is_expired: bool,
}

/// The certificate, token and headers that a caller presents.
#[derive(Clone)]
pub(crate) struct Credentials {
    certificates: Option<ClientCertificates>,
    token: Option<String>,
    cluster: Option<String>,
    forwarded: Option<String>,
    address: Option<IpAddr>,
}

/// Headers with credentials are short; longer ones are ignored.
const MAX_HEADER: usize = 64 * 1024;

impl Credentials {
    pub(crate) fn new(headers: &HeaderMap, extensions: &Extensions) -> Credentials {
        let text =
            |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).filter(|t| t.len() < MAX_HEADER);
        let address = extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        let token = text(AUTHORIZATION.as_str()).and_then(|text| text.strip_prefix("Bearer "));
        Credentials {
            certificates: extensions.get::<ClientCertificates>().cloned(),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            cluster: text("clusterid").map(str::to_owned).filter(|cluster| !cluster.is_empty()),
            forwarded: text("x-forwarded-client-cert").map(str::to_owned),
            address: address.map(|address| address.ip().to_canonical()),
        }
    }
}

/// How old the API server's answer about a token may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Some seconds: for new callers, who may come in great numbers.
    Seconds,
    /// The token is reviewed now: for the checks of open streams, whose next one is an interval away.
    Now,
}

/// All methods of authentication.
pub(crate) struct Authenticator {
    pub(crate) trust_domain: TrustDomain,
    pub(crate) rule: Option<TokenKeys>,
    pub(crate) kubernetes: Option<TokenReviewer>,
    pub(crate) trusted_gateways: IpBlocks,
}

impl Authenticator {
    pub(crate) fn new(trust_domain: TrustDomain, knobs: &Knobs) -> Authenticator {
        let trusted_gateways = knobs.trusted_gateways.clone();
        Authenticator { trust_domain, rule: None, kubernetes: None, trusted_gateways }
    }

    pub(crate) async fn authenticate(
        &self,
        credentials: &Credentials,
        freshness: Freshness,
    ) -> Result<Caller, AuthFailure> {
        let mut failure = AuthFailure { reasons: Vec::new(), is_unavailable: false, is_expired: false };
        let trust_domain = (self.trust_domain)();
        if let Some(ClientCertificates(chain)) = &credentials.certificates {
            match by_certificate(chain.first().map(|leaf| &**leaf), unix_now()) {
                Ok(caller) => return Ok(caller),
                Err(reason) => failure.add("client certificate", reason),
            }
        }
        if let Some(token) = &credentials.token {
            if let Some(rule) = &self.rule {
                match rule.verify(token, &trust_domain, unix_now()) {
                    Ok(caller) => return Ok(caller),
                    Err(reason) => failure.add("token", reason),
                }
            }
            if let Some(reviewer) = &self.kubernetes {
                match reviewer.review(token, credentials.cluster.as_deref(), &trust_domain, freshness).await {
                    Ok(caller) => return Ok(caller),
                    Err(reason) => failure.add("Kubernetes token", reason),
                }
            }
        }
        if let (Some(header), Some(address)) = (&credentials.forwarded, credentials.address)
            && self.trusted_gateways.contains(address)
        {
            match forwarded::identities(header, &trust_domain) {
                identities if !identities.is_empty() => return Ok(Caller { identities, expires: None }),
                _ => failure.add("forwarded client certificate", Reason::refused("no identity of this mesh")),
            }
        }
        if failure.reasons.is_empty() {
            failure.reasons.push("no certificate and no token that this server verifies".to_owned());
        }
        Err(failure)
    }
}

/// Why one method failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Refused(String),
    Expired(String),
    Unavailable(String),
}

impl Reason {
    fn refused(text: impl ToString) -> Reason {
        Reason::Refused(text.to_string())
    }
}

impl AuthFailure {
    /// Authentication did not end in time.
    pub(crate) fn late() -> AuthFailure {
        AuthFailure { reasons: vec!["no response in time".to_owned()], is_unavailable: true, is_expired: false }
    }

    fn add(&mut self, method: &str, reason: Reason) {
        self.is_unavailable |= matches!(reason, Reason::Unavailable(_));
        self.is_expired |= matches!(reason, Reason::Expired(_));
        let (Reason::Refused(text) | Reason::Expired(text) | Reason::Unavailable(text)) = reason;
        self.reasons.push(format!("{method}: {text}"));
    }
}

/// The identity of a certificate that was verified in the handshake. A connection may live longer than it.
fn by_certificate(leaf: Option<&[u8]>, now: i64) -> Result<Caller, Reason> {
    let leaf = leaf.and_then(Certificate::from_der).ok_or_else(|| Reason::refused("it cannot be parsed"))?;
    if now > leaf.not_after {
        return Err(Reason::Expired("it has expired".to_owned()));
    }
    let identity = leaf.identity().map_err(Reason::refused)?;
    Ok(Caller { identities: vec![identity], expires: Some(leaf.not_after) })
}
