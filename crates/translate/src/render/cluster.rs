//! A cluster plan as Envoy's Cluster.

use api::envoy::config::cluster::v3::Cluster;

use crate::plan::cluster::ClusterPlan;

/// The cluster.
pub fn cluster(plan: &ClusterPlan) -> Cluster {
    Cluster { name: plan.name.to_string(), ..Cluster::default() }
}
