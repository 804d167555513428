//! Requests to the Eureka peers: which one is used, and its URL layout.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::Instant;

use super::error::EurekaError;
use super::options::EurekaOptions;
use super::schema::{Applications, Envelope};
use crate::disk;
use crate::health::SourceHealth;
use crate::http::{self as client, HttpClient, RequestLimits};
use crate::registry::adaptive_timeout::AdaptiveTimeout;
use crate::registry::fetch_error::FetchError;

/// Base paths below a configured URL: Spring Cloud's and Netflix's, and both for a URL without a path.
const LAYOUTS: [&str; 4] = ["", "/v2", "/eureka", "/eureka/v2"];

/// Peers that replicate one registry.
#[derive(Debug)]
pub(super) struct Peers {
    client: HttpClient,
    bases: Vec<String>,
    current: usize,
    /// The base path of the current peer, once found.
    layout: Option<&'static str>,
    options: EurekaOptions,
    health: SourceHealth,
    timeout: AdaptiveTimeout,
}

impl Peers {
    pub(super) fn new(options: &EurekaOptions, health: SourceHealth) -> Result<Peers, client::HttpError> {
        let bases: Vec<String> = options.addresses.iter().map(|a| a.trim_end_matches('/').to_owned()).collect();
        let client = HttpClient::new(&options.tls.http_options(&bases, 2, options.max_bytes)?)?;
        let timeout = AdaptiveTimeout::new(options.timeout.0);
        Ok(Peers { client, bases, current: 0, layout: None, options: options.clone(), health, timeout })
    }

    /// All applications of the current peer.
    pub(super) async fn all(&mut self) -> Result<Applications, EurekaError> {
        let layouts = self.layout.map_or_else(|| LAYOUTS.to_vec(), |layout| vec![layout]);
        for layout in layouts {
            if let Some(applications) = self.get(layout, "/apps").await? {
                self.layout = Some(layout);
                return Ok(applications);
            }
        }
        Err(EurekaError::NoApplications(client::shown(self.base())))
    }

    /// Recent changes of the current peer; `None` where it serves no deltas.
    pub(super) async fn delta(&mut self) -> Result<Option<Applications>, EurekaError> {
        match self.layout {
            Some(layout) => self.get(layout, "/apps/delta").await,
            None => Ok(None),
        }
    }

    /// Switches to the next peer.
    pub(super) fn switch(&mut self) {
        self.current = (self.current + 1) % self.bases.len();
        self.layout = None;
    }

    pub(super) fn len(&self) -> usize {
        self.bases.len()
    }

    fn base(&self) -> &str {
        &self.bases[self.current]
    }

    /// `None` where the path does not exist or deltas are disabled.
    async fn get(&self, layout: &str, path: &str) -> Result<Option<Applications>, EurekaError> {
        let url = format!("{}{layout}{path}", self.base());
        let reply = self.reply(&url).await?;
        match reply.status {
            status if status.is_success() => {
                let (read, _) = reply.json::<Envelope>().await?;
                Ok(Some(read.applications))
            }
            StatusCode::NOT_FOUND => Ok(None),
            // Status 403 means disabled for a delta, and a peer that is starting for a full list.
            StatusCode::FORBIDDEN if path == "/apps/delta" => Ok(None),
            _ => Err(FetchError::status(&url, &reply).into()),
        }
    }

    async fn reply(&self, url: &str) -> Result<client::HttpReply, EurekaError> {
        let (headers, timeout, started) = (self.headers()?, self.timeout.current(), Instant::now());
        let limits = RequestLimits { time: timeout, silence: timeout, bytes: self.options.max_bytes };
        self.health.count_request();
        let reply = self.client.get(url, &headers, limits);
        let reply = self.health.while_waiting(self.options.timeout.0, &client::shown(url), reply).await;
        match &reply {
            Ok(_) => self.timeout.answered(started.elapsed()),
            Err(client::HttpError::Late { .. }) => self.timeout.timed_out(timeout),
            Err(_) => {}
        }
        Ok(reply?)
    }

    fn headers(&self) -> Result<HeaderMap, EurekaError> {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(file) = &self.options.password_file {
            let password = disk::text(file).map_err(|error| FetchError::Credential {
                what: "password",
                file: file.clone(),
                error,
            })?;
            let pair = format!("{}:{}", self.options.username, password.trim_end_matches(['\r', '\n']));
            let value = format!("Basic {}", BASE64_STANDARD.encode(pair));
            headers.extend([client::header("authorization", &value)?]);
        }
        Ok(headers)
    }
}
