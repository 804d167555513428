//! How an API server is reached, and how fast it may be asked.

use std::path::PathBuf;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::watch;

use super::client::client;
use super::kubeconfig::CheckedKubeconfig;
use super::pace::{Bucket, Pace};

/// The way to one API server. All clients of one access and its clones keep to one pace together.
#[derive(Clone, Debug)]
pub struct Access {
    way: Way,
    bucket: Bucket,
}

#[derive(Clone, Debug)]
enum Way {
    InCluster,
    Kubeconfig(PathBuf),
    Told(watch::Receiver<CheckedKubeconfig>),
}

impl Access {
    /// As a pod of the cluster.
    pub fn in_cluster(pace: Option<Pace>) -> Access {
        Access { way: Way::InCluster, bucket: Bucket::new(pace) }
    }

    /// By a file.
    pub fn kubeconfig(path: PathBuf, pace: Option<Pace>) -> Access {
        Access { way: Way::Kubeconfig(path), bucket: Bucket::new(pace) }
    }

    /// By a kubeconfig of a further cluster; a new one is new credentials.
    pub(super) fn told(kubeconfig: watch::Receiver<CheckedKubeconfig>, pace: Option<Pace>) -> Access {
        Access { way: Way::Told(kubeconfig), bucket: Bucket::new(pace) }
    }

    pub(super) fn pace(&self) -> Option<Pace> {
        self.bucket.pace()
    }

    pub(crate) async fn client(&mut self) -> Result<Client, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let kubeconfig = match &mut self.way {
            Way::InCluster => return client(Config::incluster().map_err(|e| text(&e))?, &self.bucket),
            Way::Kubeconfig(path) => Kubeconfig::read_from(&*path).map_err(|e| text(&e))?,
            Way::Told(told) => told.borrow_and_update().kubeconfig(),
        };
        let options = KubeConfigOptions::default();
        client(Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|e| text(&e))?, &self.bucket)
    }

    /// Completes when there are new credentials.
    pub(super) async fn changed(&mut self) {
        if let Way::Told(told) = &mut self.way
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
    use testkit::scripted::Scripted;

    use super::super::pace::Pace;
    use super::Access;

    #[tokio::test]
    async fn requests_keep_to_the_pace() {
        let server = Scripted::start(|_| async { Response::new(json!({"metadata": {"name": "a"}}).to_string()) }).await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": server.url()}}], "users": [{"name": "a", "user": {}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
        std::fs::write(&file, text.to_string()).unwrap();
        let access = Access::kubeconfig(file, Pace::of_flags(20.0, 2));
        // One access has one pace, however many clients are made of it.
        let (mut one, mut other) = (access.clone(), access);
        let clients = [one.client().await.unwrap(), other.client().await.unwrap()];
        let begun = Instant::now();
        for client in clients.iter().cycle().take(6) {
            let request = http::Request::get("/api/v1/nodes/a").body(Vec::new()).unwrap();
            client.request::<DynamicObject>(request).await.unwrap();
        }
        assert_eq!(server.asked().len(), 6);
        assert!(begun.elapsed() >= Duration::from_millis(190), "four waited for their turn: {:?}", begun.elapsed());
    }
}
