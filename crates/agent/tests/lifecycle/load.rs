//! Continuous requests through the sidecar, and certificates whose change starts a new epoch.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use testkit::wait;

use crate::fixture::get;

const CLIENTS: usize = 4;

/// New certificate, key and root.
pub(crate) fn write_certificates(folder: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["cart.shop".to_owned()]).unwrap().self_signed(&key).unwrap();
    fs::write(folder.join("cert-chain.pem"), certificate.pem()).unwrap();
    fs::write(folder.join("root-cert.pem"), certificate.pem()).unwrap();
    fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}

/// Continuous requests, counted.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

impl Load {
    pub(crate) fn start(port: u16) -> Load {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |_| {
            let (stop, sent) = (stop.clone(), sent.clone());
            tokio::spawn(async move {
                let mut failures = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    sent.fetch_add(1, Ordering::Relaxed);
                    match get(port).await {
                        Ok(reply) if reply.status.is_success() => {}
                        Ok(reply) => failures.push(reply.status.to_string()),
                        Err(error) => {
                            failures.push(error.to_string());
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                    }
                }
                failures
            })
        };
        let tasks = (0..CLIENTS).map(client).collect();
        Load { stop, sent, tasks }
    }

    /// Waits for this many further requests.
    pub(crate) async fn more(&self, count: u64) {
        let before = self.sent.load(Ordering::Relaxed);
        wait::until("further requests", async || {
            let sent = self.sent.load(Ordering::Relaxed) - before;
            if sent >= count { Ok(()) } else { Err(format!("{sent} of {count}")) }
        })
        .await;
    }

    /// Stops; returns the number of requests and the failures.
    pub(crate) async fn end(self) -> (u64, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let mut failures = Vec::new();
        for task in self.tasks {
            failures.extend(task.await.unwrap());
        }
        (self.sent.load(Ordering::Relaxed), failures)
    }
}
