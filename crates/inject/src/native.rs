//! Whether proxies are native sidecars: restartable init containers, which Kubernetes has since 1.33.

/// First minor version of Kubernetes 1 whose native sidecars are stable.
const MINOR: u32 = 33;

/// `ENABLE_NATIVE_SIDECARS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NativeMode {
    /// By the version of the cluster's nodes.
    #[default]
    Auto,
    /// Always.
    Enabled,
    /// Never.
    Disabled,
}

impl NativeMode {
    /// Parses the variable; `None` for a value that is none of the three.
    pub fn parse(text: &str) -> Option<NativeMode> {
        match text {
            "" | "auto" => Some(NativeMode::Auto),
            "true" => Some(NativeMode::Enabled),
            "false" => Some(NativeMode::Disabled),
            _ => None,
        }
    }

    /// Decides for a pod: by its own node if it has one that is known, else by all nodes. `nodes` are names and kubelet
    /// versions; `None` if they are not known.
    pub fn is_native(self, nodes: Option<&[(String, String)]>, node: &str) -> bool {
        let nodes = match (self, nodes) {
            (NativeMode::Enabled, _) => return true,
            (NativeMode::Disabled, _) | (NativeMode::Auto, None) => return false,
            (NativeMode::Auto, Some(nodes)) => nodes,
        };
        match nodes.iter().find(|(name, _)| !node.is_empty() && name == node) {
            Some((_, version)) => is_new(version),
            None => nodes.iter().all(|(_, version)| is_new(version)),
        }
    }
}

/// Whether a kubelet version such as `v1.34.1+k3s1` has native sidecars.
fn is_new(version: &str) -> bool {
    let mut parts = version.trim_start_matches('v').split(['.', '-', '+']);
    let mut number = || parts.next()?.parse::<u32>().ok();
    match (number(), number()) {
        (Some(1), Some(minor)) => minor >= MINOR,
        (Some(major), Some(_)) => major > 1,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::NativeMode;

    #[test]
    fn the_own_node_decides_before_all_nodes() {
        let nodes = [("old".to_owned(), "v1.32.9".to_owned()), ("new".to_owned(), "v1.34.1+k3s1".to_owned())];
        let auto = |node: &str| NativeMode::Auto.is_native(Some(&nodes), node);
        assert!(auto("new"));
        assert!(!auto("old"));
        assert!(!auto(""));
        assert!(!auto("unknown"));
        assert!(NativeMode::Auto.is_native(Some(&nodes[1..]), ""));
        assert!(NativeMode::Auto.is_native(Some(&[]), ""));
        assert!(!NativeMode::Auto.is_native(None, ""));
        assert!(NativeMode::Enabled.is_native(Some(&nodes), "old"));
        assert!(!NativeMode::Disabled.is_native(Some(&nodes), "new"));
    }

    #[test]
    fn versions_that_are_none_are_old() {
        for version in ["", "v", "1", "x.33", "v1.x"] {
            let nodes = [("n".to_owned(), version.to_owned())];
            assert!(!NativeMode::Auto.is_native(Some(&nodes), "n"), "{version}");
        }
    }
}
