//! Upstream accepts the config of all recorded cases: it must parse, validate and print without problems.

use std::path::{Path, PathBuf};

use model::config::{mesh, parse, print, validate};
use model::problem::{Problem, Severity};

/// The files of this name in all cases.
fn files(name: &str) -> Vec<(PathBuf, String)> {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
    let folders = |folder: &Path| -> Vec<PathBuf> {
        let entries = folder.read_dir().expect("the folder of cases is readable");
        entries.map(|entry| entry.expect("readable").path()).filter(|path| path.is_dir()).collect()
    };
    let paths = folders(&cases).into_iter().flat_map(|topic| folders(&topic)).map(|case| case.join(name));
    let found: Vec<_> = paths.filter_map(|path| std::fs::read_to_string(&path).ok().map(|text| (path, text))).collect();
    assert!(!found.is_empty(), "no {name} in {}", cases.display());
    found
}

/// Fails if there is an error.
fn assert_usable(problems: &[Problem]) {
    let errors: Vec<String> =
        problems.iter().filter(|problem| problem.severity == Severity::Error).map(ToString::to_string).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

#[test]
fn objects_of_recorded_cases_are_valid() {
    for (path, text) in files("config.yaml") {
        let parsed = parse::documents(&text, &path.display().to_string());
        assert_eq!(parsed.problems, []);
        assert!(!parsed.objects.is_empty(), "{}", path.display());
        for object in &parsed.objects {
            assert_usable(&validate::validate(object));
        }
    }
}

#[test]
fn what_is_printed_reads_the_same() {
    for (path, text) in files("config.yaml") {
        for object in parse::documents(&text, &path.display().to_string()).objects {
            let json = print::to_json(&object);
            let again = parse::value(&json, object.meta.location.as_ref().expect("it was read from a file"));
            assert_eq!(again.problems, [], "{json:#}");
            assert!(again.objects[0].means_the_same_as(&object), "{json:#}");
        }
    }
}

#[test]
fn mesh_settings_of_recorded_cases_are_valid() {
    for (path, text) in files("mesh.yaml") {
        assert_usable(&mesh::parse_mesh(&text, &path.display().to_string()).1);
    }
    for (path, text) in files("networks.yaml") {
        assert_usable(&mesh::parse_networks(&text, &path.display().to_string()).1);
    }
}
