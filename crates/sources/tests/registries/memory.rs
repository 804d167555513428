//! The reference implementation: a server in memory, and a minimal source for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::change::SourceId;
use model::endpoint::Health;
use model::names::{Namespace, Str};
use model::port::{Port, Protocol};
use model::service::{Registry, Service};
use sources::registry::diff::{MassLossGuard, RegistryDiff, ServiceListing};
use sources::registry::normalize;
use sources::source::{ChangeSender, Source, SourceError};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::conformance::{Edit, Instances, RegistryServer, conforms};

/// `None` while the server is stopped.
type Content = Option<Instances>;

struct Memory {
    content: watch::Sender<Content>,
    stopped: Content,
}

struct Reader {
    content: watch::Receiver<Content>,
    diff: RegistryDiff,
}

impl Source for Reader {
    fn id(&self) -> SourceId {
        SourceId("Memory".into())
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        loop {
            let content = self.content.borrow_and_update().clone();
            match content {
                None => sender.health().mark_unreachable("the server is stopped"),
                Some(instances) => {
                    sender.health().mark_reachable();
                    self.diff.replace(listings(&instances), Instant::now());
                    self.diff.send_synced(&sender, Vec::new()).await?;
                }
            }
            self.content.changed().await.map_err(|_| SourceError::Closed)?;
        }
    }
}

fn listings(instances: &Instances) -> BTreeMap<Str, ServiceListing> {
    let namespace = Namespace::from("default");
    let mut by_service: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for (instance, serves) in instances.all() {
        let mut endpoint = normalize::endpoint(&instance.address, &namespace, &"".into());
        endpoint.port = 8080;
        endpoint.health = if serves { Health::Healthy } else { Health::Unhealthy };
        by_service.entry(&instance.service).or_default().push(endpoint);
    }
    let ports = vec![Port { name: "http".into(), number: 8080, protocol: Protocol::Http }];
    let listing = |(name, endpoints): (&str, Vec<_>)| {
        let service = Service::new(Registry::External, host(name).into(), namespace.clone(), name, ports.clone());
        (
            Str::from(name),
            ServiceListing { service: Arc::new(service), endpoints: normalize::in_order(endpoints).into() },
        )
    };
    by_service.into_iter().map(listing).collect()
}

fn host(service: &str) -> String {
    format!("{service}.memory")
}

impl RegistryServer for Memory {
    fn source(&self) -> impl Source {
        Reader { content: self.content.subscribe(), diff: RegistryDiff::new(MassLossGuard::default()) }
    }

    fn host(&self, service: &str) -> String {
        host(service)
    }

    async fn edit(&mut self, edit: Edit<'_>) {
        self.content.send_modify(|content| content.as_mut().expect("the server runs").take(edit));
    }

    async fn stop(&mut self) {
        self.stopped = self.content.send_replace(None);
    }

    async fn start_again(&mut self) {
        self.content.send_replace(self.stopped.take());
    }
}

#[tokio::test]
async fn the_reference_conforms() {
    let mut memory = Memory { content: watch::channel(Some(Instances::default())).0, stopped: None };
    conforms(&mut memory).await;
}
