//! Answers one DNS query from the table, or decides that it must be forwarded.

use std::net::IpAddr;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use super::table::{AddressRecord, DnsTable, LookupResult};

/// Short, so that clients see changes soon.
const TTL: u32 = 30;

/// How a query is handled.
#[derive(Debug)]
pub(super) enum QueryOutcome {
    /// Send this response.
    Answer(Vec<u8>),
    /// The name is not in the table.
    Forward,
    /// Not a DNS query: send nothing.
    Drop,
}

/// Handles one query. Before the first table the response is SERVFAIL, so that the client retries.
/// `limit` is the maximum response size; `None` for the size that the query allows.
pub(super) fn resolve(bytes: &[u8], table: Option<&DnsTable>, limit: Option<usize>) -> QueryOutcome {
    let query = match Message::from_vec(bytes) {
        Ok(query) if query.metadata.message_type == MessageType::Query => query,
        _ => return refuse_unreadable(bytes),
    };
    let Some(question) = query.queries.first() else { return encoded(failure(&query), &query, limit) };
    let Some(table) = table else { return encoded(failure(&query), &query, limit) };
    let kind = match (question.query_type(), question.query_class(), query.metadata.op_code) {
        (RecordType::A, DNSClass::IN, OpCode::Query) => AddressRecord::A,
        (RecordType::AAAA, DNSClass::IN, OpCode::Query) => AddressRecord::Aaaa,
        _ => return QueryOutcome::Forward,
    };
    let queried = dotted(&question.name().to_lowercase().to_ascii());
    match table.find(&queried, kind) {
        Some(found) => encoded(known(&query, question.name(), found), &query, limit),
        None => QueryOutcome::Forward,
    }
}

/// A SERVFAIL response.
pub(super) fn server_failure(bytes: &[u8]) -> Option<Vec<u8>> {
    let query = Message::from_vec(bytes).ok()?;
    failure(&query).to_vec().ok()
}

fn dotted(name: &str) -> String {
    if name.ends_with('.') { name.to_owned() } else { format!("{name}.") }
}

/// FORMERR if there is a header to take the id from, else no response.
fn refuse_unreadable(bytes: &[u8]) -> QueryOutcome {
    let is_response = bytes.get(2).is_some_and(|flags| flags & 0x80 != 0);
    match bytes {
        [high, low, ..] if bytes.len() >= 12 && !is_response => {
            let id = u16::from_be_bytes([*high, *low]);
            let reply = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
            reply.to_vec().map_or(QueryOutcome::Drop, QueryOutcome::Answer)
        }
        _ => QueryOutcome::Drop,
    }
}

fn reply(query: &Message) -> Message {
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.add_queries(query.queries.iter().take(1).cloned());
    if let Some(edns) = &query.edns {
        let mut own = hickory_proto::op::Edns::new();
        own.set_max_payload(edns.max_payload().max(512)).set_version(0);
        reply.set_edns(own);
    }
    reply
}

fn failure(query: &Message) -> Message {
    let mut reply = reply(query);
    reply.metadata.response_code = ResponseCode::ServFail;
    reply
}

/// The authoritative response for a name in the table. Without addresses of the requested type it is empty, not
/// NXDOMAIN: NXDOMAIN for AAAA would make clients give up on A.
fn known(query: &Message, queried: &Name, found: LookupResult) -> Message {
    let mut reply = reply(query);
    reply.metadata.authoritative = true;
    let alias = found.alias.as_deref().and_then(|alias| Name::from_str_relaxed(alias).ok());
    let LookupResult { mut addresses, .. } = found;
    if addresses.is_empty() {
        return reply;
    }
    // Clients use the first address, so the order is random.
    fastrand::shuffle(&mut addresses);
    if let Some(alias) = &alias {
        reply.add_answer(Record::from_rdata(queried.clone(), TTL, RData::CNAME(CNAME(alias.clone()))));
    }
    let owner = alias.unwrap_or_else(|| queried.clone());
    for address in addresses {
        let data = match address {
            IpAddr::V4(v4) => RData::A(A(v4)),
            IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
        };
        reply.add_answer(Record::from_rdata(owner.clone(), TTL, data));
    }
    reply
}

