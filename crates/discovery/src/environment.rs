//! What the process environment says about this instance.

/// Reads environment variables. Tests pass a closure instead of changing the process environment.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Namespace of an instance that does not know its own.
const DEFAULT_NAMESPACE: &str = "istio-system";

/// Name and namespace of this instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instance {
    /// `--namespace`, else `$POD_NAMESPACE`.
    pub(crate) configured_namespace: Option<String>,
    /// `$POD_NAME`, else `$HOSTNAME`.
    pub(crate) name: Option<String>,
}

impl Instance {
    pub(crate) fn new(namespace_flag: &str, environment: Environment<'_>) -> Instance {
        let flag = Some(namespace_flag.to_owned()).filter(|namespace| !namespace.is_empty());
        Instance {
            configured_namespace: flag.or_else(|| environment("POD_NAMESPACE")),
            name: environment("POD_NAME").or_else(|| environment("HOSTNAME")),
        }
    }

    /// The configured namespace, else `istio-system`.
    pub(crate) fn namespace(&self) -> &str {
        self.configured_namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE)
    }
}
