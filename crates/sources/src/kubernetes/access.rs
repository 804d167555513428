//! The credentials and the rate limit with which an API server is reached.

use std::fmt;
use std::path::PathBuf;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
pub use kube::client::Body as KubeBody;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::watch;
use tower::{BoxError, Service};

use super::client::client;
use super::kubeconfig::CheckedKubeconfig;
use super::rate_limit::{RateLimit, TokenBucket};

/// Access to one API server. All clients made from one access and its clones share one rate limit.
#[derive(Clone, Debug)]
pub struct Access {
    method: AccessMethod,
    bucket: TokenBucket,
}

#[derive(Clone, Debug)]
enum AccessMethod {
    InCluster,
    KubeconfigFile(PathBuf),
    KubeconfigUpdates(watch::Receiver<CheckedKubeconfig>),
    Service(ServiceClient),
}

/// A client of an API server in this process.
#[derive(Clone)]
struct ServiceClient(Box<Client>);

impl fmt::Debug for ServiceClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceClient")
    }
}

/// Why no client can be made.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error(transparent)]
    InCluster(#[from] kube::config::InClusterError),
    #[error(transparent)]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    #[error(transparent)]
    Client(#[from] kube::Error),
}

impl Access {
    /// With the service account of this pod.
    pub fn in_cluster(rate_limit: Option<RateLimit>) -> Access {
        Access { method: AccessMethod::InCluster, bucket: TokenBucket::new(rate_limit) }
    }

    /// An API server in this process.
    pub fn service<S, B>(service: S) -> Access
    where
        S: Service<Request<KubeBody>, Response = Response<B>, Error: Into<BoxError>> + Send + 'static,
        S::Future: Send + 'static,
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let client = ServiceClient(Box::new(Client::new(service, "default")));
        Access { method: AccessMethod::Service(client), bucket: TokenBucket::new(None) }
    }

    /// With a kubeconfig file.
    pub fn kubeconfig(path: PathBuf, rate_limit: Option<RateLimit>) -> Access {
        Access { method: AccessMethod::KubeconfigFile(path), bucket: TokenBucket::new(rate_limit) }
    }

    /// With the kubeconfig of a remote cluster, which may be replaced.
    pub(super) fn updated_kubeconfig(
        kubeconfig: watch::Receiver<CheckedKubeconfig>,
        rate_limit: Option<RateLimit>,
    ) -> Access {
        Access { method: AccessMethod::KubeconfigUpdates(kubeconfig), bucket: TokenBucket::new(rate_limit) }
    }

    /// The same access with a separate rate limit, so that its requests do not wait for others.
    pub fn with_own_rate_limit(&self, rate_limit: Option<RateLimit>) -> Access {
        Access { method: self.method.clone(), bucket: TokenBucket::new(rate_limit) }
    }

    pub(super) fn rate_limit(&self) -> Option<RateLimit> {
        self.bucket.rate_limit()
    }

    pub(crate) async fn client(&mut self) -> Result<Client, AccessError> {
        match &self.method {
            AccessMethod::Service(ServiceClient(client)) => Ok(Client::clone(client)),
            _ => Ok(client(self.config().await?, &self.bucket)?),
        }
    }

    /// Roots of the cluster in DER: those that the API server's certificate is verified with. Empty if they are the system's.
    pub async fn cluster_roots(&mut self) -> Result<Vec<Vec<u8>>, AccessError> {
        match &self.method {
            AccessMethod::Service(_) => Ok(Vec::new()),
            _ => Ok(self.config().await?.root_cert.unwrap_or_default()),
        }
    }

    async fn config(&mut self) -> Result<Config, AccessError> {
        let kubeconfig = match &mut self.method {
            AccessMethod::KubeconfigFile(path) => Kubeconfig::read_from(&*path)?,
            AccessMethod::KubeconfigUpdates(updates) => updates.borrow_and_update().kubeconfig(),
            AccessMethod::InCluster | AccessMethod::Service(_) => return Ok(Config::incluster()?),
        };
        Ok(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
    }

    /// Completes when there are new credentials.
    pub(super) async fn changed(&mut self) {
        if let AccessMethod::KubeconfigUpdates(updates) = &mut self.method
            && updates.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use http::Response;
    use kube::core::DynamicObject;
    use serde_json::json;
    use testkit::scripted::ScriptedServer;

    use super::super::rate_limit::RateLimit;
    use super::Access;

    #[tokio::test]
    async fn all_clients_of_one_access_share_the_rate_limit() {
        let server =
            ScriptedServer::start(|_| async { Response::new(json!({"metadata": {"name": "a"}}).to_string()) }).await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": server.url()}}], "users": [{"name": "a", "user": {}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
        std::fs::write(&file, text.to_string()).unwrap();
        let access = Access::kubeconfig(file, RateLimit::of_flags(20.0, 2));
        let (mut one, mut other) = (access.clone(), access);
        let clients = [one.client().await.unwrap(), other.client().await.unwrap()];
        let begun = Instant::now();
        for client in clients.iter().cycle().take(6) {
            let request = http::Request::get("/api/v1/nodes/a").body(Vec::new()).unwrap();
            client.request::<DynamicObject>(request).await.unwrap();
        }
        assert_eq!(server.requests().len(), 6);
        assert!(begun.elapsed() >= Duration::from_millis(190), "four requests waited: {:?}", begun.elapsed());
    }
}
