//! Bucket edges of histograms as Go writes them: `le="1"` and `le="1e+06"`, not `le="1.0"` and `le="1000000.0"`. Queries
//! with an edge match its text.

const LABEL: &str = "le=\"";

/// The metrics page with the edges of all histograms in Go's notation.
pub(super) fn with_gos_edges(text: &str) -> String {
    let mut page = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match with_gos_edge(line) {
            Some(line) => page.push_str(&line),
            None => page.push_str(line),
        }
    }
    page
}

/// A line with its edge in Go's notation; `None` if it has none.
fn with_gos_edge(line: &str) -> Option<String> {
    let (name, labels) = line.split_once('{')?;
    if !name.ends_with("_bucket") {
        return None;
    }
    // Histograms have the edge as their first label.
    let (edge, rest) = labels.strip_prefix(LABEL)?.split_once('"')?;
    let edge = edge.parse::<f64>().ok().filter(|edge| edge.is_finite())?;
    Some(format!("{name}{{{LABEL}{}\"{rest}", go_number(edge)))
}

/// Go's shortest notation: with an exponent from a million on.
fn go_number(number: f64) -> String {
    if number < 1e6 {
        return number.to_string();
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{digits}e+{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::with_gos_edges;

    #[test]
    fn edges_are_written_as_go_writes_them() {
        let check = |given: &str, expected: &str| assert_eq!(with_gos_edges(given), expected);
        check("a_bucket{le=\"1.0\",type=\"1.0\"} 0\n", "a_bucket{le=\"1\",type=\"1.0\"} 0\n");
        check("a_bucket{le=\"0.01\"} 0\na_sum 1.0\n", "a_bucket{le=\"0.01\"} 0\na_sum 1.0\n");
        check("a_bucket{le=\"10000.0\"} 2\n", "a_bucket{le=\"10000\"} 2\n");
        check("a_bucket{le=\"4000000.0\"} 2\n", "a_bucket{le=\"4e+06\"} 2\n");
        check("a_bucket{le=\"40000000.0\"} 2\n", "a_bucket{le=\"4e+07\"} 2\n");
        check("a_bucket{le=\"+Inf\"} 2\nversion{tag=\"1.0\"} 1\n", "a_bucket{le=\"+Inf\"} 2\nversion{tag=\"1.0\"} 1\n");
    }
}
