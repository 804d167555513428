//! Kubernetes label selectors, for the discoverySelectors of MeshConfig.

use api::istio::mesh::v1alpha1::LabelSelector;
use model::labels::{Labels, selects};

/// Whether a namespace with these labels is selected. No selectors select all; an unknown operator selects nothing.
pub fn is_discovered(selectors: &[LabelSelector], labels: &Labels) -> bool {
    selectors.is_empty() || selectors.iter().any(|selector| matches(selector, labels))
}

fn matches(selector: &LabelSelector, labels: &Labels) -> bool {
    selects(&selector.match_labels, labels)
        && selector.match_expressions.iter().all(|wanted| {
            let value = labels.get(&wanted.key);
            let listed = || value.is_some_and(|value| wanted.values.iter().any(|v| **v == **value));
            match wanted.operator.as_str() {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use api::istio::mesh::v1alpha1::{LabelSelector, LabelSelectorRequirement};

    use super::is_discovered;

    fn expression(operator: &str, values: &[&str]) -> LabelSelector {
        LabelSelector {
            match_expressions: vec![LabelSelectorRequirement {
                key: "env".to_owned(),
                operator: operator.to_owned(),
                values: values.iter().map(|v| (*v).to_owned()).collect(),
            }],
            ..LabelSelector::default()
        }
    }

    #[test]
    fn expressions_select_as_in_kubernetes() {
        let prod = [("env", "prod")].into_iter().collect();
        let none = [("app", "x")].into_iter().collect();
        let check = |operator: &str, values: &[&str], expected: [bool; 2]| {
            let selectors = [expression(operator, values)];
            assert_eq!([&prod, &none].map(|l| is_discovered(&selectors, l)), expected, "{operator} {values:?}");
        };
        check("In", &["prod", "test"], [true, false]);
        check("NotIn", &["prod"], [false, true]);
        check("Exists", &[], [true, false]);
        check("DoesNotExist", &[], [false, true]);
        check("Near", &["prod"], [false, false]);
        assert!(is_discovered(&[], &none));
    }
}
