//! An endpoints plan as Envoy's ClusterLoadAssignment.

use api::envoy::config::endpoint::v3::ClusterLoadAssignment;

use crate::plan::endpoints::EndpointsPlan;

/// The load assignment.
pub fn endpoints(plan: &EndpointsPlan) -> ClusterLoadAssignment {
    ClusterLoadAssignment { cluster_name: plan.name.to_string(), ..ClusterLoadAssignment::default() }
}
