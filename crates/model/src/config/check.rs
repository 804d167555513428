//! Parses and validates a text in one step, with the line of every problem's value.

use std::sync::Arc;

use super::lines::locate;
use super::parse::{self, Parsed};
use super::problem::{Problem, Severity};
use super::validate::validate_fields;
use super::{Meta, Object};

/// The valid objects of a text, and the problems of all. `namespace` is that of objects that do not name one.
pub fn checked(text: &str, file: &str, namespace: &str) -> Parsed {
    let Parsed { objects, mut problems } = parse::documents(text, file);
    let (mut valid, mut found): (Vec<Object>, Vec<(Problem, String)>) = (Vec::new(), Vec::new());
    for object in objects {
        let object = placed(object, namespace);
        let of_object = validate_fields(&object);
        if of_object.iter().all(|(problem, _)| problem.severity < Severity::Error) {
            valid.push(object);
        }
        found.extend(of_object);
    }
    let mut fields: Vec<(&mut u32, &str)> = found
        .iter_mut()
        .filter_map(|(problem, path)| Some((&mut problem.location.as_mut()?.line, path.as_str())))
        .collect();
    if !fields.is_empty() {
        locate(text, &mut fields);
    }
    problems.extend(found.into_iter().map(|(problem, _)| problem));
    Parsed { objects: valid, problems }
}

fn placed(object: Object, namespace: &str) -> Object {
    if namespace.is_empty() || !object.meta.namespace.is_empty() || object.spec.kind().is_cluster_wide() {
        return object;
    }
    let meta = Meta { namespace: namespace.into(), ..Meta::clone(&object.meta) };
    Object { meta: Arc::new(meta), spec: object.spec }
}

#[cfg(test)]
mod tests {
    use super::checked;

    #[test]
    fn violated_rules_have_the_line_of_their_field() {
        let text = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec:\n  hosts: [h]\n  \
                    http:\n  - route:\n    - {destination: {host: b}, weight: 50}\n    - {destination: {host: c}, weight: -1}\n";
        let parsed = checked(text, "f", "shop");
        let lines: Vec<Option<u32>> = parsed.problems.iter().map(|p| Some(p.location.as_ref()?.line)).collect();
        assert!(parsed.objects.is_empty());
        assert!(lines.contains(&Some(9)) || lines.contains(&Some(7)), "{:?}", parsed.problems);
        assert_eq!(parsed.problems[0].about.to_string(), "VirtualService shop/a");
    }
}
