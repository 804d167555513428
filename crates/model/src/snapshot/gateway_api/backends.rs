//! Resolves the backend references of a route.

use api::istio::networking::v1alpha3::{Destination, PortSelector};

use super::conditions::ConditionFault;
use super::grants::{INFERENCE_GROUP, is_known};
use super::tracked::TrackedSnapshot;
use crate::config::gateway_api::BackendRef;
use crate::config::{Kind, Meta};

const INVALID: &str = "InvalidDestination";

/// The route that refers to backends, and whether gateways or sidecars use it.
#[derive(Clone, Copy)]
pub(super) struct Referrer<'a> {
    pub(super) snapshot: &'a TrackedSnapshot<'a>,
    pub(super) kind: Kind,
    pub(super) meta: &'a Meta,
    /// Sidecars need no ReferenceGrant: they may call the backend directly.
    pub(super) is_mesh: bool,
}

impl Referrer<'_> {
    /// The destination of a backend, and its fault if any. Requests to a destination without a host fail, with the weight
    /// of the backend. An error means that the whole route cannot be used.
    pub(super) fn destination(&self, to: &BackendRef) -> Result<(Destination, Option<ConditionFault>), ConditionFault> {
        let nowhere = |reason, message| Ok((Destination::default(), Some(ConditionFault::new(reason, message))));
        let own = self.meta.namespace.as_str();
        let namespace = to.namespace.as_deref().unwrap_or(own);
        if !self.is_mesh && namespace != own && !self.is_granted(to, namespace) {
            let message = format!(
                "backendRef {}/{namespace} not accessible to a {} in namespace {own:?} (missing a ReferenceGrant?)",
                to.name, self.kind
            );
            return nowhere("RefNotPermitted", message);
        }
        let (host, is_there) = match (to.group.as_str(), to.kind.as_str()) {
            ("", "Service") => self.service(to, namespace)?,
            ("multicluster.x-k8s.io", "ServiceImport") => {
                (self.snapshot.host_of(namespace, &to.name), self.snapshot.service(namespace, &to.name).is_some())
            }
            ("networking.istio.io", "Hostname") if to.namespace.is_some() => {
                return Err(ConditionFault::new(INVALID, "namespace may not be set with Hostname type"));
            }
            ("networking.istio.io", "Hostname") => (to.name.clone(), self.snapshot.host(&to.name, namespace).is_some()),
            (INFERENCE_GROUP, "InferencePool") => {
                let message = "InferencePool is not enabled. To enable, set ENABLE_GATEWAY_API_INFERENCE_EXTENSION \
                               to true in istiod";
                return nowhere("InvalidKind", message.to_owned());
            }
            (group, kind) => {
                let message = format!("referencing unsupported backendRef: group {group:?} kind {kind:?}");
                return nowhere("InvalidKind", message);
            }
        };
        let Some(port) = to.port else { return Err(ConditionFault::new(INVALID, "port is required in backendRef")) };
        let missing = (!is_there).then(|| ConditionFault::new("BackendNotFound", format!("backend({host}) not found")));
        let port = Some(PortSelector { number: u32::from(port) });
        Ok((Destination { host, port, ..Destination::default() }, missing))
    }

    fn service(&self, to: &BackendRef, namespace: &str) -> Result<(String, bool), ConditionFault> {
        if to.name.contains('.') {
            let message = "service name invalid; the name of the Service must be used, not the hostname.";
            return Err(ConditionFault::new(INVALID, message));
        }
        Ok((self.snapshot.host_of(namespace, &to.name), self.snapshot.service(namespace, &to.name).is_some()))
    }

    fn is_granted(&self, to: &BackendRef, namespace: &str) -> bool {
        let from = (self.kind, self.meta.namespace.as_str());
        is_known(&to.group, &to.kind) && self.snapshot.grants.admit(from, (&to.kind, namespace), &to.name)
    }
}

/// Backends with a weight above 0. A single backend needs no weight.
pub(super) fn shares(backends: &[BackendRef]) -> Vec<(&BackendRef, i32)> {
    let mut shares: Vec<(&BackendRef, i32)> = backends.iter().map(|b| (b, b.weight)).filter(|(_, w)| *w != 0).collect();
    if let [(_, weight)] = shares.as_mut_slice() {
        *weight = 0;
    }
    shares
}

/// Whether no backend has a weight.
pub(super) fn is_empty(backends: &[BackendRef]) -> bool {
    backends.iter().map(|b| i64::from(b.weight)).sum::<i64>() == 0
}
