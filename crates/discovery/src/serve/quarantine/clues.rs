//! Reads Envoy's messages: the names of rejected resources, and texts that come from an object.

use std::collections::BTreeSet;

use api::envoy::config::core::v3::TrafficDirection;
use api::envoy::config::listener::v3::Listener;
use api::envoy::config::route::v3::RouteConfiguration;
use api::{Resource, TypeUrl};
use model::config::Object;
use model::printable::clipped;
use prost::Message;
use serde_json::Value;
use xds::Offered;

/// Shorter texts occur in too many objects to identify one.
const SHORTEST: usize = 6;
/// The same for texts in quotation marks, which Envoy copies from its configuration.
const SHORTEST_QUOTED: usize = 3;

/// Every object of the mesh is searched for each quotation of a message. Envoy quotes one or two.
const MOST_QUOTED: usize = 16;
/// Bytes of a message that are searched for texts of objects.
const LONGEST_SEARCHED: usize = 4 * 1024;
/// Ends of a name that are tried from one start, because names may contain the text that ends them.
const MOST_ENDS: usize = 4;
/// Bytes in which the end of a name is searched: a host name has at most 253.
const LONGEST_NAME: usize = 512;

/// Whether a listener declares that it is for outbound traffic.
pub(super) fn is_outbound(listener: &Resource) -> bool {
    let listener = Listener::decode(listener.body.joined());
    listener.is_ok_and(|listener| listener.traffic_direction() == TrafficDirection::Outbound)
}

/// The offered resources that a message names. Envoy writes
/// `Error adding/updating listener(s) NAME: why, NAME: why`, and quotes names elsewhere.
/// The message is read once, however many resources were offered: they are sorted by name.
pub(super) fn named<'a>(message: &str, offered: &[&'a Offered]) -> Vec<&'a Offered> {
    let mut ordered: Vec<(&str, usize)> = offered.iter().enumerate().map(|(at, o)| (&*o.resource.name, at)).collect();
    ordered.sort_unstable();
    let found = candidates(message).filter_map(|name| {
        let at = ordered.binary_search_by_key(&name, |(known, _)| known).ok()?;
        ordered.get(at).map(|(_, place)| *place)
    });
    let places: BTreeSet<usize> = found.collect();
    places.into_iter().filter_map(|place| offered.get(place).copied()).collect()
}

/// Every part of a message that may be a name, by the text before and after it.
fn candidates(message: &str) -> impl Iterator<Item = &str> {
    let begins = move |mark: &'static str, ends: &'static [&'static str]| {
        message.match_indices(mark).flat_map(move |(at, _)| {
            let rest = &message[at + mark.len()..];
            let rest = &rest[..rest.floor_char_boundary(LONGEST_NAME)];
            ends.iter().flat_map(move |end| rest.match_indices(end).take(MOST_ENDS).map(|(to, _)| &rest[..to]))
        })
    };
    let listed = ["(s) ", ", ", "\n"].into_iter().flat_map(move |mark| begins(mark, &[": ", " - "]));
    let quoted = [("'", &["'"]), ("\"", &["\""])].into_iter().flat_map(move |(mark, ends)| begins(mark, ends));
    listed.chain(quoted).filter(|name| !name.is_empty())
}

/// Texts by which objects are recognized.
#[derive(Debug)]
pub(super) struct Clues {
    message: String,
    quoted: Vec<String>,
}

impl Clues {
    pub(super) fn read(message: &str, kind: &TypeUrl, refused: &[&Offered]) -> Clues {
        let message = clipped(message, LONGEST_SEARCHED);
        let mut text = message.to_owned();
        if *kind == TypeUrl::ROUTE {
            for host in refused.iter().filter_map(|offered| virtual_host(message, &offered.resource)) {
                text.push('\n');
                text.push_str(&host);
            }
        }
        Clues { message: text, quoted: quoted(message) }
    }

