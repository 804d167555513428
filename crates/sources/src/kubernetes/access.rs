//! How an API server is reached, and how fast it may be asked.

use std::path::PathBuf;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::watch;

use super::client::client;
use super::kubeconfig::CheckedKubeconfig;
use super::rate_limit::{RateLimit, TokenBucket};

/// The way to one API server. All clients of one access and its clones keep to one pace together.
#[derive(Clone, Debug)]
pub struct Access {
    method: AccessMethod,
    bucket: TokenBucket,
}

#[derive(Clone, Debug)]
enum AccessMethod {
    InCluster,
    Kubeconfig(PathBuf),
    KubeconfigUpdates(watch::Receiver<CheckedKubeconfig>),
}

impl Access {
    /// As a pod of the cluster.
    pub fn in_cluster(rate_limit: Option<RateLimit>) -> Access {
        Access { method: AccessMethod::InCluster, bucket: TokenBucket::new(rate_limit) }
    }

    /// By a file.
    pub fn kubeconfig(path: PathBuf, rate_limit: Option<RateLimit>) -> Access {
        Access { method: AccessMethod::Kubeconfig(path), bucket: TokenBucket::new(rate_limit) }
    }

    /// By a kubeconfig of a further cluster; a new one is new credentials.
    pub(super) fn told(kubeconfig: watch::Receiver<CheckedKubeconfig>, rate_limit: Option<RateLimit>) -> Access {
        Access { method: AccessMethod::KubeconfigUpdates(kubeconfig), bucket: TokenBucket::new(rate_limit) }
    }

    pub(super) fn rate_limit(&self) -> Option<RateLimit> {
        self.bucket.rate_limit()
    }

    pub(crate) async fn client(&mut self) -> Result<Client, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let kubeconfig = match &mut self.method {
            AccessMethod::InCluster => return client(Config::incluster().map_err(|e| text(&e))?, &self.bucket),
            AccessMethod::Kubeconfig(path) => Kubeconfig::read_from(&*path).map_err(|e| text(&e))?,
            AccessMethod::KubeconfigUpdates(told) => told.borrow_and_update().kubeconfig(),
        };
        let options = KubeConfigOptions::default();
        client(Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|e| text(&e))?, &self.bucket)
    }

    /// Completes when there are new credentials.
    pub(super) async fn changed(&mut self) {
        if let AccessMethod::KubeconfigUpdates(told) = &mut self.method
            && told.changed().await.is_ok()
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
    async fn requests_keep_to_the_pace() {
        let server =
            ScriptedServer::start(|_| async { Response::new(json!({"metadata": {"name": "a"}}).to_string()) }).await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": server.url()}}], "users": [{"name": "a", "user": {}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
        std::fs::write(&file, text.to_string()).unwrap();
        let access = Access::kubeconfig(file, RateLimit::of_flags(20.0, 2));
        // One access has one pace, however many clients are made of it.
        let (mut one, mut other) = (access.clone(), access);
        let clients = [one.client().await.unwrap(), other.client().await.unwrap()];
        let begun = Instant::now();
        for client in clients.iter().cycle().take(6) {
            let request = http::Request::get("/api/v1/nodes/a").body(Vec::new()).unwrap();
            client.request::<DynamicObject>(request).await.unwrap();
        }
        assert_eq!(server.requests().len(), 6);
        assert!(begun.elapsed() >= Duration::from_millis(190), "four waited for their turn: {:?}", begun.elapsed());
    }
}
