//! Trust domain aliases: a principal in one of the mesh's trust domains matches in all of them.

use api::istio::mesh::v1alpha1::MeshConfig;
use model::names::Str;

use super::AttributeMatch;
use super::attribute::Attribute;

const LOCAL: &str = "cluster.local";

/// The mesh's trust domain and its aliases.
pub(super) fn domains(mesh: &MeshConfig) -> Vec<String> {
    let mut all = vec![mesh.trust_domain.clone()];
    for alias in &mesh.trust_domain_aliases {
        if !all.contains(alias) {
            all.push(alias.clone());
        }
    }
    all
}

/// Adds the values for trust domain aliases.
pub(super) fn widen(condition: &mut AttributeMatch, domains: &[String]) {
    let wider = match condition.attribute {
        Attribute::Principal => principals,
        Attribute::TrustDomain => trust_domains,
        _ => return,
    };
    condition.values = wider(&condition.values, domains);
    condition.not_values = wider(&condition.not_values, domains);
}

fn principals(values: &[Str], domains: &[String]) -> Vec<Str> {
    values.iter().flat_map(|value| aliases_of(value, domains)).collect()
}

/// The principal in all trust domains of the mesh. Unchanged without a trust domain or with a foreign one.
fn aliases_of(principal: &Str, domains: &[String]) -> Vec<Str> {
    let parts: Vec<&str> = principal.split('/').collect();
    let [own, ..] = parts[..] else { return vec![principal.clone()] };
    let of_mesh = own == LOCAL || domains.iter().any(|domain| fits(domain, own));
    if parts.len() != 5 || own == "*" || !of_mesh {
        return vec![principal.clone()];
    }
    let rest = parts[1..].join("/");
    let mut all: Vec<Str> = Vec::new();
    for domain in domains {
        // A wildcard such as `*-td` already matches this domain.
        let wildcard = own.strip_prefix('*').is_some_and(|suffix| domain.ends_with(suffix));
        let alias = if wildcard { principal.clone() } else { format!("{domain}/{rest}").into() };
        if !all.contains(&alias) {
            all.push(alias);
        }
    }
    all
}

/// Whether a domain matches a pattern with a leading or trailing `*`.
fn fits(domain: &str, pattern: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(suffix), _) => domain.ends_with(suffix),
        (None, Some(prefix)) => domain.starts_with(prefix),
        (None, None) => domain == pattern,
    }
}

fn trust_domains(values: &[Str], domains: &[String]) -> Vec<Str> {
    let mut all: Vec<Str> = Vec::new();
    for value in values {
        let own = domains.iter().any(|d| **d == **value);
        let wider: Vec<Str> =
            if own { domains.iter().map(|d| d.as_str().into()).collect() } else { vec![value.clone()] };
        for domain in wider {
            if !all.contains(&domain) {
                all.push(domain);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{Str, aliases_of};

    fn aliases(principal: &str) -> Vec<Str> {
        aliases_of(&principal.into(), &["new-td".to_owned(), "old-td".to_owned()])
    }

    #[test]
    fn own_domain_is_widened_to_all_aliases() {
        assert_eq!(aliases("old-td/ns/a/sa/b"), ["new-td/ns/a/sa/b", "old-td/ns/a/sa/b"]);
        assert_eq!(aliases("cluster.local/ns/a/sa/b").len(), 2);
    }

    #[test]
    fn wildcard_foreign_and_short_principals_stay() {
        for principal in ["*-td/ns/a/sa/b", "*/ns/a/sa/b", "other/ns/a/sa/b", "sa/b", "*"] {
            assert_eq!(aliases(principal), [principal], "{principal}");
        }
    }
}
