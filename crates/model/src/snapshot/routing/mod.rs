//! VirtualServices and DestinationRules, prepared for lookup: names resolved, delegates merged, rules consolidated.

mod backend_policies;
mod delegates;
mod destination_rules;
mod route_rules;
mod virtual_services;

use std::sync::Arc;

use api::istio::networking::v1alpha3::VirtualService;

pub use destination_rules::ConsolidatedRule;
use destination_rules::DestinationRules;
pub(super) use destination_rules::with_resolved_host;
pub(super) use route_rules::joined as join_route_rules;
pub(super) use virtual_services::with_full_names;
use virtual_services::{MergeCache, ResolvedServices};

use super::objects::AllObjects;
use crate::config::problem::Problem;
use crate::config::{Config, Meta};
use crate::names::Namespace;
use crate::service::{ExportTo, Service};
use crate::settings::Settings;

/// VirtualServices and DestinationRules of the whole mesh.
#[derive(Clone, Debug, Default)]
pub struct Routing {
    /// Oldest first, host names resolved, delegates merged in.
    pub virtual_services: Vec<Arc<VirtualServiceRule>>,
    rules: DestinationRules,
    merges: Arc<MergeCache>,
    /// Routes that were left out because of limits.
    pub(super) problems: Vec<Problem>,
}

/// A VirtualService with its host names resolved and its delegates merged in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualServiceRule {
    pub config: Config<VirtualService>,
    /// As written; unset means the default of the mesh.
    pub export_to: ExportTo,
}

/// The API that defines the meaning of a route's matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Semantics {
    #[default]
    VirtualService,
    Ingress,
    /// The Kubernetes Gateway API.
    Gateway,
}

impl Semantics {
    /// From the annotation that the conversion sets.
    pub(crate) fn of(meta: &Meta) -> Semantics {
        match meta.annotations.get("internal.istio.io/route-semantics").map(|s| &**s) {
            Some("ingress") => Semantics::Ingress,
            Some("gateway") => Semantics::Gateway,
            _ => Semantics::VirtualService,
        }
    }
}

impl VirtualServiceRule {
    pub fn semantics(&self) -> Semantics {
        Semantics::of(&self.config.meta)
    }
}

impl Routing {
    /// Builds the section. Unchanged merges are taken from `before`.
    pub(super) fn build(objects: &AllObjects<'_>, settings: &Settings, before: &Routing) -> Routing {
        let ResolvedServices { rules: virtual_services, merges, problems } =
            virtual_services::resolved(objects, settings, &before.merges);
        let rules = DestinationRules::build(objects, settings);
        Routing { virtual_services, rules, merges: Arc::new(merges), problems }
    }

    /// The DestinationRules for calls of a client to a service: of the client's namespace, else of the service's namespace,
    /// else of the root namespace, and only for the most specific host.
    pub fn destination_rules(
        &self,
        client: &Namespace,
        service: &Service,
        root: &Namespace,
    ) -> Vec<Arc<ConsolidatedRule>> {
        self.rules.for_service(client, service, root)
    }
}
