//! TokenReviews that are slow, fail or return nonsense: new callers are refused, and open streams stay until their next check
//! is due.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::json;
use testkit::ca_client::CaClient;
use testkit::fake_api::{FakeApi, FakeResponse, full, plural, repeated};
use testkit::wait;
use tonic::Code;

use crate::fixture::{FRONT, Mesh, assert_refused};
use crate::streams::{open, secured};

/// How the API server responds to reviews.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Review {
    Accept,
    /// Fails this many times, then accepts.
    FailFirst(u32),
    Status(u16),
    Text(&'static str),
    /// Headers without a body.
    Silent,
    /// A body without an end.
    Endless,
}

const BAD: &[Review] = &[
    Review::Status(500),
    Review::Status(403),
    Review::Status(429),
    Review::Text("nonsense"),
    Review::Text(""),
    Review::Text("null"),
    Review::Text("{}"),
    Review::Text("[1]"),
    Review::Text(r#"{"status": {"authenticated": "yes", "user": 1}}"#),
    Review::Text(r#"{"status": {"authenticated": true}}"#),
    Review::Text(
        r#"{"status": {"authenticated": true, "user": {"username": "system:serviceaccount:shop:front",
        "groups": ["system:serviceaccounts"]}, "error": "could not check"}}"#,
    ),
    Review::Text(
        r#"{"status": {"authenticated": false, "user": {"username": "system:serviceaccount:shop:front",
        "groups": ["system:serviceaccounts"]}, "audiences": ["istio-ca"]}}"#,
    ),
    Review::Endless,
    Review::Silent,
];

/// A server with its own CA whose tokens a fake API server reviews.
struct ReviewedMesh {
    mesh: Mesh,
    roots: String,
    mode: Arc<Mutex<Review>>,
    _api: FakeApi,
}

impl ReviewedMesh {
    async fn start(recheck: &str) -> ReviewedMesh {
        let mode = Arc::new(Mutex::new(Review::Accept));
        let asked_of = Arc::clone(&mode);
        let api = FakeApi::start(move |asked| (plural(asked) == "tokenreviews").then(|| reviewed(&asked_of))).await;
        let env = [("JWT_RULE", ""), ("PILOTAGE_IDENTITY_RECHECK", recheck), ("ENABLE_LEADER_ELECTION", "false")];
        let args = vec!["--registries=Kubernetes".to_owned(), format!("--kubeconfig={}", api.kubeconfig().display())];
        let mesh = Mesh::start_with_args(tempfile::tempdir().unwrap(), &env, Vec::new(), args).await;
        mesh.certified().await;
        ReviewedMesh { roots: mesh.roots().await, mesh, mode, _api: api }
    }

    fn turn(&self, review: Review) {
        *self.mode.lock() = review;
    }

    fn client(&self, token: &str) -> CaClient {
        CaClient::new(self.mesh.secure, &self.roots, None, Some(token))
    }

    async fn closed(&self, reason: &str) -> f64 {
        self.mesh.metric(&format!("pilotage_closed_streams{{reason=\"{reason}\"}}")).await
    }
}

fn reviewed(mode: &Mutex<Review>) -> FakeResponse {
    let with_status = |status: u16| {
        let mut response = full(r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no"}"#);
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response
    };
    let mut mode = mode.lock();
    match *mode {
        Review::Accept | Review::FailFirst(0) => full(
            json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "status": {"authenticated": true,
                "user": {"username": "system:serviceaccount:shop:front", "groups": ["system:serviceaccounts"]},
                "audiences": ["istio-ca"]}})
            .to_string(),
        ),
        Review::FailFirst(left) => {
            *mode = Review::FailFirst(left - 1);
            with_status(503)
        }
        Review::Status(status) => with_status(status),
        Review::Text(text) => full(text),
        Review::Silent => repeated(Bytes::new(), None),
        Review::Endless => repeated(Bytes::from_static(b"                                "), None),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_that_fail_refuse_new_callers_and_leave_open_streams() {
    let stage = ReviewedMesh::start("10m").await;
    let open_stream = async |token: &str| open(secured(&stage.mesh, None).await, Some(token), "shop").await;
    let mut stays = open_stream("token of the first").await;
    stage.client("token of the first").certificate(FRONT, 0).await.unwrap();
    for (number, bad) in BAD.iter().enumerate() {
        stage.turn(*bad);
        let begun = Instant::now();
        // Tokens that the server has not seen.
        let (for_xds, for_ca) = (format!("{number} for xDS"), format!("{number} for the CA"));
        let client = stage.client(&for_ca);
        let xds = async { open_stream(&for_xds).await.end(Duration::from_secs(20)).await };
        let (xds, issued) = tokio::join!(xds, client.certificate(FRONT, 0));
        assert_eq!(xds, (false, Some(Code::Unauthenticated)), "{bad:?}");
        assert_refused(&format!("{bad:?}"), issued, Code::Unauthenticated);
        assert!(begun.elapsed() < Duration::from_secs(15), "{bad:?} took {:?}", begun.elapsed());
        stage.turn(Review::Accept);
        let honest = stage.client(&format!("{number} afterwards"));
        wait::until("an honest caller", async || {
            honest.certificate(FRONT, 0).await.map_err(|refusal| format!("{bad:?}: {refusal:?}"))
        })
        .await;
    }
    assert_eq!(stays.end(Duration::from_millis(100)).await, (true, None), "the open stream stays");
    assert_eq!(stage.closed("unavailable").await + stage.closed("refused").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_cannot_be_checked_is_closed_when_its_check_is_due() {
    const INTERVAL: Duration = Duration::from_secs(6);
    let stage = ReviewedMesh::start("6s").await;
    let connect = async || {
        let mut stream = open(secured(&stage.mesh, None).await, Some("any"), "shop").await;
        assert_eq!(stream.end(Duration::from_secs(1)).await, (true, None), "it is accepted");
        stream
    };
    for bad in [Review::Status(500), Review::Silent] {
        stage.turn(Review::Accept);
        let closed = stage.closed("unavailable").await;
        let begun = Instant::now();
        let mut stream = connect().await;
        stage.turn(bad);
        assert_eq!(stream.end(Duration::from_secs(30)).await.1, Some(Code::Unauthenticated), "{bad:?}");
        let time = begun.elapsed();
        eprintln!("{bad:?}: closed after {time:?}");
        assert!(time > INTERVAL * 9 / 10 && time < INTERVAL + Duration::from_secs(3), "{bad:?}: {time:?}");
        assert_eq!(stage.closed("unavailable").await, closed + 1.0, "{bad:?}");
    }
    // A failure that is over before the check is due does no harm.
    stage.turn(Review::Accept);
    let mut stream = connect().await;
    stage.turn(Review::FailFirst(1));
    assert_eq!(stream.end(INTERVAL * 3 / 2).await.1, None, "it was checked again");
    assert_eq!(*stage.mode.lock(), Review::FailFirst(0), "a check failed");
}
