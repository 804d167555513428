//! "Did you mean": the known name that resembles a misspelt one most.

/// Longer words are not compared: input of users may be megabytes long.
const LONGEST: usize = 200;
/// Maximum number of known names that are compared.
const MOST: usize = 5000;

/// The known name that resembles the word most, if the difference is likely a typing mistake: at most one letter in
/// three, and at most three. Case does not count.
pub fn similar<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    if length > LONGEST {
        return None;
    }
    let (most, word) = ((length / 3).min(3), word.to_lowercase());
    let near = |name: &&str| name.chars().count().abs_diff(length) <= most;
    let compared = known.into_iter().filter(near).take(MOST);
    let distances = compared.map(|name| (strsim::osa_distance(&word, &name.to_lowercase()), name));
    distances.filter(|(distance, _)| *distance <= most).min().map(|(_, name)| name)
}

/// The end of a message: `; did you mean "http"?`, or nothing.
pub fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    similar(word, known).map_or_else(String::new, |name| format!("; did you mean {name:?}?"))
}

/// That no service has a host, if it has the form of a mesh's name or resembles a known one. Names outside the mesh, which a
/// proxy may pass through, are not reported.
pub fn missing_host(host: &str, known: &[&str]) -> Option<String> {
    // Short names are compared with short names.
    let short = || {
        let first = known.iter().copied().find(|name| {
            let beginning: Vec<&str> = name.split('.').take(host.split('.').count()).collect();
            similar(host, [beginning.join(".").as_str()]).is_some()
        });
        first.filter(|_| !host.is_empty())
    };
    let near = similar(host, known.iter().copied()).or_else(short);
    let is_of_mesh = !host.contains('.') || host.contains(".svc") || host.ends_with(".local");
    let hint = near.map_or("; `pilotctl pc cluster PROXY` lists what the proxy knows".to_owned(), |near| {
        format!("; did you mean {near:?}?")
    });
    (near.is_some() || is_of_mesh).then(|| format!("no service and no route has the host {host:?}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::similar;

    #[test]
    fn typing_mistakes_are_recognized_and_other_words_are_not() {
        let known = ["http", "tcp", "timeout", "retries", "VirtualService", "v1"];
        for (word, expected) in [
            ("htp", Some("http")),
            ("timeuot", Some("timeout")),
            ("virtualservce", Some("VirtualService")),
            ("V1", Some("v1")),
            ("v9", None),
            ("mirror", None),
            ("", None),
        ] {
            assert_eq!(similar(word, known), expected, "{word}");
        }
        assert_eq!(similar(&"x".repeat(1 << 20), known), None);
    }
}