    /// Length of the longest text that this object and the message share.
    pub(super) fn score(&self, object: &Object) -> usize {
        let mut longest = 0;
        texts(&object.spec.to_json(), &mut |text| {
            if text.len() >= SHORTEST && self.message.contains(text) {
                longest = longest.max(text.len());
            }
            let shared = self.quoted.iter().filter(|quoted| text.contains(quoted.as_str())).map(String::len);
            longest = longest.max(shared.max().unwrap_or_default());
        });
        longest
    }
}

/// Every text in a document, except keys.
fn texts(value: &Value, found: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => found(text),
        Value::Array(list) => list.iter().for_each(|value| texts(value, found)),
        Value::Object(map) => map.values().for_each(|value| texts(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Texts between quotation marks.
fn quoted(message: &str) -> Vec<String> {
    let between = |mark: char| message.split(mark).skip(1).step_by(2);
    let long = |text: &&str| text.len() >= SHORTEST_QUOTED;
    between('\'').chain(between('"')).filter(long).take(MOST_QUOTED).map(str::to_owned).collect()
}

/// The host of `VirtualHosts[3]`, as messages about violated constraints number it.
fn virtual_host(message: &str, table: &Resource) -> Option<String> {
    let (_, rest) = message.split_once("VirtualHosts[")?;
    let number: usize = rest.split_once(']')?.0.parse().ok()?;
    let table = RouteConfiguration::decode(table.body.joined()).ok()?;
    Some(table.virtual_hosts.get(number)?.name.clone())
}

#[cfg(test)]
mod tests {
    use api::Resource;
    use xds::{Former, Offered};

    use super::{named, quoted};

    fn check(message: &str, names: &[&str], expected: &[&str]) {
        let offered: Vec<Offered> = names
            .iter()
            .map(|name| Offered { resource: Resource::encoded(*name, Vec::new()), former: Former::Nothing })
            .collect();
        let offered: Vec<&Offered> = offered.iter().collect();
        let found: Vec<&str> = named(message, &offered).iter().map(|offered| &*offered.resource.name).collect();
        assert_eq!(found, expected, "{message}");
    }

    #[test]
    fn names_are_read_where_envoy_puts_them() {
        let listeners = ["0.0.0.0_80", "0.0.0.0_8080", "virtualInbound"];
        check("Error adding/updating listener(s) 0.0.0.0_8080: no filter\n", &listeners, &["0.0.0.0_8080"]);
        let two = "Error adding/updating listener(s) 0.0.0.0_80: bad, virtualInbound: worse\n";
        check(two, &listeners, &["0.0.0.0_80", "virtualInbound"]);
        let clusters = ["outbound|80||a.shop", "outbound|80|v1|a.shop", "outbound|8080||a.shop"];
        check("Error adding/updating cluster(s) outbound|80||a.shop: bad", &clusters, &["outbound|80||a.shop"]);
    }

    #[test]
    fn a_number_in_a_message_is_no_route_table() {
        check("regex program size of 180 > 80, see 80", &["80", "8080"], &[]);
        check("Duplicate route table '80'", &["80", "8080"], &["80"]);
    }

    #[test]
    fn a_name_may_contain_what_ends_it() {
        check("Error adding/updating listener(s) a: b - c: no", &["a: b - c", "a: b", "b"], &["a: b - c", "a: b"]);
        check("route \"it's\" and 'x'", &["it's", "x"], &["it's", "x"]);
    }

    #[test]
    fn hole_05_a_message_of_quotations_is_searched_once() {
        let message = "'a','b',\"c\": , ".repeat(30_000);
        let names: Vec<String> = (0..1_000).map(|i| format!("outbound|80||s{i}.shop")).collect();
        let begun = std::time::Instant::now();
        check(&message, &names.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
        let quoted = quoted(&message.replace("'a'", "'abcdef'"));
        eprintln!("{} bytes searched for {} names in {:?}", message.len(), names.len(), begun.elapsed());
        assert!(quoted.len() <= super::MOST_QUOTED);
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn quotations_are_read_from_either_mark() {
        assert_eq!(quoted("regex 'a.*b' of \"x-header\", it's 'c'"), ["a.*b", "x-header"]);
        assert!(quoted("nothing is quoted").is_empty());
    }
}
