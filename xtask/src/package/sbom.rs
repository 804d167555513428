//! The bill of materials of a release: every crate that the binaries are built from, as CycloneDX JSON.

use std::fmt::Write;

use crate::dependencies::Dependency;

/// The document; equal input gives equal bytes.
pub(super) fn document(version: &str, dependencies: &[Dependency]) -> String {
    let components: Vec<String> = dependencies.iter().map(component).collect();
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.6\",\n  \"version\": 1,\n  \"metadata\": \
         {{\"component\": {{\"type\": \"application\", \"bom-ref\": \"pilotage\", \"name\": \"pilotage\", \"version\": \
         {}}}}},\n  \"components\": [\n{}\n  ]\n}}",
        quoted(version),
        components.join(",\n")
    );
    text
}

fn component(dependency: &Dependency) -> String {
    let Dependency { name, version, license, checksum } = dependency;
    let purl = quoted(&format!("pkg:cargo/{name}@{version}"));
    let licenses = match license.is_empty() {
        true => String::new(),
        false => format!(", \"licenses\": [{{\"expression\": {}}}]", quoted(license)),
    };
    format!(
        "    {{\"type\": \"library\", \"bom-ref\": {purl}, \"name\": {}, \"version\": {}, \"purl\": {purl}, \
         \"hashes\": [{{\"alg\": \"SHA-256\", \"content\": {}}}]{licenses}}}",
        quoted(name),
        quoted(version),
        quoted(checksum),
    )
}

/// Names, versions and licence expressions hold no control characters.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_listed_with_its_licence_and_hash() {
        let [name, version, license, checksum] = ["a", "1.0.0", "MIT", "00ff"].map(str::to_owned);
        let text = document("0.1.0", &[Dependency { name, version, license, checksum }]);
        let expected = "    {\"type\": \"library\", \"bom-ref\": \"pkg:cargo/a@1.0.0\", \"name\": \"a\", \"version\": \
                        \"1.0.0\", \"purl\": \"pkg:cargo/a@1.0.0\", \"hashes\": [{\"alg\": \"SHA-256\", \"content\": \
                        \"00ff\"}], \"licenses\": [{\"expression\": \"MIT\"}]}";
        assert!(text.lines().any(|line| line == expected), "{text}");
    }
}
