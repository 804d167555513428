//! List operations of patches: add, insert, replace, remove.

use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;

/// Applies an operation. `matches` matches the element that the patch names, if it names one. Without a name, elements
/// are inserted at the start or end, and replace and remove do nothing.
pub(super) fn edit<T>(list: &mut Vec<T>, operation: Operation, value: Option<T>, matches: Option<&dyn Fn(&T) -> bool>) {
    let first = |list: &[T]| matches.map(|matches| list.iter().position(matches));
    match (operation, value, first(list)) {
        (Operation::Add, Some(value), _) | (Operation::InsertAfter, Some(value), None) => list.push(value),
        (Operation::InsertFirst, Some(value), _) | (Operation::InsertBefore, Some(value), None) => {
            list.insert(0, value);
        }
        (Operation::InsertAfter, Some(value), Some(Some(at))) => list.insert(at + 1, value),
        (Operation::InsertBefore, Some(value), Some(Some(at))) => list.insert(at, value),
        (Operation::Replace, Some(value), Some(Some(at))) => list[at] = value,
        (Operation::Remove, _, _) => {
            if let Some(matches) = matches {
                list.retain(|element| !matches(element));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{Operation, edit};

    fn check(operation: Operation, named: Option<&'static str>, expected: &str) {
        let mut list = vec!["a", "b", "b", "c"];
        let matches = move |element: &&str| Some(*element) == named;
        edit(&mut list, operation, Some("X"), named.is_some().then_some(&matches as &dyn Fn(&&str) -> bool));
        assert_eq!(list.concat(), expected, "{operation:?} {named:?}");
    }

    #[test]
    fn position_is_that_of_the_first_match() {
        check(Operation::InsertBefore, Some("b"), "aXbbc");
        check(Operation::InsertAfter, Some("b"), "abXbc");
        check(Operation::InsertAfter, Some("c"), "abbcX");
        check(Operation::Replace, Some("b"), "aXbc");
    }

    #[test]
    fn all_matches_are_removed() {
        check(Operation::Remove, Some("b"), "ac");
    }

    #[test]
    fn no_match_means_no_change() {
        for operation in [Operation::InsertBefore, Operation::InsertAfter, Operation::Replace, Operation::Remove] {
            check(operation, Some("z"), "abbc");
        }
    }

    #[test]
    fn without_a_name_elements_are_inserted_at_an_end() {
        check(Operation::Add, None, "abbcX");
        check(Operation::InsertAfter, None, "abbcX");
        check(Operation::InsertBefore, None, "Xabbc");
        check(Operation::InsertFirst, None, "Xabbc");
        check(Operation::InsertFirst, Some("c"), "Xabbc");
        check(Operation::Replace, None, "abbc");
        check(Operation::Remove, None, "abbc");
        check(Operation::Merge, None, "abbc");
    }
}
