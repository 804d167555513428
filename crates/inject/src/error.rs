//! Why a workload is not injected.

use thiserror::Error;

/// A refusal or a bad setting. The message names the object.
#[derive(Debug, Error)]
pub enum InjectError {
    /// Injector configuration, values or mesh config that cannot be read.
    #[error("could not parse the {what}: {reason}")]
    Config {
        /// Which of these settings.
        what: &'static str,
        /// The cause.
        reason: String,
    },
    /// Annotations with invalid values.
    #[error("invalid annotations: {}", .0.join("; "))]
    Annotations(Vec<String>),
    /// A template that the pod or the configuration names and that does not exist.
    #[error("template {name:?} is not known; known templates: {known}")]
    UnknownTemplate {
        /// The name that was asked for.
        name: String,
        /// All known names.
        known: String,
    },
    /// A template that could not be parsed or run.
    #[error("could not run template {name:?}: {reason}")]
    Template {
        /// Its name.
        name: String,
        /// The cause.
        reason: String,
    },
    /// A pod that has no usable content.
    #[error("could not read the pod: {0}")]
    Pod(String),
    /// Prometheus annotations that cannot be merged.
    #[error("invalid Prometheus annotations: {0}")]
    Prometheus(String),
    /// The stored overrides of a pod that was injected before.
    #[error("could not read annotation proxy.istio.io/overrides: {0}")]
    Overrides(String),
}
