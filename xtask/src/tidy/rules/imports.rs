//! Which crate of the workspace may depend on which. The compiler enforces the rest: code cannot name a crate that is not
//! in `[dependencies]`.

use super::super::tree::{TextFile, Tree};
use super::Finding;

/// A crate and the workspace crates it may depend on. Dev-dependencies are not checked.
const ALLOWED: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("model", &["api"]),
    ("net", &[]),
    ("scope", &["api", "model"]),
    ("translate", &["api", "model", "scope"]),
    ("xds", &["api"]),
    ("sources", &["api", "etcd", "model", "net", "xds"]),
    ("explain", &["api"]),
    ("inject", &["api", "model"]),
    ("cli", &["model"]),
    ("trust", &[]),
    ("etcd", &["net"]),
    ("configapi", &["etcd", "model"]),
    (
        "discovery",
        &[
            "api",
            "cli",
            "model",
            "net",
            "scope",
            "translate",
            "trust",
            "xds",
            "sources",
            "explain",
            "inject",
            "configapi",
            "etcd",
        ],
    ),
    ("agent", &["api", "cli", "model", "net", "trust", "xds"]),
    ("pilotctl", &["api", "cli", "explain", "inject", "model", "net", "scope", "sources", "translate", "trust"]),
    ("fuzz", &["agent", "api", "configapi", "discovery", "inject", "model", "sources", "trust", "xds"]),
    ("testkit", &["api", "net", "trust", "xds"]),
    ("xtask", &[]),
];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.manifests.iter().flat_map(|(name, manifest)| manifest_findings(name, manifest)).collect()
}

fn manifest_findings(name: &str, manifest: &TextFile) -> Vec<Finding> {
    let Some((_, allowed)) = ALLOWED.iter().find(|(n, _)| *n == name) else {
        return vec![Finding::new(&manifest.path, 1, format!("crate {name} has no row in this rule's table"))];
    };
    let forbidden = dependencies(&manifest.text).filter(|(_, d)| is_ours(d) && !allowed.contains(d));
    forbidden.map(|(line, d)| Finding::new(&manifest.path, line, format!("{name} may not depend on {d}"))).collect()
}

fn is_ours(name: &str) -> bool {
    ALLOWED.iter().any(|(n, _)| *n == name)
}

/// Line and name of each dependency, dev-dependencies excluded.
fn dependencies(manifest: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    manifest.lines().enumerate().filter_map(move |(at, line)| {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end().trim_end_matches(']');
            inside = section.ends_with("dependencies") && !section.contains("dev-");
            // The long form: [dependencies.model]
            return section.split_once("dependencies.").map(|(_, name)| (at + 1, name));
        }
        let name = line.split(['=', '.', ' ']).next().filter(|n| !n.is_empty())?;
        inside.then_some((at + 1, name))
    })
}

#[cfg(test)]
mod tests {
    use super::super::check_files;

    #[test]
    fn an_arrow_backwards_is_found() {
        let text = "[dependencies]\napi.workspace = true\nscope = { path = \"x\" }\n[dev-dependencies]\ntestkit.workspace = true\n";
        assert_eq!(
            check_files(super::check, &[("crates/model/Cargo.toml", text)]),
            ["crates/model/Cargo.toml:3 model may not depend on scope"]
        );
        let text = "[dependencies.testkit]\nworkspace = true\n";
        assert_eq!(check_files(super::check, &[("crates/xds/Cargo.toml", text)]).len(), 1);
    }

    #[test]
    fn a_new_crate_needs_a_row() {
        assert_eq!(check_files(super::check, &[("crates/odd/Cargo.toml", "")]).len(), 1);
    }
}
