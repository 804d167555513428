//! Identities in an `x-forwarded-client-cert` header, which a gateway writes for the client certificates it verified.

use trust::identity::SpiffeId;

/// Maximum number of header elements that are read.
const MAX_ELEMENTS: usize = 16;

/// The SPIFFE URIs of the mesh in all elements of a header.
pub(super) fn identities(header: &str, trust_domain: &str) -> Vec<SpiffeId> {
    let mut found: Vec<SpiffeId> = Vec::new();
    for element in split_outside_quotes(header, ',').into_iter().take(MAX_ELEMENTS) {
        for pair in split_outside_quotes(element, ';') {
            let Some((name, value)) = pair.split_once('=') else { continue };
            let uri = value.trim().trim_matches('"').parse::<SpiffeId>().ok();
            let uri = uri.filter(|id| name.trim().eq_ignore_ascii_case("uri") && id.trust_domain == trust_domain);
            if let Some(id) = uri.filter(|id| !found.contains(id)) {
                found.push(id);
            }
        }
    }
    found
}

fn split_outside_quotes(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut start, mut is_quoted, mut is_escaped) = (Vec::new(), 0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            '"' if !is_escaped => is_quoted = !is_quoted,
            c if c == separator && !is_quoted => {
                parts.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            _ => {}
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::identities;

    #[test]
    fn uris_of_the_mesh_are_identities() {
        let of = |header: &str| identities(header, "td").iter().map(ToString::to_string).collect::<Vec<_>>();
        let header = r#"By=spiffe://td/ns/gate/sa/gate;Hash=a;Subject="CN=x,URI=spiffe://td/ns/no/sa/no;";URI=spiffe://td/ns/a/sa/b"#;
        assert_eq!(of(header), ["spiffe://td/ns/a/sa/b"]);
        assert_eq!(of("URI=spiffe://td/ns/a/sa/b,URI=spiffe://td/ns/c/sa/d").len(), 2);
        for none in ["", "URI=spiffe://other/ns/a/sa/b", "URI=https://a", "DNS=a.b", "\"URI=spiffe://td/ns/a/sa/b"] {
            assert!(of(none).is_empty(), "{none}");
        }
    }
}
