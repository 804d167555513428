//! `istio.v1.auth.IstioCertificateService/CreateCertificate`: signs the CSRs of authenticated callers. Only the caller's
//! own identity is signed, whatever the CSR asks for.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use parking_lot::Mutex;
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;
use tracing::{debug, info, warn};
use trust::authority::{IssueError, LeafLifetimes};
use trust::csr::{self, CertificateRequest, CsrError};
use trust::issue::SubjectName;
use trust::key::random_serial;
use trust::wire::{CREATE_CERTIFICATE, IstioCertificateRequest, IstioCertificateResponse, SERVICE};

use super::authenticate::{Authenticator, Caller, Credentials, Freshness};
use super::kubernetes_signer::{KubernetesSigner, SignerRequest};
use super::{Trust, unix_now};

/// Maximum size of a request: a CSR and some metadata.
const MAX_REQUEST: usize = csr::MAX_BYTES + 16 * 1024;
/// Time to read a request.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Certificates per second for one identity, which may be that of a thousand pods, and the size of a burst.
const RATE: f64 = 200.0;
const BURST: f64 = 2000.0;
/// Identities whose rate is known at the same time.
const MAX_IDENTITIES: usize = 10_000;

/// The service. Clones share everything.
#[derive(Clone)]
pub(crate) struct CertificateService {
    inner: Arc<ServiceInner>,
}

struct ServiceInner {
    trust: Arc<Trust>,
    authenticator: Arc<Authenticator>,
    lifetimes: LeafLifetimes,
    /// Issues certificates instead of the own CA.
    signer: Option<Arc<KubernetesSigner>>,
    rates: Mutex<HashMap<String, (f64, Instant)>>,
}

impl CertificateService {
    pub(super) fn new(
        trust: Arc<Trust>,
        authenticator: Arc<Authenticator>,
        lifetimes: LeafLifetimes,
        signer: Option<Arc<KubernetesSigner>>,
    ) -> Self {
        let rates = Mutex::default();
        CertificateService { inner: Arc::new(ServiceInner { trust, authenticator, lifetimes, signer, rates }) }
    }
}

impl NamedService for CertificateService {
    const NAME: &'static str = SERVICE;
}

impl Service<Request<Body>> for CertificateService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            if request.uri().path() != CREATE_CERTIFICATE {
                return Ok(Status::unimplemented("").into_http());
            }
            Ok(inner.handle(request).await.map_or_else(|status| status.into_http(), |reply| success(&reply)))
        })
    }
}

impl ServiceInner {
    async fn handle(&self, request: Request<Body>) -> Result<IstioCertificateResponse, Status> {
        let metrics = &self.trust.metrics;
        metrics.requests.add(1);
        let (head, body) = request.into_parts();
        let credentials = Credentials::new(&head.headers, &head.extensions);
        let authenticated = self.authenticator.authenticate(&credentials, Freshness::Seconds).await;
        let caller = authenticated.map_err(|failure| {
            metrics.unauthenticated.add(1);
            debug!(reasons = failure.reasons.join("; "), "refused a request for a certificate");
            Status::unauthenticated("request authenticate failure")
        })?;
        let message = tokio::time::timeout(READ_TIMEOUT, read(body))
            .await
            .map_err(|_| Status::deadline_exceeded("the request did not arrive in time"))??;
        let request = self.checked(&caller, &message)?;
        match &self.signer {
            Some(signer) => self.pass_on(signer, &caller, &message, &request).await,
            None => self.sign(&caller, &message, &request).await,
        }
    }

    /// The CSR, if it is one and the caller may send it.
    fn checked(&self, caller: &Caller, message: &IstioCertificateRequest) -> Result<CertificateRequest, Status> {
        let metrics = &self.trust.metrics;
        if message.metadata.as_ref().is_some_and(|metadata| metadata.get("ImpersonatedIdentity").is_some()) {
            return Err(Status::unauthenticated("request impersonation authentication failure"));
        }
        if self.signer.is_none() && named_signer(message).is_some() {
            metrics.not_signed("CERT_GEN_ERROR");
            return Err(Status::internal("CSR signing error (no Kubernetes signer is configured)"));
        }
        let Some(first) = caller.identities.first() else {
            metrics.without_identity.add(1);
            return Err(Status::unauthenticated("request authenticate failure"));
        };
        self.check_rate(&first.to_string())?;
        CertificateRequest::from_pem(&message.csr).map_err(|error| {
            if !matches!(error, CsrError::Signature(_)) {
                metrics.malformed.add(1);
            }
            self.bad_request(&error)
        })
    }

    fn bad_request(&self, error: &CsrError) -> Status {
        self.trust.metrics.not_signed("CSR_ERROR");
        Status::invalid_argument(format!("CSR signing error ({error})"))
    }

