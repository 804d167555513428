//! The inputs of outbound scopes: some sections of a snapshot, and the client that imports from them.

use std::sync::Arc;

use model::names::Namespace;
use model::proxy::ProxyKind;
use model::settings::Settings;
use model::snapshot::Snapshot;
use model::snapshot::routing::Routing;
use model::snapshot::services::Services;

/// The sections of a snapshot that an outbound scope is computed from.
#[derive(Clone, Debug)]
pub(crate) struct Sections {
    pub(crate) settings: Arc<Settings>,
    pub(crate) services: Arc<Services>,
    pub(crate) routing: Arc<Routing>,
}

impl Sections {
    pub(crate) fn of(world: &Snapshot) -> Sections {
        let Snapshot { settings, services, routing, .. } = world;
        Sections { settings: settings.clone(), services: services.clone(), routing: routing.clone() }
    }

    pub(crate) fn is_same(&self, other: &Sections) -> bool {
        Arc::ptr_eq(&self.settings, &other.settings)
            && Arc::ptr_eq(&self.services, &other.services)
            && Arc::ptr_eq(&self.routing, &other.routing)
    }
}

/// The client side of an outbound scope.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Importer<'a> {
    pub(crate) kind: ProxyKind,
    pub(crate) namespace: &'a Namespace,
}
