//! One DNS message against the table: an answer of our own, or the word that others must be asked.

use std::net::IpAddr;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use super::table::{AddressRecord, DnsTable, LookupResult};

/// Short, so that clients which honour it soon see a change.
const TTL: u32 = 30;

/// What becomes of a query.
#[derive(Debug)]
pub(super) enum QueryOutcome {
    /// Send these bytes back.
    Answer(Vec<u8>),
    /// The mesh does not know the name.
    Forward,
    /// No DNS query at all: nobody to answer.
    Drop,
}

/// Judges one query. Without a table yet, the client shall ask again.
/// `limit` is the most bytes that the transport carries; None for what the query itself allows.
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
    let asked = dotted(&question.name().to_lowercase().to_ascii());
    match table.find(&asked, kind) {
        Some(found) => encoded(known(&query, question.name(), found), &query, limit),
        None => QueryOutcome::Forward,
    }
}

/// The reply that says we could not.
pub(super) fn server_failure(bytes: &[u8]) -> Option<Vec<u8>> {
    let query = Message::from_vec(bytes).ok()?;
    failure(&query).to_vec().ok()
}

fn dotted(name: &str) -> String {
    if name.ends_with('.') { name.to_owned() } else { format!("{name}.") }
}

/// Something with an id gets FORMERR; less than a header is noise.
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

/// A name of the mesh: authoritative, and no error even without an address of the kind asked for. An NXDOMAIN
/// for AAAA would make clients give up on A.
fn known(query: &Message, asked: &Name, found: LookupResult) -> Message {
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
        reply.add_answer(Record::from_rdata(asked.clone(), TTL, RData::CNAME(CNAME(alias.clone()))));
    }
    let owner = alias.unwrap_or_else(|| asked.clone());
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
        // The client comes back over TCP.
        Ok(_) => reply.truncate().to_vec().map_or(QueryOutcome::Drop, QueryOutcome::Answer),
        Err(error) => {
            tracing::debug!(%error, "could not write a DNS answer");
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
    fn known_name_is_answered_with_authority_in_the_case_it_was_asked() {
        let query = query("API.example.COM.", RecordType::A);
        let reply = ask(&query, Some(&table(2)), None);
        assert_eq!(reply.metadata.id, query.metadata.id);
        assert!(reply.metadata.authoritative);
        assert_eq!(reply.answers.len(), 2);
        assert_eq!(reply.answers[0].name.to_ascii(), "API.example.COM.");
    }

    #[test]
    fn searched_name_is_a_chain() {
        let reply = ask(&query("api.example.com.shop.svc.cluster.local.", RecordType::A), Some(&table(1)), None);
        let kinds: Vec<RecordType> = reply.answers.iter().map(|r| r.record_type()).collect();
        assert_eq!(kinds, [RecordType::CNAME, RecordType::A]);
        assert_eq!(reply.answers[1].name.to_ascii(), "api.example.com.");
    }

    #[test]
    fn no_address_of_the_kind_is_no_error() {
        let reply = ask(&query("api.example.com.", RecordType::AAAA), Some(&table(1)), None);
        assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NoError, 0));
    }

    #[test]
    fn others_are_asked_for_unknown_names_and_other_kinds() {
        for (name, kind) in [("api.example.org.", RecordType::A), ("api.example.com.", RecordType::MX)] {
            let bytes = query(name, kind).to_vec().unwrap();
            assert!(matches!(resolve(&bytes, Some(&table(1)), None), QueryOutcome::Forward), "{name}");
        }
    }

    #[test]
    fn before_the_first_table_clients_are_put_off() {
        let reply = ask(&query("api.example.com.", RecordType::A), None, None);
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    }

    #[test]
    fn large_answer_is_truncated_over_udp_only() {
        let (query, table) = (query("api.example.com.", RecordType::A), table(100));
        let over_udp = ask(&query, Some(&table), None);
        assert!(over_udp.metadata.truncation && over_udp.answers.is_empty());
        let over_tcp = ask(&query, Some(&table), Some(65_535));
        assert!(!over_tcp.metadata.truncation && over_tcp.answers.len() == 100);
    }

    #[test]
    fn queries_begin_with_different_addresses() {
        let (query, table) = (query("api.example.com.", RecordType::A), table(3));
        let first: BTreeSet<String> =
            (0..60).map(|_| ask(&query, Some(&table), None).answers[0].data.to_string()).collect();
        assert_eq!(first.len(), 3);
    }

    #[test]
    fn garbage_never_panics_and_gets_at_most_an_error() {
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