    /// Has a signer of the cluster issue the certificate. It copies the content of the CSR, which is checked.
    async fn pass_on(
        &self,
        signer: &KubernetesSigner,
        caller: &Caller,
        message: &IstioCertificateRequest,
        request: &CertificateRequest,
    ) -> Result<IstioCertificateResponse, Status> {
        let metrics = &self.trust.metrics;
        let identities: Vec<String> = caller.identities.iter().map(ToString::to_string).collect();
        csr::check_content(&message.csr, &identities).map_err(|error| self.bad_request(&error))?;
        let seconds = self.lifetimes.requested(message.validity_duration).map_err(|error| {
            metrics.not_signed("TTL_ERROR");
            Status::invalid_argument(format!("CSR signing error ({error})"))
        })?;
        let request = SignerRequest {
            csr: &message.csr,
            public_key: request.public_key(),
            identities: &identities,
            signer: named_signer(message),
            seconds,
        };
        let cert_chain = signer.sign(request).await.map_err(|error| {
            metrics.not_signed("CERT_GEN_ERROR");
            warn!(identity = identities.first(), %error, "could not obtain a certificate of the cluster's signer");
            Status::internal(format!("CSR signing error ({error})"))
        })?;
        metrics.issued.add(1);
        info!(identity = identities.first(), "passed on a certificate of the cluster's signer");
        Ok(IstioCertificateResponse { cert_chain })
    }

    async fn sign(
        &self,
        caller: &Caller,
        message: &IstioCertificateRequest,
        request: &CertificateRequest,
    ) -> Result<IstioCertificateResponse, Status> {
        let metrics = &self.trust.metrics;
        let first = caller.identities.first().map(ToString::to_string).unwrap_or_default();
        let lifetimes = self.lifetimes;
        // A lifetime that is refused is refused below.
        let requested = lifetimes.requested(message.validity_duration);
        let usable = self.trust.for_lifetime(requested.as_ref().copied().unwrap_or_default()).await;
        let Some((state, lifetime)) = usable else {
            metrics.not_signed("CA_NOT_READY");
            return Err(Status::internal("CSR signing error (the certificate authority is not ready)"));
        };
        let requested = if requested.is_ok() { lifetime } else { message.validity_duration };
        let names: Vec<SubjectName> = caller.identities.iter().map(SubjectName::from).collect();
        let serial = random_serial().map_err(|error| Status::internal(error.to_string()))?;
        let issued = state.authority.issue(request, &names, requested, lifetimes, unix_now(), serial);
        let issued = issued.map_err(|error| {
            let (label, status): (_, fn(String) -> Status) = match error {
                IssueError::Lifetime { .. } => ("TTL_ERROR", Status::invalid_argument),
                IssueError::IssuerExpired => ("TTL_ERROR", Status::internal),
                _ => ("CERT_GEN_ERROR", Status::internal),
            };
            metrics.not_signed(label);
            warn!(identity = %first, %error, "could not issue a certificate");
            status(format!("CSR signing error ({error})"))
        })?;
        metrics.issued.add(1);
        info!(identity = %first, serial = issued.certificate.serial, "issued a certificate");
        Ok(IstioCertificateResponse { cert_chain: issued.chain })
    }

    fn check_rate(&self, identity: &str) -> Result<(), Status> {
        let now = Instant::now();
        let mut rates = self.rates.lock();
        let filled = |tokens: f64, at: Instant| (tokens + now.duration_since(at).as_secs_f64() * RATE).min(BURST);
        if rates.len() >= MAX_IDENTITIES {
            rates.retain(|_, (tokens, at)| filled(*tokens, *at) < BURST);
        }
        let (tokens, at) = rates.get(identity).copied().unwrap_or((BURST, now));
        let tokens = filled(tokens, at) - 1.0;
        if tokens < 0.0 {
            return Err(Status::resource_exhausted("too many requests for certificates of this identity"));
        }
        if rates.len() < MAX_IDENTITIES || rates.contains_key(identity) {
            rates.insert(identity.to_owned(), (tokens, now));
        }
        Ok(())
    }
}

/// `CertSigner` of a request.
fn named_signer(message: &IstioCertificateRequest) -> Option<&str> {
    message.metadata.as_ref().and_then(|metadata| metadata.get("CertSigner"))
}

/// Reads the one message of a request.
async fn read(body: Body) -> Result<IstioCertificateRequest, Status> {
    let collected =
        Limited::new(body, MAX_REQUEST).collect().await.map_err(|error| match error.is::<LengthLimitError>() {
            true => Status::resource_exhausted(format!("the request has more than {MAX_REQUEST} bytes")),
            false => Status::cancelled("the request ended early"),
        })?;
    let frame = collected.to_bytes();
    let (Some(0), Some(length)) = (frame.first(), frame.get(1..5)) else {
        return Err(Status::invalid_argument("the request is not one uncompressed message"));
    };
    let length = length.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
    let message = frame.get(5..).filter(|message| message.len() == length);
    let message = message.ok_or_else(|| Status::invalid_argument("the request is not exactly one complete message"))?;
    IstioCertificateRequest::decode(message).map_err(|_| Status::invalid_argument("the request cannot be decoded"))
}

fn success(reply: &IstioCertificateResponse) -> Response<Body> {
    let mut frame = BytesMut::with_capacity(reply.encoded_len() + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(reply.encoded_len()).unwrap_or(u32::MAX));
    frame.put_slice(&reply.encode_to_vec());
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::<Bytes>::new(frame.freeze()).with_trailers(async move { Some(Ok(trailers)) });
    let mut response = Response::new(Body::new(body.map_err(|never: Infallible| match never {})));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