fn encoded(reply: Message, query: &Message, limit: Option<usize>) -> QueryOutcome {
    let limit = limit.unwrap_or_else(|| usize::from(query.max_payload()));
    match reply.to_vec() {
        Ok(bytes) if bytes.len() <= limit => QueryOutcome::Answer(bytes),
        // The client retries over TCP.
        Ok(_) => reply.truncate().to_vec().map_or(QueryOutcome::Drop, QueryOutcome::Answer),
        Err(error) => {
            tracing::debug!(%error, "could not encode a DNS response");
            QueryOutcome::Drop
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use api::nds::{NameInfo, NameTable};
    use hickory_proto::op::Query;

    use super::{DnsTable, Message, Name, QueryOutcome, RecordType, ResponseCode, resolve};
    use crate::dns::table::ClientDomain;

    fn table(ips: usize) -> DnsTable {
        let info = NameInfo {
            ips: (0..ips).map(|n| format!("10.0.{}.{}", n / 250, n % 250)).collect(),
            ..NameInfo::default()
        };
        let names = NameTable { table: [("api.example.com".to_owned(), info)].into() };
        DnsTable::new(&names, &ClientDomain::new("shop", "", Some("shop.svc.cluster.local")))
    }

    fn query(name: &str, kind: RecordType) -> Message {
        let mut query = Message::query();
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        query
    }

    fn ask(message: &Message, table: Option<&DnsTable>, limit: Option<usize>) -> Message {
        match resolve(&message.to_vec().unwrap(), table, limit) {
            QueryOutcome::Answer(bytes) => Message::from_vec(&bytes).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn known_name_is_answered_authoritatively_in_its_original_case() {
        let query = query("API.example.COM.", RecordType::A);
        let reply = ask(&query, Some(&table(2)), None);
        assert_eq!(reply.metadata.id, query.metadata.id);
        assert!(reply.metadata.authoritative);
        assert_eq!(reply.answers.len(), 2);
        assert_eq!(reply.answers[0].name.to_ascii(), "API.example.COM.");
    }

    #[test]
    fn name_with_search_domain_is_answered_by_a_cname() {
        let reply = ask(&query("api.example.com.shop.svc.cluster.local.", RecordType::A), Some(&table(1)), None);
        let kinds: Vec<RecordType> = reply.answers.iter().map(|r| r.record_type()).collect();
        assert_eq!(kinds, [RecordType::CNAME, RecordType::A]);
        assert_eq!(reply.answers[1].name.to_ascii(), "api.example.com.");
    }

    #[test]
    fn missing_address_type_is_an_empty_answer() {
        let reply = ask(&query("api.example.com.", RecordType::AAAA), Some(&table(1)), None);
        assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NoError, 0));
    }

    #[test]
    fn unknown_names_and_record_types_are_forwarded() {
        for (name, kind) in [("api.example.org.", RecordType::A), ("api.example.com.", RecordType::MX)] {
            let bytes = query(name, kind).to_vec().unwrap();
            assert!(matches!(resolve(&bytes, Some(&table(1)), None), QueryOutcome::Forward), "{name}");
        }
    }

    #[test]
    fn before_the_first_table_queries_fail_temporarily() {
        let reply = ask(&query("api.example.com.", RecordType::A), None, None);
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    }

    #[test]
    fn large_response_is_truncated_over_udp_only() {
        let (query, table) = (query("api.example.com.", RecordType::A), table(100));
        let over_udp = ask(&query, Some(&table), None);
        assert!(over_udp.metadata.truncation && over_udp.answers.is_empty());
        let over_tcp = ask(&query, Some(&table), Some(65_535));
        assert!(!over_tcp.metadata.truncation && over_tcp.answers.len() == 100);
    }

    #[test]
    fn addresses_are_shuffled() {
        let (query, table) = (query("api.example.com.", RecordType::A), table(3));
        let first: BTreeSet<String> =
            (0..60).map(|_| ask(&query, Some(&table), None).answers[0].data.to_string()).collect();
        assert_eq!(first.len(), 3);
    }

    #[test]
    fn garbage_gets_at_most_an_error_response() {
        let good = query("api.example.com.", RecordType::A).to_vec().unwrap();
        for cut in 0..good.len() {
            for flip in [0x00, 0xff, 0x40] {
                let mut bytes = good[..cut].to_vec();
                bytes.iter_mut().skip(2).step_by(3).for_each(|byte| *byte ^= flip);
                if let QueryOutcome::Answer(reply) = resolve(&bytes, Some(&table(1)), None) {
                    assert_eq!(reply[..2], bytes[..2]);
                }
            }
        }
    }
}
