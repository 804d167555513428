//! A pattern that a function's name keeps when something else changes: without the crates' hashes, the references
//! back into the name (they count letters, and hashes differ in length), the numbers of impls, and what the
//! optimiser appends. Types and paths stay, so that it fits this function and hardly another.
//! Names are in Rust's v0 mangling: https://doc.rust-lang.org/rustc/symbol-mangling/v0.html

/// Each is followed by a number and `_`: a crate and its hash, an impl and which one, a reference back.
/// Where an identifier happens to look like one, the pattern is a little wider than it needs to be.
const OPENERS: [&str; 4] = ["Cs", "Ms", "Xs", "B"];

pub(super) fn of(name: &str) -> String {
    let name = name.split_once(".llvm.").map_or(name, |(name, _)| name);
    if !name.starts_with("_R") {
        return name.to_owned();
    }
    let (mut pattern, mut rest) = (String::new(), name);
    while let Some(letter) = rest.chars().next() {
        if let Some((opener, after)) = OPENERS.iter().find_map(|opener| Some((opener, number(rest, opener)?))) {
            pattern = pattern + opener + "*_";
            rest = after;
        } else {
            pattern.push(letter);
            rest = &rest[letter.len_utf8()..];
        }
    }
    pattern + "*"
}

/// What follows the opener and its number.
fn number<'a>(rest: &'a str, opener: &str) -> Option<&'a str> {
    let (number, after) = rest.strip_prefix(opener)?.split_once('_')?;
    number.bytes().all(|digit| digit.is_ascii_alphanumeric()).then_some(after)
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn hashes_are_left_open() {
        assert_eq!(of("_RNvNtCsgEmfK2I1SDS_4core3str4trim"), "_RNvNtCs*_4core3str4trim*");
        assert_eq!(of("_RNvCs1_4main3run.llvm.3643936799275306673"), "_RNvCs*_4main3run*");
    }

    #[test]
    fn references_and_numbers_of_impls_are_left_open() {
        assert_eq!(of("_RINvMs7_NtNtB7_3map5entryNtB1M_4leafE"), "_RINvMs*_NtNtB*_3map5entryNtB*_4leafE*");
    }

    #[test]
    fn types_and_closures_are_kept() {
        assert_eq!(of("_RINvNtCs2_4core4takeNtCs3_5alloc6StringE"), "_RINvNtCs*_4core4takeNtCs*_5alloc6StringE*");
        assert_eq!(of("_RNCNvCs2_1a1fs_0"), "_RNCNvCs*_1a1fs_0*");
    }

    #[test]
    fn names_of_other_languages_stand_for_themselves() {
        assert_eq!(of("CRYPTO_free_Cs1_"), "CRYPTO_free_Cs1_");
    }
}
