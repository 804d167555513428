//! Content negotiation for merged metrics. Responses are concatenated, so sources are only asked for formats that can
//! be.

const TEXT: &str = "text/plain";
const OPEN_METRICS: &str = "application/openmetrics-text";

/// Envoy's metrics come first, so they must not end with an EOF marker.
pub(super) const ENVOY: &[&str] = &["text/*", TEXT];
/// The application's come last.
pub(super) const APPLICATION: &[&str] = &["text/*", TEXT, OPEN_METRICS];

/// Format of the merged metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricsFormat {
    Text,
    OpenMetrics0,
    OpenMetrics1,
}

impl MetricsFormat {
    /// The format of a Content-Type.
    pub(super) fn of(content_type: &str) -> MetricsFormat {
        match media(content_type) {
            Some((OPEN_METRICS, parameters)) => match version(&parameters) {
                Some("1.0.0") => MetricsFormat::OpenMetrics1,
                Some("0.0.1") | None => MetricsFormat::OpenMetrics0,
                Some(_) => MetricsFormat::Text,
            },
            _ => MetricsFormat::Text,
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            MetricsFormat::Text => "text/plain; version=0.0.4; charset=utf-8",
            MetricsFormat::OpenMetrics0 => "application/openmetrics-text; version=0.0.1; charset=utf-8",
            MetricsFormat::OpenMetrics1 => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The scraper's Accept header reduced to the allowed types, in the same order.
pub(super) fn allowed(accept: &str, types: &[&str]) -> String {
    let mut accepted: Vec<String> = Vec::new();
    for entry in accept.split(',') {
        let Some((media, parameters)) = media(entry) else { continue };
        let parameters: Vec<&str> = parameters.into_iter().filter(|p| !p.starts_with("q=")).collect();
        // A wildcard becomes the simplest format that it covers.
        let media_type = match media {
            "*" | "*/*" => format!("{TEXT};version=0.0.4"),
            "application/*" => format!("{OPEN_METRICS};version=0.0.1"),
            _ => [&[media], &parameters[..]].concat().join(";"),
        };
        let name = media_type.split(';').next().unwrap_or_default();
        if types.contains(&name) && !accepted.contains(&media_type) {
            accepted.push(media_type);
        }
    }
    if accepted.is_empty() {
        return format!("{TEXT};version=0.0.4");
    }
    let last = accepted.len();
    accepted.iter().enumerate().map(|(at, entry)| format!("{entry};q=0.{}", last - at)).collect::<Vec<_>>().join(",")
}

/// A media type and its parameters.
fn media(text: &str) -> Option<(&str, Vec<&str>)> {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().filter(|media| !media.is_empty())?;
    Some((media, parts.filter(|p| !p.is_empty()).collect()))
}

fn version<'a>(parameters: &[&'a str]) -> Option<&'a str> {
    parameters.iter().find_map(|p| p.strip_prefix("version=")).map(|v| v.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::{APPLICATION, ENVOY, MetricsFormat, allowed};

    #[test]
    fn formats_that_cannot_be_merged_are_not_requested() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.7,*/*;q=0.1";
        assert_eq!(allowed(prometheus, ENVOY), "text/plain;version=0.0.4;q=0.1");
        assert_eq!(
            allowed(prometheus, APPLICATION),
            "application/openmetrics-text;version=1.0.0;q=0.2,text/plain;version=0.0.4;q=0.1"
        );
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily";
        for nothing in ["", ";;", protobuf] {
            assert_eq!(allowed(nothing, APPLICATION), "text/plain;version=0.0.4", "{nothing}");
        }
        assert_eq!(allowed("application/*", APPLICATION), "application/openmetrics-text;version=0.0.1;q=0.1");
    }

    #[test]
    fn format_is_parsed_from_content_type() {
        assert_eq!(
            MetricsFormat::of("application/openmetrics-text; version=1.0.0; charset=utf-8"),
            MetricsFormat::OpenMetrics1
        );
        assert_eq!(MetricsFormat::of("application/openmetrics-text"), MetricsFormat::OpenMetrics0);
        assert_eq!(MetricsFormat::of("application/openmetrics-text; version=9"), MetricsFormat::Text);
        assert_eq!(MetricsFormat::of("text/plain"), MetricsFormat::Text);
        assert_eq!(MetricsFormat::of(""), MetricsFormat::Text);
    }
}
