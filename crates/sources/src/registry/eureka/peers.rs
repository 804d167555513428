//! Questions to Eureka's peers: which one is asked, and under which path it serves.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::Instant;

use super::options::EurekaOptions;
use super::schema::{Applications, Envelope};
use crate::disk;
use crate::health::SourceHealth;
use crate::http::{self as client, HttpClient, RequestLimits};
use crate::registry::adaptive_timeout::AdaptiveTimeout;

/// Where peers serve below the URL that was given: Spring Cloud's path, Netflix' path, and both when the URL
/// names the server alone.
const LAYOUTS: [&str; 4] = ["", "/v2", "/eureka", "/eureka/v2"];

/// Peers that hold copies of one registry.
#[derive(Debug)]
pub(super) struct Peers {
    client: HttpClient,
    bases: Vec<String>,
    current: usize,
    /// The path that the current peer serves, once found.
    layout: Option<&'static str>,
    options: EurekaOptions,
    health: SourceHealth,
    timeout: AdaptiveTimeout,
}

impl Peers {
    pub(super) fn new(options: &EurekaOptions, health: SourceHealth) -> Result<Peers, client::HttpError> {
        let bases: Vec<String> = options.addresses.iter().map(|a| a.trim_end_matches('/').to_owned()).collect();
        let client = HttpClient::new(&options.tls.options(&bases, 2, options.max_bytes)?)?;
        let timeout = AdaptiveTimeout::new(options.timeout.0);
        Ok(Peers { client, bases, current: 0, layout: None, options: options.clone(), health, timeout })
    }

    /// All applications, from the current peer.
    pub(super) async fn all(&mut self) -> Result<Applications, String> {
        if let Some(layout) = self.layout {
            return self.get(layout, "/apps").await?.ok_or_else(|| "there is no list of applications".to_owned());
        }
        let mut failure = String::new();
        for layout in LAYOUTS {
            match self.get(layout, "/apps").await {
                Ok(Some(applications)) => {
                    self.layout = Some(layout);
                    return Ok(applications);
                }
                Ok(None) => failure = format!("{} serves no list of applications", client::shown(self.base())),
                Err(reason) => return Err(reason),
            }
        }
        Err(failure)
    }

    /// What changed lately, from the current peer; `None` where it does not tell that.
    pub(super) async fn delta(&mut self) -> Result<Option<Applications>, String> {
        match self.layout {
            Some(layout) => self.get(layout, "/apps/delta").await,
            None => Ok(None),
        }
    }

    /// Turns to the next peer.
    pub(super) fn turn(&mut self) {
        self.current = (self.current + 1) % self.bases.len();
        self.layout = None;
    }

    pub(super) fn len(&self) -> usize {
        self.bases.len()
    }

    fn base(&self) -> &str {
        &self.bases[self.current]
    }

    /// `None` where the path is not served, or not to us.
    async fn get(&self, layout: &str, path: &str) -> Result<Option<Applications>, String> {
        let url = format!("{}{layout}{path}", self.base());
        let reply = self.reply(&url).await?;
        match reply.status {
            status if status.is_success() => {
                let unreadable = |e| format!("could not read the answer of {}: {e}", client::shown(&url));
                let (read, _) = reply.json::<Envelope>().await.map_err(unreadable)?;
                Ok(Some(read.applications))
            }
            StatusCode::NOT_FOUND => Ok(None),
            // A delta that is switched off is forbidden; a whole list is while a peer starts.
            StatusCode::FORBIDDEN if path == "/apps/delta" => Ok(None),
            status => Err(format!("{} answered {}: {}", client::shown(&url), status.as_u16(), reply.excerpt())),
        }
    }

    async fn reply(&self, url: &str) -> Result<client::HttpReply, String> {
        let (headers, timeout, begun) = (self.headers()?, self.timeout.current(), Instant::now());
        let limits = RequestLimits { time: timeout, silence: timeout, bytes: self.options.max_bytes };
        self.health.count_request();
        let reply = self.client.get(url, &headers, limits);
        let reply = self.health.while_waiting(self.options.timeout.0, &client::shown(url), reply).await;
        match &reply {
            Ok(_) => self.timeout.answered(begun.elapsed()),
            Err(client::HttpError::Late { .. }) => self.timeout.timed_out(timeout),
            Err(_) => {}
        }
        reply.map_err(|e| e.to_string())
    }

    fn headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(file) = &self.options.password_file {
            let password =
                disk::text(file).map_err(|e| format!("could not read the password in {}: {e}", file.display()))?;
            let pair = format!("{}:{}", self.options.username, password.trim_end_matches(['\r', '\n']));
            let value = format!("Basic {}", BASE64_STANDARD.encode(pair));
            headers.extend([client::header("authorization", &value).map_err(|e| e.to_string())?]);
        }
        Ok(headers)
    }
}
